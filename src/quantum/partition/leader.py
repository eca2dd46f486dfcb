"""One partition as this node serves it: while it leads, its sessions run here.

Everything that one turn of the loop brings becomes few commands and one entry of the log. What
the machine gives back for an entry is carried out when the group allows its acknowledgement.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import TYPE_CHECKING, Final, TypeAlias

from clustor.replica import Applied, Refused, ReplicaOutput, RequestId
from clustor.runtime.containment import end_alone
from clustor.runtime.group import HostedGroup
from quantum.broker import (
    OWN_ORIGIN,
    Acknowledge,
    Broker,
    ChannelAcked,
    Elapse,
    Ended,
    FanOut,
    LeaderStarted,
    Message,
    PublishOnce,
    Release,
    RemoveSession,
    RingChanged,
    Send,
    SendPubrec,
    SendPubrel,
    SendVolatile,
    Target,
    decode_refusals,
    encode_command,
    encode_publishes,
    split_command,
)
from quantum.broker.items import Forward, Item
from quantum.broker.limiting import is_over_quota
from quantum.broker.parts import PART_BYTES_MAX, is_part
from quantum.broker.sharing import share_key
from quantum.broker.types import TRANSFER
from quantum.partition.backpressure import BACKLOG_BYTES_MAX, Level
from quantum.partition.batches import Done, Forwards, OpenRuns, Run, cuts
from quantum.partition.gate import OPEN, Operation, Standing, hold_reason, refusals
from quantum.partition.quota_share import PolicyKeeper
from quantum.partition.ring_change import RingKeeper
from quantum.partition.transfers import StreamIn, StreamOut
from quantum.protocols.mqtt.codec import ReasonCode
from quantum.protocols.mqtt.session.client_wire import PLACE
from quantum.protocols.mqtt.session.delivery import Outgoing

if TYPE_CHECKING:
    from quantum.node.tenant import Tenant
    from quantum.protocols.mqtt.session.connection import Connection

Completion: TypeAlias = Callable[[bytes | None], None]
"""Called once with a command's reply, or with None when it is not known, or never happened."""

_FORGOTTEN: Final = (0, b"", None)
_TOO_LARGE: Final = "TooLarge"
_PARTS_OPEN_MAX: Final = 2
_ELAPSE_TICKS: Final = 10
_RESEND_TICKS: Final = 50

journal = logging.getLogger("quantum.broker")


