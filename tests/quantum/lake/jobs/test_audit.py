"""`audit`: batches verified apart and joined again find what one pass over the log finds."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from clustor.runtime.audit.keys import AUDIT_KEYS_FILE, AuditKeysFile, PublicKeyEntry
from clustor.security import ANCHOR_FILE, encode_anchor, file_name, split_batches
from quantum.lake.errors import BadAddress, WrongKey
from quantum.lake.jobs.audit import EventQuestion, audit, chunks
from tests.clustor.security.audit_logs import KEY, OTHER_KEY, small_log


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """Lay out a node's audit log and the keys to trust."""
    lines, anchor = small_log(batches=5, tail=2)
    write(tmp_path, lines)
    (tmp_path / "security" / "audit" / ANCHOR_FILE).write_bytes(encode_anchor(anchor))
    write_keys(tmp_path, KEY)
    return tmp_path


def write(node: Path, lines: list[bytes]) -> None:
    directory = node / "security" / "audit"
    directory.mkdir(parents=True, exist_ok=True)
    (directory / file_name(1)).write_bytes(b"".join(line + b"\n" for line in lines))


def write_keys(node: Path, key: object) -> None:
    raw = KEY if key is KEY else OTHER_KEY
    public = raw.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw).hex()
    (node / "keys").mkdir(exist_ok=True)
    document = AuditKeysFile((PublicKeyEntry(public, 0),))
    (node / "keys" / AUDIT_KEYS_FILE).write_bytes(msgspec.json.encode(document))


def test_an_untouched_log_is_intact_and_answers(node: Path) -> None:
    (found,), events = audit([str(node)], question=EventQuestion(who="operator/1"))
    assert found.is_intact, found.fault
    assert (found.events, found.batches, found.unsigned_lines) == (22, 6, 2)
    assert [row["object"] for row in events] == ["node/1"] + [f"node/{n}" for n in range(10, 20)]
    _, everything = audit([str(node)], question=EventQuestion(tenant="acme", since_ms=1_020))
    assert len(everything) == 2
    assert audit([str(node)])[1] == []


def test_whatever_is_done_to_a_line_is_found(node: Path) -> None:
    lines, _ = small_log(batches=5, tail=2)
    sealed = len(lines) - 2
    for at in range(sealed):
        for changed in (
            [*lines[:at], *lines[at + 1 :]],
            [*lines[:at], lines[at].replace(b"0", b"1", 1), *lines[at + 1 :]],
            [*lines[:at], lines[at], lines[at], *lines[at + 1 :]],
        ):
            write(node, changed)
            (found,), _ = audit([str(node)])
            assert changed == lines or not found.is_intact, at


def test_a_log_that_was_cut_before_its_anchor_is_found(node: Path) -> None:
    lines, _ = small_log(batches=5)
    write(node, lines[:-5])
    assert "truncated" in audit([str(node)])[0][0].fault
    (node / "security" / "audit" / ANCHOR_FILE).unlink()
    assert "truncated" in audit([str(node)])[0][0].fault


def test_another_key_and_no_log(node: Path, tmp_path: Path) -> None:
    write_keys(node, OTHER_KEY)
    assert "wrong key" in audit([str(node)])[0][0].fault
    (node / "keys" / AUDIT_KEYS_FILE).unlink()
    with pytest.raises(WrongKey):
        audit([str(node)])
    with pytest.raises(BadAddress):
        audit([str(tmp_path / "nowhere")])


def test_chunks_hold_every_batch_once() -> None:
    batches = list(split_batches(small_log(batches=9)[0]))
    cut = list(chunks(iter(batches), 1_500))
    assert [batch for chunk in cut for batch in chunk] == batches
    assert len(cut) > 1
