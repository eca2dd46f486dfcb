"""No bytes make a machine raise, and whatever they do, they do it to every replica alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quantum.broker import (
    Acknowledge,
    Attach,
    BeginRebalance,
    Broker,
    BrokerSettings,
    ChannelAcked,
    ChannelItems,
    CreateStream,
    DeleteStream,
    Detach,
    Elapse,
    LeaderStarted,
    PublishOnce,
    Release,
    RemoveSession,
    RoutesFlushed,
    SnapshotUnusable,
    Subscribe,
    SubscriptionSpec,
    TrimStreams,
    Unsubscribe,
    WillSpec,
    encode_command,
    encode_publishes,
    encode_record,
)
from quantum.broker import items as channel
from quantum.broker.commands import unknown_family
from quantum.broker.errors import UnknownCommand
from quantum.broker.items import encode_item
from quantum.broker.message import Message
from quantum.broker.stream_table import StreamSpec
from quantum.broker.types import TRANSFER
from quantum.routing.ring import jump
from tests.quantum.broker.world import Plan, peopled_world


def _hash(key: bytes, count: int) -> int:
    return jump(len(key) * 0x9E3779B97F4A7C15 % (1 << 64), count)


SETTINGS = BrokerSettings(
    prg=0, prg_count=3, topic_partition=_hash, session_partition=_hash, queue_messages_max=5
)
SECTION_FAMILIES = frozenset(Broker(SETTINGS).state.sections)
IDS = (b"x", b"y", b"z")
NAMES = (b"a", b"ab", b"abc", b"a/b", b"+", b"#", b"a/+", b"", b"$s", b"a/#/b", b"\xff\0")
NUMBERS = (0, 1, 2, 3, 7, 0x7FFF, 0xFFFF, 1 << 31, (1 << 53) - 1, 1 << 53, (1 << 64) - 1, -1)


class Strange:
    """Draws commands that are well-formed on the outside, and anything within."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng

    def number(self) -> int:
        return self._rng.choice(NUMBERS[:6] if self._rng.random() < 0.8 else NUMBERS)

    def stamp(self) -> int:
        return self._rng.choice((0, 1_000, 100_000, 1_000_000, (1 << 53) - 1, 1 << 60))

    def name(self) -> bytes:
        return self._rng.choice(NAMES)

    def client(self) -> bytes:
        return self._rng.choice(IDS)

    def flag(self) -> bool:
        return self._rng.random() < 0.5

    def record(self) -> bytes:
        record = encode_record(
            self.name(),
            self._rng.choice((b"", b"payload")),
            self._rng.randrange(32),
            b"",
            self._rng.choice((0, 500, (1 << 64) - 1)),
            self.client(),
            self._rng.randrange(6),
            self._rng.randrange(4),
        )
        return record if self._rng.random() < 0.9 else self.damaged(record)

    def message(self) -> Message:
        """Draw a message, now and then one that no record could hold."""
        return Message(
            self.name(),
            self._rng.choice((b"", b"payload")),
            self._rng.randrange(5),
            self.flag(),
            b"",
            self._rng.choice((0, 500, 1 << 63)),
            self.client(),
            self._rng.choice((0, 3, 1 << 40)),
            self._rng.choice((0, 3, 1 << 17)),
        )

    def damaged(self, data: bytes) -> bytes:
        kind = self._rng.randrange(3)
        at = self._rng.randrange(len(data) + 1)
        if kind == 0:
            return data[:at]
        if kind == 1:
            return data[:at] + self._rng.randbytes(self._rng.randrange(4)) + data[at:]
        changed = bytearray(data)
        for _ in range(self._rng.randrange(1, 4)):
            if changed:
                changed[self._rng.randrange(len(changed))] = self._rng.randrange(256)
        return bytes(changed)

    def spec(self) -> SubscriptionSpec:
        return SubscriptionSpec(
            self.name(),
            self._rng.choice((0, 1, 2, 2, 9)),
            self.flag(),
            self.flag(),
            self._rng.randrange(4),
            self._rng.choice((0, 0, 5, 1 << 40)),
            self._rng.choice((b"", b"", b"g")),
        )

    def item(self) -> bytes:
        share, epoch = self._rng.choice((b"", b"g")), self._rng.randrange(6)
        qos = self._rng.randrange(4)
        drawn: Sequence[channel.Item] = (
            channel.Forward(self.record()),
            channel.Deliver(self.record()),
            channel.Interest(self.name(), self._rng.randrange(4)),
            channel.WantRetained(self.client(), epoch, self.name(), qos, 0, self.name()),
            channel.Targeted(
                self.client(), epoch, self.record(), qos, self.flag(), 0, share, self.name()
            ),
            channel.MemberItem(
                share, self.name(), self.client(), epoch, qos - 1, 0, self.flag(), self.flag()
            ),
            channel.Returned(share, self.name(), self.record()),
            channel.MoreRetained(self.client(), epoch, self.name(), qos, 0, self.name()),
            channel.Pressure(self.name(), self.flag()),
            *self.moving(epoch),
            channel.StreamDefined(self.stream()),
            channel.StreamDeleted(self._rng.randrange(4)),
        )
        encoded = encode_item(self._rng.choice(drawn))
        return encoded if self._rng.random() < 0.9 else self.damaged(encoded)

    def stream(self) -> StreamSpec:
        name = self._rng.choice((b"s", b"t", b"", b"\xff"))
        return StreamSpec(self._rng.randrange(4), name, (self.name(), self.name()), 0, 0, 0)

    def moving(self, epoch: int) -> Sequence[channel.Item]:
        count = self._rng.randrange(6)
        delivery = (self.message(), 2, self.flag(), (), b"", b"", self._rng.randrange(3), 1, 0)
        will = WillSpec(self.record(), 0) if self.flag() else None
        return (
            channel.Began(1 + epoch % 2, 3, 3 + count % 3),
            channel.Flushed(1 + epoch % 2),
            channel.HandedOver(1 + epoch % 2),
            channel.Settled(1),
            channel.MovedRetained([self.message()]),
            channel.MovedSubscriptions(self.client(), [self.spec()]),
            channel.MovedDeliveries(self.client(), [delivery]),
            channel.MovedSession(
                self.client(),
                epoch,
                self.number(),
                count,
                self.stamp(),
                [count],
                will,
                self.stamp(),
                self.flag(),
                [(count, self.name(), 1, 0, self.name())],
                self.number(),
                self.number(),
                b"",
            ),
        )

    def command(self) -> bytes:
        """Draw a command that this release knows, or no command at all."""
        while unknown_family(drawn := self._command(), SECTION_FAMILIES) is not None:
            pass
        return drawn

    def _command(self) -> bytes:
        rng, now_ms, client = self._rng, self.stamp(), self.client()
        will = WillSpec(self.record(), self.number()) if self.flag() else None
        draw = rng.randrange(16)
        if draw == 0:
            return rng.randbytes(rng.randrange(40))
        if draw < 3:
            records = [self.record() for _ in range(rng.randrange(4))]
            origin = rng.choice((0xFFFF, 0xFFFF, 0, 1, 2, 9))
            return encode_publishes(now_ms, origin, rng.randrange(3), rng.randrange(4), records)
        epoch, number = rng.randrange(6), rng.randrange(8)
        command = (
            Attach(now_ms, client, self.flag(), self.number(), self.number(), will),
            Detach(now_ms, client, epoch, self.flag(), rng.choice((None, 0, 9)), number),
            Subscribe(now_ms, client, epoch, [self.spec() for _ in range(rng.randrange(4))]),
            Unsubscribe(now_ms, client, epoch, [self.name()]),
            Acknowledge(now_ms, [(client, rng.randrange(9), rng.randrange(5)) for _ in range(3)]),
            PublishOnce(now_ms, [self.record() for _ in range(rng.randrange(4))]),
            Release(now_ms, [(client, rng.randrange(4))]),
            ChannelItems(
                now_ms,
                rng.choice((1, 2, 0, 9, -1, TRANSFER, TRANSFER + 1, TRANSFER + 2)),
                [rng.randrange(90) for _ in range(3)],
                [self.item() for _ in range(rng.randrange(5))],
            ),
            ChannelAcked(
                rng.choice((1, 2, 0, 77, -5, TRANSFER + 4)), rng.choice((*range(9), 1 << 63))
            ),
            rng.choice((LeaderStarted(now_ms, number), RemoveSession(now_ms, client))),
            Elapse(now_ms),
            rng.choice(
                (
                    BeginRebalance(now_ms, rng.randrange(3), 3 + number),
                    RoutesFlushed(now_ms, rng.randrange(3)),
                )
            ),
            rng.choice(
                (
                    CreateStream(now_ms, rng.choice((b"s", b"t", b"")), [self.name()]),
                    CreateStream(now_ms, rng.choice((b"s", b"t")), [b"#", b"a/+"], 5, 7),
                    DeleteStream(now_ms, rng.choice((b"s", b"t"))),
                    TrimStreams(now_ms, [(rng.randrange(4), self._rng.randrange(9))]),
                )
            ),
        )[draw - 3]
        encoded = encode_command(command)
        return encoded if rng.random() < 0.85 else self.damaged(encoded)


