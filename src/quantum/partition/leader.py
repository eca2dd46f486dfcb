"""The leader's side of one partition: commands in, outcomes out, and the ways to its neighbours.

Everything that one turn of the loop brings becomes few commands and one entry of the log. What
the machine gives back for an entry is carried out when the group allows its acknowledgement: by
the protocol's family that an effect belongs to (`quantum.partition.ports`). No protocol is named
here, and nobody here knows who is connected.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

from clustor.replica import Applied, ReplicaOutput, RequestsRefused
from clustor.runtime.group import HostedGroup
from quantum.broker import (
    OWN_ORIGIN,
    Broker,
    ChannelAcked,
    Elapse,
    LeaderStarted,
    RingChanged,
    decode_refusals,
    encode_command,
    encode_publishes,
)
from quantum.broker.items import Forward, Item
from quantum.broker.limiting import is_over_quota
from quantum.broker.types import TRANSFER
from quantum.partition.backpressure import BACKLOG_BYTES_MAX, WatermarkLevel
from quantum.partition.batches import OpenBatches, PublishBatch, cuts
from quantum.partition.command_queue import CommandQueue
from quantum.partition.forwards import Forwards
from quantum.partition.gate import OPEN, ClientOperation, OperationGate, hold_reason, refusals
from quantum.partition.ports import Completion, Done, ProtocolFamily, RingPort
from quantum.partition.quota_share import PolicyKeeper
from quantum.partition.ring_change import RingKeeper
from quantum.partition.transfers import StreamIn, StreamOut

_TOO_LARGE: Final = "TooLarge"
_ELAPSE_TICKS: Final = 2
_RESEND_TICKS: Final = 10

journal = logging.getLogger("quantum.broker")


class PartitionLeader:
    """A partition of a tenant's ring, with its replica on this node."""

    def __init__(self, tenant: RingPort, number: int, group: HostedGroup) -> None:
        self.tenant = tenant
        self.number = number
        self.group = group
        self.leading = False
        """Whether this node's replica leads, and knows that every older connection is gone."""
        self.term = 0
        self._families: list[ProtocolFamily] = []
        self._handlers: dict[type, Callable[[Any], None]] = {RingChanged: self._on_ring_changed}
        """What carries out each kind of effect."""
        self._readers: dict[type, Callable[[Any], object | None]] = {}
        """What says of each kind of item whether it may do without the log."""
        self.askers: dict[int, Callable[[bytes, Completion], None]] = {}
        """Who logs commands of a section that clients here or elsewhere ask for, by its family."""
        self._starting = False
        self.applying_index = 0
        """The entry whose commands are being told of: completions may want to know."""
        self.backlog = WatermarkLevel(BACKLOG_BYTES_MAX, tenant.soon)
        """The bytes of all that waits for the log, here or with the owner of its topics."""
        self._queue = CommandQueue(group, self.backlog)
        self._behind_effects: list[Callable[[], None]] = []
        self._commands: list[tuple[bytes, Completion | None]] = []
        self._records: list[bytes] = []
        self._batches = OpenBatches(0)
        self._passed: list[tuple[int, int, int, list[bytes], Done]] = []
        self.forwards: dict[int, Forwards] = {}
        self._streams_out: dict[int, StreamOut] = {}
        self._streams_in: dict[int, StreamIn] = {}
        self._waiters: list[tuple[list[tuple[int, int]], Callable[[], None]]] = []
        self._elapsing = False
        self._ticks = 0
        self.forward_wait_ticks = 0
        """For how many ticks, added up, other partitions were waited for."""
        self.ring = RingKeeper(self)
        self.policy = PolicyKeeper(self)
        self.closed: Mapping[ClientOperation, str] = OPEN
        """What clients may not ask for now, because of the control plane's copy or the group."""
        self.blocked_reason = ""
        """Why no exchange with another partition goes on from here, or to here; empty: it does."""

    def register(self, family: ProtocolFamily) -> None:
        """Hand a protocol its part: its effects, its items, its turn, and the end."""
        taken = self._handlers.keys() & family.effects.keys()
        assert not taken, f"two families for one kind of effect: {taken}"
        self._families.append(family)
        self._handlers.update(family.effects)
        self._readers.update(family.unlogged)

    def pass_gate(self, gate: OperationGate) -> None:
        """Take in how the partition stands; what was blocked goes on when nothing blocks it."""
        self.closed = refusals(gate)
        blocked, self.blocked_reason = self.blocked_reason, hold_reason(gate)
        if blocked and not self.blocked_reason:
            self.tenant.leadership_changed(self.number)
            self.peer_changed(None)

    @property
    def is_open(self) -> bool:
        """Whether the partition owns what the ring says: a fresh one does not at once."""
        return self.broker.state.is_open

    @property
    def stalled(self) -> int:
        """How many commands the group did not take yet."""
        return self._queue.stalled

    @property
    def broker(self) -> Broker:
        machine = self.group.replica.machine
        assert isinstance(machine, Broker)
        return machine

    @property
    def is_over_quota(self) -> bool:
        """Whether it stores more than its part of the tenant's quota: publishers are slowed."""
        return is_over_quota(self.broker.state)

    @property
    def leader_node(self) -> int | None:
        """The node whose replica leads, as far as this one knows; a stopped one leads nothing."""
        replica = self.group.replica
        return None if replica.failed is not None else replica.leader_id

    def now_ms(self) -> int:
        return self.tenant.now_ms()

    # Into the log.

    def propose(self, command: bytes, completion: Completion | None = None) -> None:
        """Let a command wait for the end of this turn."""
        self._commands.append((command, completion))
        self.tenant.touch(self)

    def ask(self, command: bytes, completion: Completion) -> None:
        """Log a section's command as its family wants it done; it is answered as `propose` is."""
        self.askers.get(command[0], self.propose)(command, completion)

    def touch(self) -> None:
        """Have a turn soon: something waits."""
        self.tenant.touch(self)

    def submit(
        self, command: bytes, completion: Completion | None = None, *, asks: bool = False
    ) -> None:
        """Give the group a command of a family that prepares; `asks`: a publish, which the
        group's admission may delay."""
        self._queue.submit(command, completion, asks=asks)

    def publish(self, batch: PublishBatch, records: list[bytes]) -> None:
        """Log publishes of sessions that live here, to topics that this partition owns."""
        self._batches.add(batch)
        self._records += records
        self.tenant.touch(self)

    def publish_passed(
        self, origin: int, term: int, first: int, records: list[bytes], done: Done
    ) -> None:
        """Log publishes that another partition's leader passed on."""
        if not self.is_open or self.blocked_reason:
            return  # its sender sends again
        self._passed.append((origin, term, first, records, done))
        self.tenant.touch(self)

    def forward(self, owner: int, batch: PublishBatch, records: list[bytes]) -> None:
        """Pass publishes on to the partition that owns their topics."""
        forwards = self.forwards.get(owner)
        if forwards is None:
            forwards = self.forwards[owner] = Forwards(self, owner)
        forwards.add(batch, records)
        self.tenant.touch(self)

    def prepare(self) -> None:
        """Turn what this turn brought into commands."""
        if not self.leading:
            return
        now_ms, before = self.now_ms(), self._queue.sequence
        for family in self._families:
            family.prepare(now_ms)
        if self._records:
            self._submit_records(now_ms)
        if self._passed:
            self._submit_passed(now_ms)
        if self._commands:
            commands, self._commands = self._commands, []
            for command, completion in commands:
                self._queue.submit(command, completion)
        self._submit_taken(rides=self._queue.sequence > before)
        if not self.blocked_reason:
            for forwards in self.forwards.values():
                forwards.send()

    def _submit_records(self, now_ms: int) -> None:
        records, self._records = self._records, []
        first = self._batches.next_number - len(records)
        for begin, end in cuts(records):
            chunk = records[begin:end] if (begin, end) != (0, len(records)) else records
            command = encode_publishes(now_ms, OWN_ORIGIN, 0, 0, chunk)
            done = self.traced(chunk, self._publishes_done(first + begin, first + end - 1))
            self._queue.submit(command, done, asks=True)

    def _publishes_done(self, first: int, last: int) -> Completion:
        batches = self._batches

        def done(reply: bytes | None) -> None:
            refused = None if reply is None else decode_refusals(reply)
            if refused is not None:
                behind = [(first + number, reason) for number, reason in refused]
                batches.finish(last, behind, self.applying_index)
            else:
                batches.lose(first, last)

        return done

    def _submit_passed(self, now_ms: int) -> None:
        passed, self._passed = self._passed, []
        for origin, term, first, records, done in passed:
            for begin, end in cuts(records):
                chunk = records[begin:end]
                command = encode_publishes(now_ms, origin, term, first + begin, chunk)
                passed_done = self._passed_done(first + begin, first + end - 1, done)
                self._queue.submit(command, self.traced(chunk, passed_done, passed=True), asks=True)

    def _passed_done(self, first: int, last: int, done: Done) -> Completion:
        def applied(reply: bytes | None) -> None:
            refused = None if reply is None else decode_refusals(reply)
            if refused is not None:  # else it comes again, behind what was lost
                behind = [(first + number, reason) for number, reason in refused]
                done(first, last, behind, self.applying_index)

        return applied

    def traced(
        self, records: list[bytes], completion: Completion, *, passed: bool = False
    ) -> Completion:
        """Return what completes a command about these records, and tells of those traced."""
        traces = self.tenant.traces
        if traces is None:
            return completion
        return traces.watch_log(self, records, completion, passed=passed)

    def _submit_taken(self, *, rides: bool) -> None:
        """Write down how far the receivers of our streams got, one word at a time for each."""
        for stream in self._streams_out.values():
            if stream.must_tell(rides=rides):
                stream.tell()

                def told(_reply: bytes | None, stream: StreamOut = stream) -> None:
                    stream.telling = False
                    self.tenant.touch(self)  # more may have been taken meanwhile

                self._queue.submit(encode_command(ChannelAcked(stream.peer, stream.taken)), told)

    # Out of the log.

    def on_output(self, output: ReplicaOutput) -> None:
        """Take what the group put out in this turn."""
        replica = self.group.replica
        for outcome in output.replies:
            if isinstance(outcome, Applied):
                self._on_applied(outcome)
            elif isinstance(outcome, RequestsRefused) and outcome.reason != _TOO_LARGE:
                self._queue.stall_again(outcome.request_ids)
            else:
                self._queue.failed(outcome.request_ids)
        if replica.leads and replica.group.core.hard.term != self.term:
            self._begin(replica.group.core.hard.term)
        elif not replica.leads and (self.leading or self._starting):
            self._end("this node does not lead the session's partition any more")

    def _on_applied(self, applied: Applied) -> None:
        """Tell of each command and carry out its effects, in the order of the log."""
        queue, handlers = self._queue, self._handlers
        self.applying_index = applied.index
        effects = iter(self.broker.take_effects_each(applied.index))
        for request, reply in zip(applied.request_ids, applied.replies, strict=True):
            completion = queue.applied(request)
            if completion is not None:
                completion(reply)
            for effect in next(effects, ()):
                handlers[type(effect)](effect)
            if self._behind_effects:
                behind, self._behind_effects = self._behind_effects, []
                for call in behind:
                    call()
        if self.leading:
            self._after_apply()

    def behind_effects(self, call: Callable[[], None]) -> None:
        """Let a completion's call come behind the effects of the command that is completed."""
        self._behind_effects.append(call)

    def _begin(self, term: int) -> None:
        """Lead: first of all the log learns that every older connection is gone."""
        if self.leading or self._starting:
            self._end("a new term began")
        self.term, self._starting = term, True
        self.broker.collect(True)  # noqa: FBT003  # a switch
        command = encode_command(LeaderStarted(self.now_ms(), term))
        self._queue.submit(command, self._started)
        self.tenant.touch(self)

    def _started(self, reply: bytes | None) -> None:
        if reply is None or not self._starting:
            return
        self._starting, self.leading = False, True
        self.tenant.look_at(self)
        journal.info("partition %s/%d is served here", self.tenant.name, self.number)
        self.tenant.note_ring()
        self.tenant.leadership_changed(self.number)

    def _end(self, why: str) -> None:
        """Stop leading: connections end, and nothing that was begun here goes on here."""
        self.leading = self._starting = False
        self.broker.collect(False)  # noqa: FBT003  # a switch
        self._commands, self._records, self._passed = [], [], []
        self._batches = OpenBatches(0)
        self.forwards, self._streams_out, self._streams_in = {}, {}, {}
        self._waiters, self._elapsing = [], False
        self._queue.clear()
        self.ring, self.policy = RingKeeper(self), PolicyKeeper(self)
        for family in self._families:
            family.ended(why)
        self.tenant.leadership_changed(self.number)

    def _after_apply(self) -> None:
        for peer, outbox in self.broker.state.channels.outboxes().items():
            stream = self._streams_out.get(peer)
            if stream is None:
                stream = self._streams_out[peer] = StreamOut(self, peer)
            if outbox.items:
                stream.send()
        if self._waiters:
            self._check_waiters()
        if self._queue.may_go_on:
            self._submit_stalled()  # what was applied made room

    def _submit_stalled(self) -> None:
        self._queue.submit_stalled()
        self.tenant.touch(self)

    # Effects.

    def carry_out(self, effect: object) -> None:
        """Let the family that an effect belongs to carry it out."""
        self._handlers[type(effect)](effect)

    def carry_out_behind(self, origin: int, effect: object) -> None:
        """The same, behind all that came from another partition before."""
        stream = self._streams_in.get(origin)
        if stream is None or not stream.hold(effect):
            self.carry_out(effect)

    def read_unlogged(self, item: Item) -> object | None:
        """Return the effect of an item that nobody has to remember; None: it must be logged."""
        reader = self._readers.get(type(item))
        return None if reader is None else reader(item)

    def _on_ring_changed(self, _effect: RingChanged) -> None:
        """Let families look whose place is elsewhere now, and all go on that waited for us."""
        state = self.broker.state
        journal.info(
            "partition %s/%d: ring %d has %d partitions",
            *(self.tenant.name, self.number, state.routing_epoch, state.prg_count),
        )
        for family in self._families:
            family.ring_changed()
        self.tenant.note_ring()
        self.tenant.opened(self)

    # Streams.

    def receive_items(self, origin: int, first: int, items: list[Item], base: int) -> None:
        """Take items of another partition's stream; it knows that we have all up to `base`."""
        if origin < TRANSFER and not self.is_open:
            return  # they come again when it is
        stream = self._streams_in.get(origin)
        if stream is None:
            stream = self._streams_in[origin] = StreamIn(self, origin)
        stream.receive(first, self.unblocked(items), base)

    def note_blocked(self, owner: int, reason: str) -> None:
        """Take in that another partition holds what was passed on to it."""
        forwards = self.forwards.get(owner)
        if forwards is not None:
            forwards.blocked_reason = reason

    def unblocked(self, items: list[Item]) -> list[Item]:
        """Return the items before the first that passes a publish on, while those are blocked."""
        if not self.blocked_reason:
            return items
        at = next((n for n, item in enumerate(items) if type(item) is Forward), len(items))
        return items[:at]

    def items_taken(self, peer: int, through: int) -> None:
        """Another partition has our items up to a place; 0: it just opened, and has nothing."""
        if through == 0:
            self.peer_changed(peer)
        stream = self._streams_out.get(peer)
        if stream is not None:
            stream.on_taken(through)
            if stream.must_tell(rides=False):
                self.tenant.touch(self)
            if self._waiters:
                self._check_waiters()

    def when_taken(self, places: list[tuple[int, int]], then: Callable[[], None]) -> None:
        """Call `then` when other partitions have our streams up to these places."""
        self._waiters.append((places, then))
        self._check_waiters()

    def _has_taken(self, prg: int, place: int) -> bool:
        """Say whether another partition has our stream up to a place: by its own word, which is
        given when its log has it, or by ours."""
        stream = self._streams_out.get(prg)
        if stream is not None and stream.taken >= place:
            return True
        return self.broker.state.channels.to(prg).acked_through >= place

    def _check_waiters(self) -> None:
        waiting = []
        ready = []
        for places, then in self._waiters:
            if all(self._has_taken(prg, place) for prg, place in places):
                ready.append(then)
            else:
                waiting.append((places, then))
        self._waiters = waiting
        for then in ready:
            then()

    def peer_changed(self, prg: int | None) -> None:
        """A partition's leader changed, or the link to a node broke (None: any): send again."""
        for peer, stream in self._streams_out.items():
            if prg is None or peer % TRANSFER == prg:
                stream.send_again()
        for owner, forwards in self.forwards.items():
            if prg is None or owner == prg:
                forwards.send_again()
        if self.leading:
            self.tenant.touch(self)

    # Time.

    def on_tick(self) -> None:
        """Let due things happen, and what was lost or refused go again."""
        if self._queue.stalled:
            self._submit_stalled()
        if not self.leading:
            return
        self._ticks += 1
        for stream in self._streams_out.values():
            stream.on_tick()
            if self.broker.state.channels.to(stream.peer).items:
                stream.send()
        for forwards in self.forwards.values():
            if len(forwards):
                forwards.waited_ticks += 1
                forwards.silent_ticks += 1
                self.forward_wait_ticks += forwards.waited_ticks > 1
                if forwards.silent_ticks >= _RESEND_TICKS:
                    forwards.send_again()
                self.tenant.touch(self)
        if self.tenant.rings:
            self.ring.on_tick()
        self.policy.on_tick()
        if self._ticks % _ELAPSE_TICKS == 0 and not self._elapsing:
            due_ms = self.broker.next_deadline_ms()
            if due_ms is not None and due_ms <= self.now_ms():
                self._elapsing = True
                self.propose(encode_command(Elapse(self.now_ms())), self._elapsed)

    def _elapsed(self, _reply: bytes | None) -> None:
        self._elapsing = False
