"""A chain of deltas leads to the state that they were taken of, bit for bit, or to nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random
from typing import TypeAlias

import pytest
from xxhash import xxh3_128_digest

from quantum.broker import (
    Attach,
    Broker,
    BrokerSettings,
    RemoveSession,
    SnapshotUnusable,
    encode_command,
    marks,
)
from quantum.broker.changes import Changes
from quantum.broker.errors import BrokerMisuse
from quantum.broker.marks import MARKS_MAX, Mark, Marks
from tests.quantum.broker.desk import SETTINGS, Desk, spec
from tests.quantum.broker.test_fuzz import SETTINGS as STRANGE_SETTINGS
from tests.quantum.broker.test_fuzz import Strange
from tests.quantum.broker.world import Plan, World, peopled_world

Patch: TypeAlias = pytest.MonkeyPatch
Log: TypeAlias = Sequence[Sequence[bytes]]

WORLDS = {
    "roomy": Plan(replicas=1, kept_topics=0.3),
    "short queues": Plan(replicas=1, queue_messages_max=8),
    "short channels": Plan(replicas=1, channel_items_max=6),
    "shares by keys": Plan(replicas=1, hashes_shares=True),
    "little store": Plan(replicas=1, store_bytes_max=4_000),
}


class Chain:
    """A live machine that emits at drawn moments, and what a peer would make of the chain."""

    def __init__(self, settings: BrokerSettings, rng: Random) -> None:
        self.settings = settings
        self.live, self.copy = Broker(settings), Broker(settings)
        self.deltas = 0
        self._rng = rng
        self._base = 0
        self._is_next_full = True

    def apply(self, index: int, commands: Sequence[bytes]) -> None:
        assert len(self.live.apply_batch(index, commands)) == len(commands)

    def emit(self, index: int) -> None:
        """Emit a snapshot, now and then one that fails; compare what it leads to."""
        pieces = None if self._is_next_full else self.live.delta(self._base)
        frozen = None if pieces is None else list(pieces)
        self.live.mark(index)
        if self._rng.random() < 0.2:
            return  # it was not authorised: the one before still counts
        digest, whole = self.live.digest(), b"".join(self.live.snapshot())
        if frozen is None:
            self.copy.restore([whole])
        else:
            self.copy.restore_delta(self._cut(b"".join(frozen)))
            assert self.copy.delta_digest() == _digest(frozen)
            self.deltas += 1
        assert self.copy.digest() == digest, f"at {index}"
        assert b"".join(self.copy.snapshot()) == whole
        self._base, self._is_next_full = index, False

    def _cut(self, data: bytes) -> Iterator[bytes]:
        at = 0
        while at < len(data):
            size = self._rng.randint(1, 5_000)
            yield data[at : at + size]
            at += size

    def restart(self, index: int) -> None:
        """Let what came from the chain go on in the place of the live one."""
        if self.copy.applied_index == self.live.applied_index:
            self.live, self.copy = self.copy, Broker(self.settings)
            self.live.mark(index)
            self.copy.restore(self.live.snapshot())
            self._base = index


def _digest(pieces: list[bytes]) -> bytes:
    return xxh3_128_digest(b"".join(pieces))


def run_chain(settings: BrokerSettings, log: Log, seed: int) -> int:
    """Apply a log, emit at drawn moments; return how many deltas were restored."""
    rng = Random(seed)
    chain, twin = Chain(settings, rng), Broker(settings)
    pace = rng.choice((1, 3, 8))
    for index, commands in enumerate(log, 1):
        chain.apply(index, commands)
        twin.apply_batch(index, commands)
        if rng.randrange(pace) == 0:
            chain.emit(index)
            if rng.random() < 0.2:
                chain.restart(index)
    assert chain.live.digest() == twin.digest(), "what was restored went another way"
    return chain.deltas


def lived(seed: int, plan: Plan, steps: int = 900) -> World:
    world = peopled_world(seed, plan)
    world.checks_digests = False
    world.run(steps)
    return world


@pytest.mark.parametrize("plan", WORLDS.values(), ids=WORLDS.keys())
@pytest.mark.parametrize("seed", range(4))
def test_full_and_deltas_lead_to_the_live_state(seed: int, plan: Plan) -> None:
    world = lived(seed, plan)
    deltas = sum(run_chain(each.settings, each.log, seed) for each in world.partitions)
    assert deltas > 10


@pytest.mark.parametrize("seed", range(4))
def test_a_ring_that_grows_has_no_delta_until_it_is_calm(seed: int) -> None:
    world = lived(seed, Plan(partitions=2, replicas=1), 150)
    world.grow(4)
    world.run(200)
    world.settle()
    assert sum(run_chain(each.settings, each.log, seed) for each in world.partitions) > 10


@pytest.mark.parametrize("prg", [0, 4])
@pytest.mark.parametrize("seed", range(12))
def test_strange_commands_too(prg: int, seed: int) -> None:
    run_chain(replace(STRANGE_SETTINGS, prg=prg), strange_log(seed), seed)


def strange_log(seed: int) -> Log:
    rng = Random(seed)
    strange = Strange(rng)
    return [[strange.command() for _ in range(rng.randrange(1, 4))] for _ in range(200)]


TABLES = (
    "sessions",
    "session_places",
    "groups",
    "group_places",
    "told",
    "told_places",
    "retained",
    "interests",
    "streams",
)


@pytest.mark.parametrize("table", TABLES)
def test_a_table_that_is_left_out_is_noticed(table: str, monkeypatch: Patch) -> None:
    """A bug, planted on purpose: nobody says what changes in one of the tables."""
    logs: list[tuple[BrokerSettings, Log]]
    logs = [(each.settings, each.log) for each in lived(1, WORLDS["short queues"]).partitions]
    logs += [(STRANGE_SETTINGS, strange_log(seed)) for seed in range(40)]
    since = Marks.since

    def deaf(marks: Marks, base_index: int) -> tuple[Mark, Changes] | None:
        found = since(marks, base_index)
        if found is not None:
            getattr(found[1], table).clear()
        return found

    monkeypatch.setattr(Marks, "since", deaf)

    def notices(settings: BrokerSettings, log: Log) -> bool:
        try:
            run_chain(settings, log, 1)
        except (AssertionError, SnapshotUnusable, KeyError):
            return True
        return False

    assert any(notices(*each) for each in logs)


# What a delta is, and is not.


def peopled_desk() -> Desk:
    desk = Desk()
    for number in range(40):
        desk.attach(b"client %d" % number)
        desk.subscribe(spec(b"t/%d" % number), client_id=b"client %d" % number)
        desk.publish(b"kept/%d" % number, retain=True)
    return desk


def test_a_delta_is_as_large_as_what_changed() -> None:
    desk = peopled_desk()
    leader = desk.leader
    leader.mark(leader.applied_index)
    base = leader.applied_index
    desk.publish(b"t/7")
    pieces = leader.delta(base)
    assert pieces is not None
    delta, whole = b"".join(pieces), b"".join(leader.snapshot())
    assert b"client 7" in delta and b"client 8" not in delta and b"kept/" not in delta
    assert len(delta) * 5 < len(whole)


def test_what_is_applied_while_a_delta_is_taken_does_not_show() -> None:
    desk, copy = peopled_desk(), Broker(SETTINGS)
    leader = desk.leader
    base = leader.applied_index
    leader.mark(base)
    copy.restore(leader.snapshot())
    desk.publish(b"t/7")
    digest = leader.digest()
    pieces = leader.delta(base)
    assert pieces is not None
    desk.publish(b"t/7")
    desk.publish(b"kept/3", retain=True)
    copy.restore_delta(pieces)
    assert copy.digest() == digest != leader.digest()


def test_what_ends_by_itself_or_by_a_word_is_in_the_delta() -> None:
    """The desk's fourth replica hears of nothing but deltas, and is compared after each command."""
    desk = Desk()
    desk.publish(b"kept", retain=True)
    desk.publish(b"kept", b"", retain=True)  # deleted
    assert desk.chained.state.retained.get(b"kept") is None
    desk.publish(b"short", retain=True, expires_at_ms=desk.now_ms + 1_000)
    desk.elapse(2)
    assert desk.chained.state.retained.get(b"short") is None
    desk.attach(expiry=5)
    desk.subscribe(spec(b"#", share=b"g"), spec(b"far/#"))
    desk.unsubscribe(b"far/#")
    desk.publish(b"shared")
    desk.detach(gracefully=False)
    desk.elapse(9)
    assert not desk.chained.state.sessions and not desk.chained.state.groups
    assert not desk.chained.state.told