@pytest.mark.parametrize("prg", [0, 4])
@pytest.mark.parametrize("seed", range(25))
def test_strange_commands_are_answered_and_keep_replicas_equal(prg: int, seed: int) -> None:
    rng = Random(seed)
    strange = Strange(rng)
    settings = replace(SETTINGS, prg=prg)  # the last one is fresh
    leader, follower = Broker(settings), Broker(settings)
    leader.collect(wanted=True)
    for index in range(1, 200):
        commands = [strange.command() for _ in range(rng.randrange(1, 4))]
        replies = leader.apply_batch(index, commands)
        assert replies == follower.apply_batch(index, commands)
        assert len(replies) == len(commands)
        assert leader.digest() == follower.digest(), f"seed {seed} at {index}: {commands}"
        leader.take_effects(index)
        if rng.random() < 0.1:
            restored = Broker(settings)
            restored.restore(leader.snapshot())
            follower = restored


@pytest.mark.parametrize("seed", range(8))
def test_damaged_commands_of_a_real_log_keep_replicas_equal(seed: int) -> None:
    world = peopled_world(seed, Plan(queue_messages_max=8))
    world.checks_digests = False
    world.run(250)
    rng = Random(seed)
    strange = Strange(rng)
    for partition in world.partitions:
        leader, follower = (Broker(partition.settings) for _ in range(2))
        leader.collect(wanted=True)
        for index, entry in enumerate(partition.log, 1):
            commands = [
                command if rng.random() < 0.7 else strange.damaged(command) for command in entry
            ]
            commands = [each for each in commands if unknown_family(each, SECTION_FAMILIES) is None]
            assert leader.apply_batch(index, commands) == follower.apply_batch(index, commands)
            leader.take_effects(index)
        assert leader.digest() == follower.digest()


