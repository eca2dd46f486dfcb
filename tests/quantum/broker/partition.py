"""One partition of the small world: replicas that apply one log, and the leader that drives it.

The leader does what a service does, on a network that loses, repeats and reorders: it moves the
items of channels, passes publishes on, and carries out effects. Everything it knows beside the
machine is gone when another replica takes over.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from quantum.broker import (
    OWN_ORIGIN,
    BeginRebalance,
    Broker,
    BrokerSettings,
    ChannelAcked,
    ChannelItems,
    Command,
    Effect,
    Elapse,
    FanOut,
    LeaderStarted,
    Message,
    RingChanged,
    RoutesFlushed,
    Send,
    SendPubrec,
    SendPubrel,
    SendVolatile,
    SessionEnd,
    decode_refusals,
    encode_command,
    encode_publishes,
)
from quantum.broker.items import Deliver, Item, decode_item, encode_item
from quantum.broker.message import decode_record
from quantum.broker.sections import SectionEffect
from quantum.broker.sharing import share_key
from quantum.broker.types import TRANSFER

if TYPE_CHECKING:
    from tests.quantum.broker.connection import Connection
    from tests.quantum.broker.world import World

Completion: TypeAlias = Callable[[bytes], None]
Refused: TypeAlias = Callable[[int], None]
"""Told the reason of one publish: 0 where it is acknowledged."""
ITEMS_PER_PACKET = 5


@dataclass
class Items:
    """A packet of a channel; `base` says what the sender's log knows to be there."""

    origin: int
    prg: int
    base: int
    first: int
    items: list[bytes]


@dataclass
class Taken:
    origin: int
    prg: int
    through: int


@dataclass
class Passed:
    """Publishes that a leader passes on."""

    origin: int
    owner: int
    term: int
    first: int
    records: list[bytes]


@dataclass
class PassedDone:
    origin: int
    owner: int
    term: int
    first: int
    last: int
    refused: list[tuple[int, int]]


Packet: TypeAlias = Items | Taken | Passed | PassedDone


@dataclass
class Forwards:
    """What a leader passed on and has no answer to: number → (record, who waits)."""

    next_number: int = 1
    open: dict[int, tuple[bytes, Refused]] = field(default_factory=dict)