def test_a_moment_is_forgotten_after_a_few_others() -> None:
    broker = Broker(SETTINGS)
    for base in range(MARKS_MAX + 1):
        broker.mark(base)
    assert broker.delta(0) is None and broker.delta(99) is None
    assert broker.delta(1) is not None, "what failed in between does no harm"
    assert broker.delta(3) is not None
    assert broker.delta(2) is None, "who goes on from 3 has no use for what was before"


def test_nothing_is_kept_of_changes_that_nobody_will_ask_for() -> None:
    desk = peopled_desk()
    assert len(desk.follower.state.changes) == 0, "nobody has marked a moment there"
    assert desk.follower.delta(0) is None


def test_too_many_changes_are_forgotten_and_the_next_mark_begins_anew(monkeypatch: Patch) -> None:
    monkeypatch.setattr(marks, "KEYS_MAX", 30)
    broker = Broker(SETTINGS)
    broker.mark(0)
    for index in range(1, 200):
        attach = Attach(1_000, b"client %d" % index, clean_start=True, expiry_seconds=0, window=1)
        broker.apply_batch(index, [encode_command(attach)])
        assert len(broker.state.changes) <= 30 + 3 * 64
    assert broker.delta(0) is None and len(broker.state.changes) == 0
    broker.mark(199)
    copy = Broker(SETTINGS)
    copy.restore(broker.snapshot())
    broker.apply_batch(200, [encode_command(RemoveSession(2_000, b"client 5"))])
    delta = broker.delta(199)
    assert delta is not None
    copy.restore_delta(delta)
    assert copy.digest() == broker.digest()