@given(st.binary(max_size=200))
@settings(max_examples=200, deadline=None)
def test_any_bytes_are_answered_but_those_of_a_later_release(data: bytes) -> None:
    broker = Broker(SETTINGS)
    if unknown_family(data, SECTION_FAMILIES) is not None:
        with pytest.raises(UnknownCommand):
            broker.apply_batch(1, [data])
        return
    before = broker.digest()
    assert len(broker.apply_batch(1, [data, b"\0" + data])) == 2
    assert before != broker.digest()  # at least the index is another


LATER = {
    "packed": b"\x7fanything",
    "a record": b"\x92\x7f\xc0",
    "a record like one that is known": b"\x93\x15" + encode_command(Elapse(1))[2:],
}


@pytest.mark.parametrize("data", LATER.values(), ids=LATER.keys())
def test_a_command_of_a_later_release_stops_the_group_and_is_not_skipped(data: bytes) -> None:
    with pytest.raises(UnknownCommand, match="later release"):
        Broker(SETTINGS).apply_batch(1, [encode_command(Elapse(1)), data])


def test_deep_nesting_is_no_command() -> None:
    assert Broker(SETTINGS).apply_batch(1, [b"\x91" * 100_000]) == [b""]


@pytest.mark.parametrize("seed", range(12))
def test_a_damaged_snapshot_is_refused_or_read_and_never_half(seed: int) -> None:
    world = peopled_world(1, Plan(partitions=1))
    world.checks_digests = False
    world.run(200)
    broker = world.partitions[0].broker
    good = b"".join(broker.snapshot())
    damaged = Strange(Random(seed)).damaged(good)
    victim = Broker(world.partitions[0].settings)
    empty = victim.digest()
    try:
        victim.restore([damaged])
    except SnapshotUnusable:
        assert victim.digest() == empty
    else:
        victim.digest()


def test_a_snapshot_is_cut_anywhere_and_missing_ends_are_noticed() -> None:
    world = peopled_world(2, Plan(partitions=1))
    broker = world.partitions[0].broker
    whole = b"".join(broker.snapshot())
    twin = Broker(world.partitions[0].settings)
    twin.restore(whole[at : at + 1] for at in range(len(whole)))
    assert twin.digest() == broker.digest()
    for cut in range(0, len(whole), 7):
        with pytest.raises(SnapshotUnusable):
            Broker(world.partitions[0].settings).restore([whole[:cut]])
    with pytest.raises(SnapshotUnusable):
        twin.restore([whole, whole])
    with pytest.raises(SnapshotUnusable):
        Broker(SETTINGS).restore(Broker(_another_partition()).snapshot())


def _another_partition() -> BrokerSettings:
    return BrokerSettings(prg=1, prg_count=3, topic_partition=_hash, session_partition=_hash)
