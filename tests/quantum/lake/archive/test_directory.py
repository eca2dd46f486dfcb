"""The directory of a stopped broker: what is committed comes out, and damage is named."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from clustor.log.types import Entry, Term
from clustor.raft.hard_state import HardState
from clustor.raft.membership import Membership
from clustor.raft.types import ReplicaId
from clustor.replica.documents import plan_hard_state
from clustor.runtime.development import prepare_cluster
from clustor.runtime.keys.store import create_keyring, load_keyring
from clustor.runtime.pki.identity import cluster_id, utc_now
from quantum.lake.archive import DirectoryKeys, EnvironmentKeys, IndexRange, PrgId
from quantum.lake.errors import BadAddress, DamagedBlock, LogGone, WrongKey
from quantum.lake.opening import open_source
from quantum.tenants.broker_file import TenantEntry, prepare_broker
from tests.quantum.lake.archive.boxes import LogBox, entries

PRG = PrgId("dev", 0)


def broker_directory(root: Path, logs: Sequence[Sequence[Entry]]) -> Path:
    """Make the directory that nodes with these logs would leave, a replica for each."""
    count = len(logs)
    prepare_cluster(root, cluster_id("dev"), nodes=count, base_port=9_000, groups=1, now=utc_now())
    prepare_broker(root, TenantEntry("dev", 1))
    voters = frozenset(ReplicaId(number + 1) for number in range(count))
    hard = HardState(
        term=Term(max(log[-1].term for log in logs)), membership=Membership(voters=voters)
    )
    keys = load_keyring(root / "keys")
    for number, log in enumerate(logs, 1):
        with ExitStack() as stack:
            box = stack.enter_context(LogBox(root / f"node-{number}/state/1000", keys))
            for start in range(0, len(log), 50):
                box.append(log[start : start + 50])
            box.opened.execute(plan_hard_state(hard))
        (root / f"node-{number}/node.json").write_text("{}")
    return root


def test_a_quorum_of_directories_says_what_is_committed(tmp_path: Path) -> None:
    everything = entries(1, 500, term=2)
    root = broker_directory(tmp_path / "var", [everything, everything[:400], everything[:90]])
    source = open_source(str(root), DirectoryKeys(str(root)))
    assert (source.prgs(), source.bounds(PRG).last) == ([PRG], 400)
    assert list(source.entries(IndexRange(PRG, 1, 400))) == everything[:400]
    with pytest.raises(LogGone) as late:
        list(source.entries(IndexRange(PRG, 399, 401)))
    assert (late.value.reason, late.value.first) == ("not committed", 401)
    alone = open_source(str(root / "node-1"), DirectoryKeys(str(root)))
    assert alone.bounds(PRG).last == 0, "one of three cannot know"


def test_a_damaged_block_is_named_and_what_is_before_it_is_good(tmp_path: Path) -> None:
    everything = entries(1, 2_000)
    root = broker_directory(tmp_path / "var", [everything])
    segment = sorted((root / "node-1/state/1000/wal").glob("*.log"))[2]
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 1
    segment.write_bytes(data)
    source = pickle.loads(pickle.dumps(open_source(str(root), DirectoryKeys(str(root)))))
    assert source.bounds(PRG).last == 2_000, "the ledger proves it: it is not to be left out"
    found: list[Entry] = []
    with pytest.raises(DamagedBlock) as damaged:
        found.extend(source.entries(IndexRange(PRG, 1, 2_000)))
    assert found == everything[: len(found)]
    assert len(found) > 500
    assert (damaged.value.prg, damaged.value.index) == (PRG, len(found) + 1)


def test_keys_are_found_where_they_are_named_and_nowhere_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    everything = entries(1, 10)
    root = broker_directory(tmp_path / "var", [everything])
    create_keyring(tmp_path / "other")
    with pytest.raises(WrongKey):
        open_source(str(root), DirectoryKeys(str(tmp_path / "other"))).bounds(PRG)
    with pytest.raises(WrongKey):
        open_source(str(root), EnvironmentKeys("QUANTUM_TEST")).bounds(PRG)
    kek, ring = (root / "keys" / name for name in ("kek.key", "keyring.json"))
    monkeypatch.setenv("QUANTUM_TEST_DEV_KEK", kek.read_text())
    monkeypatch.setenv("QUANTUM_TEST_DEV_KEYRING", ring.read_text())
    source = open_source(str(root), EnvironmentKeys("QUANTUM_TEST"))
    assert list(source.entries(IndexRange(PRG, 1, 10))) == everything
    monkeypatch.setenv("QUANTUM_TEST_DEV_KEK", "00" * 32)
    with pytest.raises(WrongKey) as wrong:
        open_source(str(root), EnvironmentKeys("QUANTUM_TEST")).bounds(PRG)
    assert kek.read_text().strip() not in str(wrong.value)


@pytest.mark.parametrize(
    "where",
    ["/nowhere", "cluster:", "cluster:nowhere", "cluster:h:1+", "cluster:h:1+nourl", "xyz://b"],
)
def test_what_cannot_be_meant_is_refused_at_once(where: str) -> None:
    with pytest.raises(BadAddress):
        open_source(where, DirectoryKeys("/nowhere"))