def test_a_delta_of_another_state_is_refused_and_nothing_is_left() -> None:
    desk = peopled_desk()
    leader = desk.leader
    base = leader.applied_index
    leader.mark(base)
    other = Broker(SETTINGS)
    other.restore(leader.snapshot())
    desk.publish(b"t/1")
    delta = list(leader.delta(base) or ())
    other.apply_batch(base + 1, [])
    with pytest.raises(SnapshotUnusable, match="another state"):
        other.restore_delta(delta)
    assert other.digest() == Broker(SETTINGS).digest()


def test_a_snapshot_is_no_delta_and_a_delta_no_snapshot() -> None:
    broker = Broker(SETTINGS)
    broker.mark(0)
    delta = list(broker.delta(0) or ())
    with pytest.raises(SnapshotUnusable):
        Broker(SETTINGS).restore(delta)
    with pytest.raises(SnapshotUnusable):
        Broker(SETTINGS).restore_delta(broker.snapshot())
    with pytest.raises(BrokerMisuse, match="no delta"):
        broker.delta_digest()


def test_every_cut_of_a_delta_is_refused() -> None:
    desk = Desk()
    desk.leader.mark(0)
    desk.attach()
    desk.subscribe(spec(b"#"))
    desk.publish(b"a", retain=True)
    whole = b"".join(desk.leader.delta(0) or ())
    for cut in range(len(whole)):
        with pytest.raises(SnapshotUnusable):
            Broker(SETTINGS).restore_delta([whole[:cut]])
    with pytest.raises(SnapshotUnusable):
        Broker(SETTINGS).restore_delta([whole, whole])


@pytest.mark.parametrize("seed", range(12))
def test_a_damaged_delta_is_refused_or_read_and_never_half(seed: int) -> None:
    desk = Desk()
    desk.leader.mark(0)
    desk.attach()
    desk.subscribe(spec(b"#"))
    desk.publish(b"a", retain=True)
    damaged = Strange(Random(seed)).damaged(b"".join(desk.leader.delta(0) or ()))
    victim = Broker(SETTINGS)
    try:
        victim.restore_delta([damaged])
    except SnapshotUnusable:
        assert victim.digest() == Broker(SETTINGS).digest()
    else:
        victim.delta_digest()
