"""`quantum audit`: exit codes and words, on real files that somebody has changed."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from clustor.runtime.audit.keys import AUDIT_KEYS_FILE, open_audit_keys
from clustor.runtime.audit.writer import AuditWriter, WriterLimits
from clustor.security import ANCHOR_FILE, AuditEvent, file_name
from quantum.cli.audit import app
from tests.clustor.security.audit_logs import event


async def _write(root: Path, *, seal: bool = True) -> str:
    keys = open_audit_keys(root / "keys", 0)
    directory = root / "security" / "audit"
    writer = AuditWriter(directory, keys.signer, limits=WriterLimits(seal_seconds=60))
    for number in range(6):
        await writer.record(event(number))
    head = writer.head[1]
    if seal:
        await writer.close()
        head = writer.head[1]
    else:
        writer._loop.remove_reader(writer._disk.fileno())
        writer._stop_timer()
        writer._disk.close()
    return head


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("node")
    asyncio.run(_write(root))
    asyncio.run(_write(root))
    return root


@pytest.fixture
def node(written: Path, tmp_path: Path) -> Path:
    shutil.copytree(written, tmp_path / "node")
    return tmp_path / "node"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(each) for each in arguments])


def report(*arguments: object) -> tuple[int, dict[str, object]]:
    result = run(*arguments, "--json")
    return result.exit_code, json.loads(result.stdout)


def files(node: Path) -> list[Path]:
    return sorted((node / "security" / "audit").glob("audit-*.jsonl"))


def places(node: Path) -> list[tuple[Path, int]]:
    return [(path, at) for path in files(node) for at in range(len(path.read_bytes().splitlines()))]


def change(path: Path, lines: list[bytes]) -> None:
    path.write_bytes(b"".join(line + b"\n" for line in lines))


def test_an_intact_log_ends_with_zero_and_prints_its_head(node: Path) -> None:
    code, found = report("verify", node)
    assert code == 0 and found["intact"] and found["events"] == 12 and found["files"] == 2
    assert run("verify", node, "--expect-head", found["sealed_head"]).exit_code == 0
    assert "intact: 12 events" in run("verify", node / "security" / "audit").stdout


def test_every_altered_line_is_found_at_its_place(node: Path) -> None:
    for path, at in places(node):
        before = path.read_bytes()
        lines = before.splitlines()
        lines[at] = lines[at].replace(b'"at_ms":', b'"at_ms":1', 1)
        change(path, lines)
        code, found = report("verify", node)
        assert (code, found["kind"]) == (6, "altered"), (path, at, found)
        assert (found["file"], found["line_of_file"]) == (path.name, at + 1)
        path.write_bytes(before)


def test_every_dropped_and_every_moved_line_is_found(node: Path) -> None:
    last = places(node)[-1]
    for path, at in places(node):
        before = path.read_bytes()
        lines = before.splitlines()
        change(path, lines[:at] + lines[at + 1 :])
        code, found = report("verify", node)
        assert code == 6
        assert found["kind"] == ("truncated" if (path, at) == last else "dropped"), (path, at)
        if at + 1 < len(lines):
            lines[at], lines[at + 1] = lines[at + 1], lines[at]
            change(path, lines)
            code, found = report("verify", node)
            assert code == 6 and found["kind"] in ("reordered", "dropped")
        path.write_bytes(before)


def test_every_cut_is_found(node: Path) -> None:
    path = files(node)[-1]
    data = path.read_bytes()
    for kept in range(0, len(data), 97):
        path.write_bytes(data[:kept])
        code, found = report("verify", node)
        assert (code, found["kind"]) == (6, "truncated"), kept
    path.unlink()
    assert report("verify", node)[1]["kind"] == "truncated"


def test_a_lost_anchor_is_no_small_matter(node: Path) -> None:
    (node / "security" / "audit" / ANCHOR_FILE).unlink()
    code, found = report("verify", node)
    assert (code, found["kind"]) == (6, "truncated")


def test_an_older_copy_of_log_and_anchor_is_seen_by_the_witness_alone(tmp_path: Path) -> None:
    root = tmp_path / "node"
    asyncio.run(_write(root))
    shutil.copytree(root / "security", tmp_path / "older")
    head = asyncio.run(_write(root))
    shutil.rmtree(root / "security")
    shutil.copytree(tmp_path / "older", root / "security")
    assert report("verify", root)[0] == 0
    code, found = report("verify", root, "--expect-head", head)
    assert (code, found["kind"]) == (6, "truncated")


def test_another_key_is_a_wrong_key(node: Path, tmp_path: Path) -> None:
    open_audit_keys(tmp_path / "other", 0)
    code, found = report("verify", node, "--keys", tmp_path / "other" / AUDIT_KEYS_FILE)
    assert (code, found["kind"]) == (4, "wrong key")


def test_a_tail_without_a_seal_is_shown_and_refused_on_request(tmp_path: Path) -> None:
    asyncio.run(_write(tmp_path / "node", seal=False))
    code, found = report("verify", tmp_path / "node")
    assert code == 0 and found["unsigned_lines"] == 7
    assert "7 lines, chained only" in run("verify", tmp_path / "node").stdout
    code, found = report("verify", tmp_path / "node", "--require-signed")
    assert (code, found["kind"]) == (1, "unsigned")


def test_a_log_whose_first_file_expired_needs_leave(node: Path) -> None:
    files(node)[0].unlink()
    assert report("verify", node)[1]["kind"] == "dropped"
    assert report("verify", node, "--expired")[0] == 0


async def test_a_log_can_be_verified_while_it_grows(tmp_path: Path) -> None:
    keys = open_audit_keys(tmp_path / "keys", 0)
    limits = WriterLimits(seal_seconds=0.005, file_bytes_max=8 << 10)
    writer = AuditWriter(tmp_path / "security" / "audit", keys.signer, limits=limits)
    stop = asyncio.Event()

    async def write() -> None:
        while not stop.is_set():
            await asyncio.gather(*(writer.record(event(number)) for number in range(3)))

    writing = asyncio.create_task(write())
    async with asyncio.timeout(60):
        while len(files(tmp_path)) < 8:
            result = await asyncio.to_thread(run, "verify", tmp_path)
            assert result.exit_code == 0, result.output
    stop.set()
    await writing
    await writer.close()


@pytest.mark.parametrize("name", ["nothing", "empty"])
def test_where_no_log_is_the_code_is_three(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    result = run("verify", tmp_path / name)
    assert result.exit_code == 3 and result.stderr.startswith("quantum: no audit log")


def test_keys_that_are_not_there_are_asked_for(node: Path) -> None:
    shutil.rmtree(node / "keys")
    result = run("verify", node)
    assert result.exit_code == 4 and "--keys" in result.stderr


def test_show_filters(node: Path) -> None:
    everything = run("show", node).stdout.splitlines()
    assert len(everything) == 12 and "RegisterNode" in everything[0]
    assert len(run("show", node, "--who", "operator/3").stdout.splitlines()) == 2
    assert run("show", node, "--what", "Nothing").stdout == ""
    assert len(run("show", node, "--limit", "5").stdout.splitlines()) == 5
    assert run("show", node, "--since", "2030-01-01").stdout == ""
    first = json.loads(run("show", node, "--json").stdout.splitlines()[0])
    assert first["who"] == "spiffe://dev/operator/0"


async def test_what_is_shown_cannot_command_a_terminal(tmp_path: Path) -> None:
    writer = AuditWriter(tmp_path, open_audit_keys(tmp_path / "keys", 0).signer)
    await writer.record(AuditEvent(who="\x1b[2J", what="Connect", outcome="No", at_ms=0))
    await writer.close()
    assert "\x1b" not in run("show", tmp_path).stdout
    assert file_name(1) in {path.name for path in tmp_path.iterdir()}
