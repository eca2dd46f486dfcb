"""`replay`: the broker's own machine over the log again; a copy that differs is named by index."""

from __future__ import annotations

from copy import deepcopy

import pytest

from clustor.log.types import Entry
from quantum.archive.types import PrgId
from quantum.broker import OWN_ORIGIN, encode_publishes
from quantum.lake.errors import LogGone
from quantum.lake.jobs.errors import StateUnknown
from quantum.lake.jobs.replay import (
    ReplayLimit,
    compare_digests,
    find_divergences,
    first_difference,
    replay,
    state_at,
)
from tests.quantum.lake.jobs.logs import NOON_MS, TENANT, MemorySource, record
from tests.quantum.lake.jobs.test_ingest import story


@pytest.fixture
def log() -> MemorySource:
    return story()[0]


def digests(log: MemorySource, number: int, index: int) -> str:
    return log.machine(number, index).digest().hex()


def test_the_digests_are_those_of_the_broker(log: MemorySource) -> None:
    found = {each.prg: each for each in replay(log)}
    for number in (0, 1):
        replayed = found[f"{TENANT}/{number}"]
        last = len(log.logs[PrgId(TENANT, number)])
        assert (replayed.index, replayed.digest) == (last, digests(log, number, last))


@pytest.mark.parametrize("index", range(13))
def test_any_index_can_be_asked_for(log: MemorySource, index: int) -> None:
    found = replay(log, indexes={f"{TENANT}/0": index, f"{TENANT}/1": 0})[0]
    assert (found.index, found.digest) == (index, digests(log, 0, index))


@pytest.mark.parametrize("compacted", [4, 5, 9])
def test_a_snapshot_gives_the_same(log: MemorySource, compacted: int) -> None:
    before = replay(log)[0]
    log.snapshot_and_compact(0, compacted)
    after = replay(log)[0]
    assert (after.index, after.digest) == (before.index, before.digest)
    assert after.snapshot_index == compacted


def test_a_moment_is_the_last_entry_that_was_stamped_by_then(log: MemorySource) -> None:
    found = replay(log, at=ReplayLimit(until_ms=NOON_MS + 2_500))[0]
    assert found.index == 4  # stamps 0, no stamp, 1 s, 2 s; then 3 s
    assert found.digest == digests(log, 0, 4)


def test_what_is_gone_or_to_come_is_refused(log: MemorySource) -> None:
    with pytest.raises(LogGone):
        replay(log, at=ReplayLimit(index=99))
    log.snapshot_and_compact(0, 5)
    with pytest.raises(StateUnknown):
        replay(log, indexes={f"{TENANT}/0": 3, f"{TENANT}/1": 0})


def test_another_digest_at_the_same_index_is_named(log: MemorySource) -> None:
    ours = replay(log)
    live = {each.prg: (each.index, each.digest) for each in ours}
    assert compare_digests(ours, live) == []
    live[f"{TENANT}/1"] = (live[f"{TENANT}/1"][0], "00" * 16)
    assert [each.prg for each in compare_digests(ours, live)] == [f"{TENANT}/1"]
    live[f"{TENANT}/1"] = (99, "00" * 16)  # of another moment: says nothing
    assert compare_digests(ours, live) == []


def planted(log: MemorySource, index: int) -> MemorySource:
    """Copy the logs, with another message at an index of the first partition."""
    other = deepcopy(log)
    entries = other.logs[PrgId(TENANT, 0)]
    data = encode_publishes(NOON_MS, OWN_ORIGIN, 0, 0, [record("t", b"other")])
    other.append(0, data)
    forged = entries.pop()
    entries[index - 1] = Entry(entries[index - 1].term, entries[index - 1].index, forged.payload)
    return other


@pytest.mark.parametrize("index", [1, 2, 7, 12])
def test_a_planted_divergence_is_named_by_partition_and_index(
    log: MemorySource, index: int
) -> None:
    assert find_divergences(log, deepcopy(log)) == []
    found = find_divergences(log, planted(log, index))
    assert [(each.prg, each.first_index) for each in found] == [(f"{TENANT}/0", index)]


def test_halving_finds_the_first() -> None:
    for first in range(1, 40):
        assert first_difference(lambda at, first=first: at >= first, 0, 40) == first  # type: ignore[misc]


def test_the_state_comes_as_tables() -> None:
    log = MemorySource(prg_count=1)
    log.attach(0, "reader")
    log.subscribe(0, "reader", "t")
    log.publish(0, b"one", b"two")
    log.append(0, encode_publishes(NOON_MS, OWN_ORIGIN, 0, 0, [record("r", b"kept", qos=1 | 4)]))
    tables = state_at(log)
    assert [(row["client_id"], row["queued"]) for row in tables["sessions"]] == [("reader", 2)]
    assert [row["filter"] for row in tables["subscriptions"]] == ["t"]
    assert [row["payload"] for row in tables["queues"]] == [b"one", b"two"]
    assert [(row["topic"], row["payload"]) for row in tables["retained"]] == [("r", b"kept")]
    before = state_at(log, at=ReplayLimit(index=2))
    assert before["queues"] == []
    assert before["retained"] == []