class Partition:
    """Replicas of one partition and, while it leads, what its leader knows."""

    def __init__(self, world: World, number: int, replicas: int, settings: BrokerSettings) -> None:
        self.world = world
        self.number = number
        self.settings = settings
        self.brokers = [Broker(settings) for _ in range(replicas)]
        self.early = False
        self.index = 0
        self.term = 0
        self.leader = 0
        self.log: list[list[bytes]] = []
        self._forget()
        self.lead(0)

    def _forget(self) -> None:
        self.pending: list[tuple[bytes, Completion | None]] = []
        self.connections: dict[bytes, Connection] = {}
        self.dialing: list[Connection] = []
        """Those whose Attach is on its way."""
        self.forwards: dict[int, Forwards] = {}
        self.cursors: dict[int, int] = {}
        self.taken: dict[int, int] = {}
        self.carried: dict[int, int] = {}
        self.held: list[tuple[int, int, Message]] = []
        """QoS 0 that waits behind a place of another partition's channel."""
        self.early = self.world.rng.random() < 0.3
        self.flush_at: dict[int, int] = {}
        """Up to which number what was passed on by the old ring must be answered."""
        self.waiters: deque[tuple[list[tuple[int, int]], Callable[[], None]]] = deque()

    @property
    def broker(self) -> Broker:
        return self.brokers[self.leader]

    def lead(self, replica: int) -> None:
        """Let a replica take over: what its predecessor had begun is committed, or lost."""
        rng = self.world.rng
        lost = rng.randrange(len(self.pending) + 1) if self.pending else 0
        committed = self.pending[: len(self.pending) - lost]
        for connection in [*self.connections.values(), *self.dialing]:
            connection.break_off()
        self._forget()
        self.broker.collect(wanted=False)
        self.pending = [(command, None) for command, _ in committed]
        self.commit()
        self.leader = replica
        self.term += 1
        self.broker.collect(wanted=True)
        self.propose(LeaderStarted(self.world.now_ms, self.term))
        self.propose(self.world.plan.policy(self.world.now_ms))
        self.commit()

    # The log.

    def propose(self, command: Command, done: Completion | None = None) -> None:
        self.pending.append((encode_command(command), done))

    def propose_publishes(self, records: list[bytes], done: Completion | None) -> None:
        self.pending.append((encode_publishes(self.world.now_ms, OWN_ORIGIN, 0, 0, records), done))

    def commit(self) -> None:
        """Make one entry of what waits; every replica applies it and must stay equal."""
        if not self.pending:
            return
        pending, self.pending = self.pending, []
        self.index += self.world.rng.choice((1, 1, 1, 3))
        commands = [command for command, _ in pending]
        self.log.append(commands)
        replies = [broker.apply_batch(self.index, commands) for broker in self.brokers]
        assert all(each == replies[0] for each in replies), "replies differ"
        self.check_digests()
        effects = self.broker.take_effects_each(self.index) or [[]] * len(pending)
        for (_, done), reply, of_command in zip(
            pending, replies[self.leader], effects, strict=True
        ):
            if done is not None:
                done(reply)
            for effect in of_command:
                self._carry_out(effect)
            self._deliver_held()
        self._check_waiters()

    def check_digests(self) -> None:
        if self.world.checks_digests:
            digests = {broker.digest() for broker in self.brokers}
            assert len(digests) == 1, "replicas differ"

    def replace_replica(self, replica: int) -> None:
        """Let a replica begin from another one's snapshot, which is read in odd pieces."""
        source = self.brokers[self.world.rng.randrange(len(self.brokers))]
        whole = b"".join(source.snapshot())
        cut = self.world.rng.randrange(len(whole))
        fresh = Broker(self.settings)
        fresh.restore([whole[:cut], whole[cut:]])
        fresh.collect(wanted=replica == self.leader)
        self.brokers[replica] = fresh
        self.check_digests()

    # Effects.

    def _carry_out(self, effect: Effect) -> None:
        if isinstance(effect, RingChanged):
            self._on_ring(effect.prg_count)
            return
        if isinstance(effect, FanOut):
            for target in effect.route.volatile:
                connection = self.connections.get(target.client_id)
                if connection is not None:
                    connection.fan_out(target, effect.message)
            return
        if isinstance(effect, SectionEffect):
            return  # sections have desks of their own
        connection = self.connections.get(effect.client_id)
        if connection is None:
            return
        match effect:
            case Send():
                connection.send_kept(effect.delivery, again=effect.again)
            case SendVolatile():
                connection.send_volatile(
                    effect.message, effect.qos, effect.retain, effect.identifiers
                )
            case SendPubrel():
                connection.to_client.append(("PUBREL", effect.packet_id))
            case SendPubrec():
                connection.to_client.append(("PUBREC", effect.packet_id, 0))
            case SessionEnd():
                connection.session_ended(effect.epoch)

    # The ring grows.

    @property
    def prg_count(self) -> int:
        """The ring that the leader routes by: its log's, or a newer one that it heard of."""
        counts = self.world.counts if self.early else []
        return max([self.broker.state.prg_count, *counts])

    def admits(self, client_id: bytes) -> bool:
        """Say whether a client may connect here, as far as the leader knows."""
        is_home = self.world.home(client_id, self.broker.state.prg_count) == self.number
        return self.broker.state.is_open and is_home

    def _on_ring(self, count: int) -> None:
        self.flush_at = {owner: each.next_number for owner, each in self.forwards.items()}
        for connection in [*self.connections.values(), *self.dialing]:
            client_id = connection.client.client_id
            if self.world.home(client_id, count) != self.number:
                self.connections.pop(client_id, None)
                connection.break_off()

    def rebalance(self) -> None:
        """Do the leader's part: begin when it is wanted, and say when nothing old is open."""
        state = self.broker.state
        move = state.move
        if move is None:
            epoch, rings = state.routing_epoch, self.world.rings
            if state.is_open and epoch < len(rings) and not state.routes.blind:
                self.propose(BeginRebalance(self.world.now_ms, epoch + 1, rings[epoch]))
        elif state.is_open and not move.is_flushed and not self._passes_to(move.old_count):
            self.propose(RoutesFlushed(self.world.now_ms, move.routing_epoch))

    def _passes_to(self, old_count: int) -> bool:
        """Say whether something that was passed on by the old ring has no answer."""
        return any(
            min(self.forwards[owner].open, default=number) < number
            for owner, number in self.flush_at.items()
            if owner < old_count
        )

    # What is not logged.

    def publish_unlogged(self, message: Message) -> None:
        """Deliver a QoS 0 message of a topic that this partition owns, here and elsewhere."""
        route = self.broker.route(message.topic)
        self.fan_out_unlogged(message)
        for prg in route.remotes:
            place = self.broker.state.channels.to(prg).last
            self.world.partitions[prg].fan_out_behind(self.number, place, message)
        for group in route.shares:
            member = group.pick_unlogged(share_key(self.broker.state, message))
            if member is not None:
                connections = self.world.partitions[member.prg].connections
                connection = connections.get(member.client_id)
                if connection is not None and connection.epoch == member.epoch:
                    connection.send_unlogged(message, group.name)

    def fan_out_unlogged(self, message: Message) -> None:
        route = self.broker.route(message.topic)
        for target in route.volatile + route.kept:
            connection = self.connections.get(target.client_id)
            if connection is not None:
                connection.fan_out(target, message)

    def fan_out_behind(self, origin: int, place: int, message: Message) -> None:
        """Deliver a QoS 0 message behind what its topic's partition sent before."""
        if self.through(origin) >= place:
            self.fan_out_unlogged(message)
        else:
            self.held.append((origin, place, message))

    def through(self, origin: int) -> int:
        """Up to where a channel was carried out here, or by an older leader."""
        return max(self.carried.get(origin, 0), self.broker.state.channels.counted.get(origin, 0))

    def _carried(self, origin: int, through: int) -> None:
        """Note how far a channel was carried out; what waits for that comes behind the effects."""
        self.carried[origin] = max(through, self.through(origin))

    def _deliver_held(self) -> None:
        held, self.held = self.held, []
        for each_origin, place, message in held:
            self.fan_out_behind(each_origin, place, message)

    # Channels.

    def send_channels(self) -> None:
        """Send, again and again, what other partitions have not taken."""
        for prg, outbox in self.broker.state.channels.outboxes().items():
            taken = self.taken.get(prg, 0)
            if taken > outbox.acked_through:
                self.propose(ChannelAcked(prg, taken))
            begin: int = outbox.acked_through
            if self.world.rng.random() < 0.5:
                begin = max(begin, taken)
            items = outbox.after(begin, ITEMS_PER_PACKET * 2)
            for at in range(0, len(items), ITEMS_PER_PACKET):
                encoded = [encode_item(item) for item in items[at : at + ITEMS_PER_PACKET]]
                origin = self.number + prg // TRANSFER * TRANSFER
                place = begin + at + 1
                self.world.send(Items(origin, prg % TRANSFER, outbox.acked_through, place, encoded))

    def on_items(self, packet: Items) -> None:
        """Take what is the next part of a channel; what nobody has to remember is not logged."""
        if not self.broker.state.is_open and packet.origin < TRANSFER:
            return
        channels = self.broker.state.channels
        cursor = self.cursors.get(packet.origin, channels.counted.get(packet.origin, 0))
        cursor = max(cursor, packet.base)
        if packet.first > cursor + 1:
            return
        fresh = packet.items[cursor + 1 - packet.first :]
        # A link has one order: what was sent behind a QoS 0 message that waits came behind it.
        waits_at = [place for origin, place, _ in self.held if origin == packet.origin]
        fresh = fresh[: min((at - cursor for at in waits_at if at > cursor), default=len(fresh))]
        self.commit()  # what was begun before comes before
        if not fresh:
            self.world.send(Taken(packet.origin, self.number, cursor))
            return
        first = cursor + 1
        logged = [
            (first + nth, encoded)
            for nth, encoded in enumerate(fresh)
            if not self._only_connections_want(decode_item(encoded))
        ]
        self.cursors[packet.origin] = through = cursor + len(fresh)
        said = Taken(packet.origin, self.number, through)
        if not logged:
            self._carried(packet.origin, through)
            self._deliver_held()
            self.world.send(said)
            return

        def done(_reply: bytes) -> None:
            self._carried(packet.origin, through)
            self.world.send(said)

        command = ChannelItems(
            self.world.now_ms,
            packet.origin,
            [place for place, _ in logged],
            [encoded for _, encoded in logged],
        )
        self.propose(command, done)

    def _only_connections_want(self, item: Item) -> bool:
        if not isinstance(item, Deliver) or not self.broker.state.is_open:
            return False
        message, _ = decode_record(item.record)
        route = self.broker.route(message.topic)
        if route.kept:
            return False
        self._carry_out(FanOut(route, message))
        return True

    # Publishes that are passed on.

    def forward(self, owner: int, record: bytes, answer: Refused) -> None:
        forwards = self.forwards.setdefault(owner, Forwards())
        forwards.open[forwards.next_number] = (record, answer)
        forwards.next_number += 1

    def send_forwards(self) -> None:
        for owner, forwards in self.forwards.items():
            numbers = sorted(forwards.open)[:8]
            if self.world.faulty and self.world.rng.random() < 0.3:
                numbers = numbers[len(numbers) // 2 :]  # as if the others were on their way
            while numbers and numbers[-1] - numbers[0] >= len(numbers):
                numbers.pop()  # some between them were answered: a packet has no gaps
            if numbers:
                records = [forwards.open[number][0] for number in numbers]
                self.world.send(Passed(self.number, owner, self.term, numbers[0], records))

    def on_passed(self, packet: Passed) -> None:
        if not self.broker.state.is_open:
            return
        command = encode_publishes(
            self.world.now_ms, packet.origin, packet.term, packet.first, packet.records
        )
        last = packet.first + len(packet.records) - 1

        def done(reply: bytes) -> None:
            refused = decode_refusals(reply)
            if refused is not None:
                self.world.send(
                    PassedDone(packet.origin, self.number, packet.term, packet.first, last, refused)
                )

        self.pending.append((command, done))

    def on_passed_done(self, packet: PassedDone) -> None:
        forwards = self.forwards.get(packet.owner)
        if forwards is None or packet.term != self.term:
            return
        reasons = {packet.first + nth: reason for nth, reason in packet.refused}
        for number in range(packet.first, packet.last + 1):
            waiting = forwards.open.pop(number, None)
            if waiting is not None:
                waiting[1](reasons.get(number, 0))

    # Waiting, and time.

    def when_taken(self, places: list[tuple[int, int]], then: Callable[[], None]) -> None:
        self.waiters.append((places, then))
        self._check_waiters()

    def _check_waiters(self) -> None:
        channels = self.broker.state.channels
        waiting, self.waiters = self.waiters, deque()
        for places, then in waiting:
            if all(channels.to(prg).acked_through >= place for prg, place in places):
                then()
            else:
                self.waiters.append((places, then))

    def elapse(self) -> None:
        due_ms = self.broker.next_deadline_ms()
        if due_ms is not None and due_ms <= self.world.now_ms:
            self.propose(Elapse(self.world.now_ms))


decode_reply = msgspec.msgpack.decode