class Prg:
    """A partition of a tenant's ring, with its replica on this node."""

    def __init__(self, tenant: Tenant, number: int, group: HostedGroup) -> None:
        self.tenant = tenant
        self.number = number
        self.group = group
        self.leading = False
        """Whether this node's replica leads, and knows that every older connection is gone."""
        self.term = 0
        self.connections: dict[bytes, Connection] = {}
        """The clients that are connected now, by their ids."""
        self.busy_clients: dict[bytes, int] = {}
        """Clients about whom something is on its way into the log, and how much."""
        self._starting = False
        self._next_request = 0
        self._pending: dict[int, tuple[int, bytes, Completion | None]] = {}
        self._sequence = 0  # of the last command that was submitted
        self._stalled: deque[tuple[int, bytes, Completion | None, bool]] = deque()
        """Commands that the group did not take now (it hands its leadership over, or has too much
        to do): they wait for the next tick, and later ones wait behind them. The first field is
        their place, the last one says whether the group's admission has to be asked."""
        self._behind_effects: list[Callable[[], None]] = []
        self._parts_open = 0  # parts of large commands that are on their way into the log
        self.backlog = Level(BACKLOG_BYTES_MAX, tenant.soon)
        """The bytes of all that waits for the log, here or with the owner of its topics."""
        self._commands: list[tuple[bytes, Completion | None]] = []
        self._records: list[bytes] = []
        self._records_bytes = 0
        self._runs = OpenRuns(0)
        self._passed: list[tuple[int, int, int, list[bytes], Done]] = []
        self._acknowledgements: list[tuple[bytes, int, int]] = []
        self._once: list[bytes] = []
        self._once_from: list[tuple[Connection, int]] = []
        self._releases: list[tuple[bytes, int]] = []
        self._releases_from: list[Connection] = []
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
        self.closed: Mapping[Operation, str] = OPEN
        """What clients may not ask for now, because of the control plane's copy or the group."""
        self.held = ""
        """Why no exchange with another partition goes on from here, or to here; empty: it does."""

    def stand(self, standing: Standing) -> None:
        """Take in how the partition stands; what was held goes on when nothing holds it."""
        self.closed = refusals(standing)
        held, self.held = self.held, hold_reason(standing)
        if held and not self.held:
            self.tenant.leadership_changed(self.number)
            self.peer_changed(None)

    @property
    def is_open(self) -> bool:
        """Whether the partition owns what the ring says: a fresh one does not at once."""
        return self.broker.state.is_open

    def serves(self, client_id: bytes) -> bool:
        """Say whether a client's session is here."""
        return self.leading and not self.broker.state.is_fenced(client_id)

    @property
    def stalled(self) -> int:
        """How many commands the group did not take yet."""
        return len(self._stalled)

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

    def unsettle(self, client_id: bytes) -> Callable[[], None]:
        """Note that something about a client is on its way into the log; call what is returned
        when it is over."""
        busy = self.busy_clients
        busy[client_id] = busy.get(client_id, 0) + 1

        def settled() -> None:
            left = busy[client_id] - 1
            if left:
                busy[client_id] = left
            else:
                del busy[client_id]

        return settled

    def propose(self, command: bytes, completion: Completion | None = None) -> None:
        """Let a command wait for the end of this turn."""
        self._commands.append((command, completion))
        self.tenant.touch(self)

    def publish(self, run: Run, records: list[bytes]) -> None:
        """Log publishes of sessions that live here, to topics that this partition owns."""
        self._runs.add(run)
        self._records += records
        self.tenant.touch(self)

    def publish_passed(
        self, origin: int, term: int, first: int, records: list[bytes], done: Done
    ) -> None:
        """Log publishes that another partition's leader passed on."""
        if not self.is_open or self.held:
            return  # its sender sends again
        self._passed.append((origin, term, first, records, done))
        self.tenant.touch(self)

    def forward(self, owner: int, run: Run, records: list[bytes]) -> None:
        """Pass publishes on to the partition that owns their topics."""
        forwards = self.forwards.get(owner)
        if forwards is None:
            forwards = self.forwards[owner] = Forwards(self, owner)
        forwards.add(run, records)
        self.tenant.touch(self)

    def publish_once(self, connection: Connection, packet_id: int, record: bytes) -> None:
        """Log a QoS 2 publish of a session that outlives its connection."""
        self._once.append(record)
        self._once_from.append((connection, packet_id))
        self.tenant.touch(self)

    def release(self, connection: Connection, packet_id: int) -> None:
        """Log the end of such an exchange."""
        self._releases.append((connection.client_id, packet_id))
        self._releases_from.append(connection)
        self.tenant.touch(self)

    def acknowledge(self, client_id: bytes, kind: int, packet_id: int) -> None:
        """Log what a client said of a message that the machine keeps."""
        self._acknowledgements.append((client_id, kind, packet_id))
        self.tenant.touch(self)

    def prepare(self) -> None:
        """Turn what this turn brought into commands."""
        if not self.leading:
            return
        now_ms, before = self.now_ms(), self._sequence
        if self._acknowledgements:
            acknowledgements, self._acknowledgements = self._acknowledgements, []
            self._submit(encode_command(Acknowledge(now_ms, acknowledgements)))
        if self._releases:
            self._submit_releases(now_ms)
        if self._once:
            self._submit_once(now_ms)
        if self._records:
            self._submit_records(now_ms)
        if self._passed:
            self._submit_passed(now_ms)
        if self._commands:
            commands, self._commands = self._commands, []
            for command, completion in commands:
                self._submit(command, completion)
        self._submit_taken(rides=self._sequence > before)
        if not self.held:
            for forwards in self.forwards.values():
                forwards.send()

    def _submit(
        self, command: bytes, completion: Completion | None = None, *, asks: bool = False
    ) -> None:
        """Give a command to the group. `asks`: a publish, which the group's admission may delay."""
        if len(command) > PART_BYTES_MAX:
            *first, command = split_command(command)
            for part in first:
                self._submit(part, asks=asks)
        self.backlog.add(len(command))
        self._sequence += 1
        if self._stalled or not self._takes_now(command, asks=asks):
            self._stalled.append((self._sequence, command, completion, asks))
        else:
            self._propose(self._sequence, command, completion)

    def _takes_now(self, command: bytes, *, asks: bool) -> bool:
        """Say whether the group takes a command now.

        Of large ones it gets a little at a time: a turn that writes and sends 16 MiB is long
        enough for others to believe that nobody leads.
        """
        is_one = is_part(command)
        if is_one and self._parts_open >= _PARTS_OPEN_MAX:
            return False
        if asks and not self.group.admission.admit(len(command)):
            return False
        self._parts_open += is_one
        return True

    def _submit_stalled(self) -> None:
        """Give the group what it did not take before, in order, as far as it takes it now."""
        while self._stalled:
            sequence, command, completion, asks = self._stalled[0]
            if not self._takes_now(command, asks=asks):
                break
            self._stalled.popleft()
            self._propose(sequence, command, completion)
        self.tenant.touch(self)

    def _stall_again(self, request_ids: list[RequestId]) -> None:
        """Let refused commands wait, before whatever was submitted after them.

        The order is kept because a run of publishes is finished by whichever of its commands is
        applied last: one that overtook another would acknowledge both.
        """
        for request in request_ids:
            self._parts_open -= is_part(self._pending[request][1])
        again = ((*self._pending.pop(request), False) for request in request_ids)
        self._stalled = deque(sorted((*self._stalled, *again), key=itemgetter(0)))

    def _propose(self, sequence: int, command: bytes, completion: Completion | None) -> None:
        self._next_request += 1
        self._pending[self._next_request] = (sequence, command, completion)
        self.group.replica.propose(RequestId(self._next_request), command)

    def _submit_releases(self, now_ms: int) -> None:
        releases, self._releases = self._releases, []
        owners, self._releases_from = self._releases_from, []

        def released(reasons: bytes | None) -> None:
            if reasons is not None:
                for connection, (_, packet_id) in zip(owners, releases, strict=True):
                    connection.send_pubcomp(packet_id)

        self._submit(encode_command(Release(now_ms, releases)), released)

    def _submit_once(self, now_ms: int) -> None:
        records, self._once = self._once, []
        owners, self._once_from = self._once_from, []
        for begin, end in cuts(records):
            chunk = records[begin:end]
            command = encode_command(PublishOnce(now_ms, chunk))
            taken = self.traced(chunk, _once_taken(owners[begin:end]))
            self._submit(command, taken, asks=True)

    def _submit_records(self, now_ms: int) -> None:
        records, self._records = self._records, []
        first = self._runs.next_number - len(records)
        for begin, end in cuts(records):
            chunk = records[begin:end] if (begin, end) != (0, len(records)) else records
            command = encode_publishes(now_ms, OWN_ORIGIN, 0, 0, chunk)
            done = self.traced(chunk, self._publishes_done(first + begin, first + end - 1))
            self._submit(command, done, asks=True)

    def _publishes_done(self, first: int, last: int) -> Completion:
        runs = self._runs

        def done(reply: bytes | None) -> None:
            refused = None if reply is None else decode_refusals(reply)
            if refused is not None:
                runs.finish(last, [(first + number, reason) for number, reason in refused])
            else:
                runs.lose(first, last)

        return done

    def _submit_passed(self, now_ms: int) -> None:
        passed, self._passed = self._passed, []
        for origin, term, first, records, done in passed:
            for begin, end in cuts(records):
                chunk = records[begin:end]
                command = encode_publishes(now_ms, origin, term, first + begin, chunk)
                passed_done = _passed_done(first + begin, first + end - 1, done)
                self._submit(command, self.traced(chunk, passed_done, passed=True), asks=True)

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

                self._submit(encode_command(ChannelAcked(stream.peer, stream.taken)), told)

    # Out of the log.

    def on_output(self, output: ReplicaOutput) -> None:
        """Take what the group put out in this turn."""
        replica = self.group.replica
        for outcome in output.replies:
            if isinstance(outcome, Applied):
                self._on_applied(outcome)
            elif isinstance(outcome, Refused) and outcome.reason != _TOO_LARGE:
                self._stall_again(outcome.request_ids)
            else:
                self._on_failed(outcome.request_ids)
        if replica.leads and replica.group.core.hard.term != self.term:
            self._begin(replica.group.core.hard.term)
        elif not replica.leads and (self.leading or self._starting):
            self._end("this node does not lead the session's partition any more")

    def _on_applied(self, applied: Applied) -> None:
        """Tell of each command and carry out its effects, in the order of the log."""
        pending = self._pending
        effects = iter(self.broker.take_effects_each(applied.index))
        for request, reply in zip(applied.request_ids, applied.replies, strict=True):
            _, command, completion = pending.pop(request, _FORGOTTEN)
            self.backlog.add(-len(command))
            if self._parts_open and is_part(command):
                self._parts_open -= 1
            if completion is not None:
                completion(reply)
            for effect in next(effects, ()):
                if type(effect) is FanOut:
                    self._fan_out(effect)
                else:
                    self._carry_out_guarded(effect)
            if self._behind_effects:
                behind, self._behind_effects = self._behind_effects, []
                for call in behind:
                    call()
        if self.leading:
            self._after_apply()

    def behind_effects(self, call: Callable[[], None]) -> None:
        """Let a completion's call come behind the effects of the command that is completed."""
        self._behind_effects.append(call)

    def _on_failed(self, request_ids: list[RequestId]) -> None:
        for request in request_ids:
            _, command, completion = self._pending.pop(request, _FORGOTTEN)
            self.backlog.add(-len(command))
            if completion is not None:
                completion(None)

    def _begin(self, term: int) -> None:
        """Lead: first of all the log learns that every older connection is gone."""
        if self.leading or self._starting:
            self._end("a new term began")
        self.term, self._starting = term, True
        self.broker.collect(True)  # noqa: FBT003  # a switch
        command = encode_command(LeaderStarted(self.now_ms(), term))
        self._submit(command, self._started)
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
        connections, self.connections = self.connections, {}
        self._commands, self._records, self._passed = [], [], []
        self._acknowledgements, self._once, self._once_from = [], [], []
        self._releases, self._releases_from = [], []
        self._runs = OpenRuns(0)
        self.forwards, self._streams_out, self._streams_in = {}, {}, {}
        self._waiters, self._pending, self._elapsing = [], {}, False
        self._stalled.clear()
        self._parts_open = 0
        self.backlog.clear()
        self.busy_clients = {}
        self.ring, self.policy = RingKeeper(self), PolicyKeeper(self)
        for connection in connections.values():
            connection.partition_moved(why)
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
        if self._stalled and (self._stalled[0][3] or is_part(self._stalled[0][1])):
            self._submit_stalled()  # what was applied made room

    def is_wanted(self, topic: bytes) -> bool:
        """Say whether anybody wants a topic that this partition owns, as far as is known here.

        A session that ends with its connection does not count any more when that is gone, even
        before the log knows; what another node knows better counts.
        """
        route = self.broker.route(topic)
        if route.is_empty and self.is_open:
            return False
        if route.shares or self.wants(topic):
            return True
        return any(self.tenant.prgs[number].wants(topic) for number in route.remotes)

    def wants(self, topic: bytes) -> bool:
        """Say whether a session of this partition wants a topic; True if it is led elsewhere."""
        if not self.leading or not self.is_open:
            return True
        route, connections = self.broker.route(topic), self.connections
        return bool(route.kept) or any(each.client_id in connections for each in route.volatile)

    # Effects.

    def _fan_out(self, effect: FanOut) -> None:
        outgoing = Outgoing(effect.message)
        connections = self.connections
        for target in effect.route.volatile:
            connection = connections.get(target.client_id)
            if connection is not None:
                _deliver_to(connection, target, outgoing)

    def fan_out(self, message: Message) -> None:
        """Deliver what needs no log to every connection here that wants it."""
        route = self.broker.route(message.topic)
        outgoing = Outgoing(message)
        for target in route.volatile:
            connection = self.connections.get(target.client_id)
            if connection is not None:
                _deliver_to(connection, target, outgoing)
        if message.qos == 0:
            for target in route.kept:
                connection = self.connections.get(target.client_id)
                if connection is not None:
                    _deliver_to(connection, target, outgoing)

    def fan_out_behind(self, origin: int, message: Message) -> None:
        """Deliver what needs no log behind all that came from its topic's partition before."""
        stream = self._streams_in.get(origin)
        if stream is None or not stream.hold(message):
            self.fan_out(message)

    def publish_unlogged(self, message: Message) -> None:
        """Deliver a QoS 0 message of a topic that this partition owns, here and elsewhere."""
        route = self.broker.route(message.topic)
        self.fan_out(message)
        for prg in route.remotes:
            self.tenant.deliver_unlogged(self.number, prg, message)
        for group in route.shares:
            member = group.pick_unlogged(share_key(self.broker.state, message))
            if member is not None:
                self.tenant.deliver_to_member(member, message)

    def deliver_to_member(
        self, client_id: bytes, epoch: int, identifier: int, message: Message
    ) -> None:
        """Deliver a QoS 0 message to a member of a shared subscription, if it is still the same."""
        connection = self.connections.get(client_id)
        if connection is not None and connection.epoch == epoch:
            connection.deliver(Outgoing(message), 0, 0, (identifier,) if identifier else ())

    def _carry_out_guarded(self, effect: object) -> None:
        """Carry an effect out; an error about one client ends its connection."""
        try:
            self._carry_out(effect)
        except Exception as error:
            client_id = getattr(effect, "client_id", None)
            connection = None if client_id is None else self.connections.get(client_id)
            if connection is None:
                raise
            end_alone(PLACE, connection, error)

    def _carry_out(self, effect: object) -> None:
        match effect:
            case Send():
                connection = self.connections.get(effect.client_id)
                if connection is not None:
                    connection.send_kept(effect.delivery, again=effect.again)
            case SendVolatile():
                connection = self.connections.get(effect.client_id)
                if connection is not None:
                    connection.deliver(
                        Outgoing(effect.message),
                        effect.qos,
                        effect.retain,
                        effect.identifiers,
                    )
            case SendPubrel():
                connection = self.connections.get(effect.client_id)
                if connection is not None:
                    connection.send_pubrel(effect.packet_id)
            case SendPubrec():
                connection = self.connections.get(effect.client_id)
                if connection is not None:
                    connection.answer_pubrec(effect.packet_id, 0)
            case Ended():
                connection = self.connections.get(effect.client_id)
                if connection is not None:
                    connection.session_ended(effect.epoch, effect.reason)
            case RingChanged():
                self._on_ring_changed()
            case _:
                raise AssertionError(effect)

    def _on_ring_changed(self) -> None:
        """Send clients away whose sessions moved; let everyone go on that waited for us."""
        state = self.broker.state
        journal.info(
            "partition %s/%d: ring %d has %d partitions",
            *(self.tenant.name, self.number, state.routing_epoch, state.prg_count),
        )
        for client_id in [each for each in self.connections if state.is_fenced(each)]:
            self.connections.pop(client_id).partition_moved("the session moved")
        self.tenant.note_ring()
        self.tenant.opened(self)

    def kick(self, client_id: bytes) -> bool:
        """End a session because an operator wants it; say whether it is served here."""
        if not self.leading:
            return False
        connection = self.connections.get(client_id)
        known = client_id in self.broker.state.sessions
        if connection is not None:
            connection.disconnect(ReasonCode.ADMINISTRATIVE_ACTION, "ended by an operator")
        if known:
            self.propose(encode_command(RemoveSession(self.now_ms(), client_id)))
        return known or connection is not None

    # Streams.

    def receive_items(self, origin: int, first: int, items: list[Item], base: int) -> None:
        """Take items of another partition's stream; it knows that we have all up to `base`."""
        if origin < TRANSFER and not self.is_open:
            return  # they come again when it is
        stream = self._streams_in.get(origin)
        if stream is None:
            stream = self._streams_in[origin] = StreamIn(self, origin)
        stream.receive(first, self.unheld(items), base)

    def note_held(self, owner: int, reason: str) -> None:
        """Take in that another partition holds what was passed on to it."""
        forwards = self.forwards.get(owner)
        if forwards is not None:
            forwards.held = reason

    def unheld(self, items: list[Item]) -> list[Item]:
        """Return the items before the first that passes a publish on, while those are held."""
        if not self.held:
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
        if self._stalled:
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
                self.forward_wait_ticks += forwards.waited_ticks > 1
                if forwards.waited_ticks >= _RESEND_TICKS:
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


def _deliver_to(connection: Connection, target: Target, outgoing: Outgoing) -> None:
    """Deliver to one client; its error ends its connection, and the others get theirs."""
    try:
        connection.deliver_to(target, outgoing)
    except Exception as error:  # noqa: BLE001
        end_alone(PLACE, connection, error)


def _once_taken(owners: list[tuple[Connection, int]]) -> Completion:
    def taken(reply: bytes | None) -> None:
        for number, reason in (decode_refusals(reply) or ()) if reply else ():
            connection, packet_id = owners[number]
            connection.answer_pubrec(packet_id, reason)

    return taken


def _passed_done(first: int, last: int, done: Done) -> Completion:
    def applied(reply: bytes | None) -> None:
        refused = None if reply is None else decode_refusals(reply)
        if refused is not None:  # else it comes again, behind what was lost
            done(first, last, [(first + number, reason) for number, reason in refused])

    return applied
