"""A control-plane group and a data group, moved together: real replicas, fake links.

Every node, those of the control plane too, has a copy of the control plane and a publisher of
its proofs. A copy is confirmed by an entry: the control plane's leader commits a read behind the
question, and answers from its machine when it has applied it. What a link that is down carries is
lost. The seed is the whole run.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from clustor.control import (
    CacheCursor,
    Caller,
    ClockReading,
    Command,
    ControlCache,
    ControlMachine,
    Done,
    Members,
    MembershipFacts,
    Placement,
    PlacePartition,
    ProofPublisher,
    RegisterNode,
    decode_answer,
    encode_call,
    find,
    membership_report,
    membership_request,
    signed_command,
    verdicts_of,
)
from clustor.control.draft import scan_records
from clustor.kv import Get, Key, StoreId, encode_command
from clustor.log.types import PartitionId
from clustor.raft.control_plane import CacheState
from clustor.raft.errors import MembershipRefused
from clustor.raft.fallback import StrictFallback
from clustor.raft.profiles import (
    CONSISTENCY_PROFILE,
    ControlPlaneNumbers,
    FallbackNumbers,
    MembershipNumbers,
    Profile,
)
from clustor.raft.reconfiguration import ReconfigurationPhase
from clustor.raft.types import ReplicaId
from clustor.replica import (
    Applied,
    ReadDenied,
    ReadReady,
    ReplicaSettings,
    RequestId,
)
from tests.clustor.control.plane import OPERATOR, PROOF_KEY, genesis, node_identity
from tests.clustor.replica.harness import TICK_MS, Cluster, Node, put

DATA = PartitionId(7)
CONTROL = PartitionId(100)
CONTROL_NODES = 10  # replica n of the control plane's group is node 10 + n
NUMBERS = ControlPlaneNumbers(
    cache_fresh_ms=1_000,
    cache_grace_ms=4_000,
    durability_proof_ttl_ms=6_000,
    proof_publish_period_ms=200,
)
PROFILE: Profile = replace(
    CONSISTENCY_PROFILE,
    control_plane=NUMBERS,
    membership=MembershipNumbers(
        catchup_index_slack=8, catchup_slack_bytes=512, catchup_timeout_ms=1_000, finalize_window=4
    ),
    fallback=FallbackNumbers(
        local_only_demote_ms=8_000,
        recampaign_backoff_ms=1_000,
        recampaign_jitter_ms=200,
        no_leader_grace_ms=2_000,
    ),
)
POLL_MS = 200  # the loop of §14.2 scaled to these numbers
ANSWER_MS_MAX = 400
READ_MS_MAX = 600


class Group(Cluster):
    """A group whose control plane is the world's, not the harness's own stand-in."""

    def __init__(self, size: int, *, seed: int, control: bool, spares: int = 0) -> None:
        self._makes_control = control
        super().__init__(size, seed=seed, profile=PROFILE, spares=spares)

    def settings(self) -> ReplicaSettings:
        self.control_is_down = True  # the stand-in stays silent
        settings = super().settings()
        if not self._makes_control:
            return settings
        return replace(settings, new_machine=lambda: ControlMachine(StoreId(b"control")))

    def apart(self, side: set[int]) -> None:
        """Cut these replicas off from the others; they hear each other as little."""
        self.cut_off = {ReplicaId(each) for each in side}


@dataclass
class Side:
    """What one node keeps of the control plane, and what it asks of it."""

    node_id: int
    group: Group
    node: Node
    partition: PartitionId
    cache: ControlCache
    publisher: ProofPublisher
    reaches: set[int] = field(default_factory=set)  # replicas of the control plane
    next_poll_ms: int = 0
    next_report_ms: int = 0
    publishes: bool = True
    seen_outputs: int = 0

    @property
    def fallback(self) -> StrictFallback:
        return self.node.up.group.access.fallback


@dataclass
class Asked:
    """A command that a replica of the control plane was asked to commit, and who waits for it."""

    side: Side | None
    replica: Node
    until_ms: int
    then: Callable[[bytes | None], None]


class World:
    """Time, both groups, and everything between them."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.control = Group(3, seed=seed, control=True)
        self.data = Group(3, seed=seed + 1, control=False, spares=1)
        self._asked: dict[RequestId, Asked] = {}
        self._requests = 1_000
        self.sides = {
            **{n: self._side(n, self.data, DATA, n) for n in (1, 2, 3, 4)},
            **{
                CONTROL_NODES + n: self._side(n, self.control, CONTROL, CONTROL_NODES + n)
                for n in (1, 2, 3)
            },
        }
        self.checks: list[Callable[[], None]] = []
        self.acknowledged = 0
        self.answer_loss = 0.0  # how many answers to operators get lost on their way
        self._found()

    def _side(self, replica: int, group: Group, partition: PartitionId, node_id: int) -> Side:
        return Side(
            node_id,
            group,
            group.nodes[ReplicaId(replica)],
            partition,
            ControlCache(NUMBERS),
            ProofPublisher(node_id, f"life{node_id}", NUMBERS),
            reaches={1, 2, 3},
        )

    # Time.

    @property
    def now(self) -> ClockReading:
        return ClockReading(self.control.now_ms, 1_700_000_000_000 + self.control.now_ms)

    def run(self, duration_ms: int) -> None:
        for _ in range(duration_ms // TICK_MS):
            self.control.run(TICK_MS)
            self.data.run(TICK_MS)
            self._outcomes()
            for side in self.sides.values():
                if side.node.replica is not None:
                    self._step(side)
            for check in self.checks:
                check()

    def run_until(self, holds: Callable[[], object], limit_ms: int) -> int:
        """Run until something holds; return how long it took, or fail."""
        started = self.control.now_ms
        while not holds():
            assert self.control.now_ms - started < limit_ms, "it never came to that"
            self.run(TICK_MS)
        return self.control.now_ms - started

    # Asking the control plane.

    def _control_leader(self, side: Side | None) -> Node | None:
        """Find the leader as a node does that may reach only some replicas."""
        reachable = side.reaches if side is not None else {1, 2, 3}
        for replica in sorted(reachable):
            node = self.control.nodes[ReplicaId(replica)]
            if node.replica is not None and node.up.leads:
                return node
        return None

    def ask(self, side: Side | None, command: bytes, then: Callable[[bytes | None], None]) -> None:
        """Propose to whoever says that it leads; `then` gets the reply, or None."""
        leader = self._control_leader(side)
        if leader is None:
            then(None)
            return
        self._requests += 1
        request_id = RequestId(self._requests)
        self._asked[request_id] = Asked(side, leader, self.now.monotonic_ms + ANSWER_MS_MAX, then)
        self.control.propose(leader, (request_id, command))

    def _outcomes(self) -> None:
        for node in self.control.nodes.values():
            for outcome in node.outcomes:
                replies = outcome.replies if isinstance(outcome, Applied) else None
                for number, request_id in enumerate(outcome.request_ids):
                    self._answer(request_id, replies[number] if replies is not None else None)
            node.outcomes.clear()
        late = [r for r, each in self._asked.items() if self.now.monotonic_ms > each.until_ms]
        for request_id in late:
            self._answer(request_id, None)

    def _answer(self, request_id: RequestId, reply: bytes | None) -> None:
        asked = self._asked.pop(request_id, None)
        if asked is None:
            return
        side = asked.side
        if side is not None and asked.replica.id not in side.reaches:
            reply = None  # the link went down meanwhile
        if side is None and self.rng.random() < self.answer_loss:
            reply = None
        asked.then(reply)

    def call(self, command: Command, by: str = OPERATOR) -> dict[str, Any]:
        """Call as an operator does, and wait for the answer."""
        found: list[bytes | None] = []
        self._requests += 1
        call = encode_call(Caller(identity=by), f"op{self._requests}", self.now.unix_ms, command)
        self.ask(None, call, found.append)
        self.run_until(lambda: bool(found), 3_000)
        assert found[0] is not None, "no control plane"
        answer = decode_answer(found[0])
        assert isinstance(answer, Done), answer
        return answer.result

    def insist(self, command: Command, by: str = OPERATOR) -> dict[str, Any]:
        """Call until there is an answer, under one request id: it is done once."""
        self._requests += 1
        request_id = f"op{self._requests}"
        for _ in range(50):
            found: list[bytes | None] = []
            call = encode_call(Caller(identity=by), request_id, self.now.unix_ms, command)
            self.ask(None, call, found.append)
            self.run_until(found.__len__, 3_000)
            if found[0] is not None:
                answer = decode_answer(found[0])
                assert isinstance(answer, Done), answer
                return answer.result
            self.run(TICK_MS)
        raise AssertionError("the control plane never answered")

    # One node's turn.

    def _step(self, side: Side) -> None:
        self._hear_group(side)
        if self.now.monotonic_ms >= side.next_poll_ms:
            side.next_poll_ms = self.now.monotonic_ms + POLL_MS
            self._poll(side)
        self._publish(side)

    def _hear_group(self, side: Side) -> None:
        outputs = side.node.outputs
        for output in outputs[side.seen_outputs :]:
            if output.publish_proof is not None:
                side.publisher.wish(side.partition, output.publish_proof)
        side.seen_outputs = len(outputs)
        if not side.node.up.leads:
            side.publisher.forget(side.partition)

    def _poll(self, side: Side) -> None:
        asked = self.now
        leader = self._control_leader(side)
        if leader is None:
            self._poll_follower(side, asked)
            return

        def then(reply: bytes | None) -> None:
            if reply is not None and leader.replica is not None and side.node.replica is not None:
                self._fold(side, leader, asked, confirmed=True)

        self.ask(side, encode_command(Get(Key(b"cluster/config"))), then)

    def _poll_follower(self, side: Side, asked: ClockReading) -> None:
        """Take what a replica knows that cannot confirm anything."""
        for replica in sorted(side.reaches):
            node = self.control.nodes[ReplicaId(replica)]
            if node.replica is not None:
                self._fold(side, node, asked, confirmed=False)
                return

    def _fold(self, side: Side, source: Node, asked: ClockReading, *, confirmed: bool) -> None:
        kv = machine_of(source).kv
        cache = side.cache
        if cache.cursor is None:
            cursor = CacheCursor(kv.store_id, kv.revision)
            cache.listed(cursor, scan_records(kv, b""), asked=asked, confirmed=confirmed)
        else:
            found = kv.events_since(cache.cursor.revision, limit=50)
            cache.polled(found, store_id=kv.store_id, asked=asked, confirmed=confirmed)
        self.tell(side)

    def tell(self, side: Side) -> None:
        word = side.cache.word_for(side.partition, self.now)
        if word is None:
            return
        replica = side.node.up
        if word.reconciled:
            replica.group.proof_conflict_reconciled()
        for update in word.updates:
            replica.control_plane(update)
        if word.membership_ack is not None:
            replica.membership_acknowledged(word.membership_ack)
        if replica.leads:
            self._steer(side)
        side.group.turn(side.node)

    def _steer(self, side: Side) -> None:
        """Let a leader follow the placement, and report where it has come."""
        if side.partition == CONTROL:
            return  # its replicas have other numbers than its nodes; it does not move here
        placement = find(side.cache, Placement, side.partition)
        if placement is None or self.now.monotonic_ms < side.next_report_ms:
            return
        group = side.node.up.group
        facts = MembershipFacts(
            group.core.hard.membership,
            group.core.hard.routing_epoch,
            group.core.hard.durability_mode_epoch,
            is_idle=group.leadership.reconfiguration.phase is ReconfigurationPhase.IDLE,
            wants_record=not group.leadership.membership_acknowledged(),
            proven=group.access.control.proof,
        )
        request = membership_request(placement, facts)
        report = membership_report(placement, facts, side.node_id)
        if request is not None:
            with contextlib.suppress(MembershipRefused):
                side.node.up.change_membership(request)
        elif report is not None:
            side.next_report_ms = self.now.monotonic_ms + ANSWER_MS_MAX
            self._requests += 1
            caller = Caller(identity=node_identity(side.node_id))
            call = encode_call(caller, f"m{self._requests}", self.now.unix_ms, report)
            self.ask(side, call, lambda _reply: None)

    def _publish(self, side: Side) -> None:
        if not side.publishes:
            return
        now_ms = self.now.monotonic_ms
        batch = side.publisher.take(now_ms)
        if batch is None:
            return
        command = signed_command(batch, PROOF_KEY, "p1", self.now.unix_ms)
        caller = Caller(identity=node_identity(side.node_id))
        call = encode_call(caller, batch.request_id, self.now.unix_ms, command)

        def then(reply: bytes | None) -> None:
            answer = decode_answer(reply) if reply is not None else None
            if not isinstance(answer, Done):
                side.publisher.failed(batch.request_id)
                return
            verdicts = verdicts_of([each for each, _ in batch.wishes], answer.result)
            side.publisher.answered(batch.request_id, verdicts, self.now.monotonic_ms)

        self.ask(side, call, then)

    # Beginnings.

    def _found(self) -> None:
        self.run_until(lambda: self._control_leader(None) is not None, 3_000)
        self.call(genesis())
        for number in self.sides:
            node = RegisterNode(
                node_id=number,
                identity=node_identity(number),
                zone=f"z{number % 3}",
                address=f"n{number}:1",
                capacity=100,
            )
            self.call(node)
        for partition, voters in ((DATA, (1, 2, 3)), (CONTROL, (11, 12, 13))):
            members = Members(voters=voters)
            self.call(
                PlacePartition(
                    partition_id=partition, members=members, load=1, expected_routing_epoch=0
                )
            )

    # What tests ask.

    def data_leader(self) -> Side | None:
        sides = [side for side in self.sides.values() if side.partition == DATA]
        leading = [side for side in sides if side.node.replica is not None and side.node.up.leads]
        return max(leading, key=lambda side: side.node.up.group.core.hard.term, default=None)

    def led(self) -> Side:
        self.run_until(lambda: self.data_leader() is not None, 5_000)
        leader = self.data_leader()
        assert leader is not None
        return leader

    def healthy(self) -> bool:
        leader = self.data_leader()
        return leader is not None and not leader.fallback.asserted

    def writes(self, leader: Side) -> bool:
        """Write through the data group, and say whether it was acknowledged."""
        self._requests += 1
        request_id = RequestId(self._requests)
        self.data.propose(leader.node, (request_id, put(f"k{request_id}", "v")))
        self.run(TICK_MS * 5)
        done = any(
            request_id in outcome.request_ids
            for outcome in leader.node.outcomes
            if isinstance(outcome, Applied)
        )
        self.acknowledged += done
        return done

    def reads(self, leader: Side) -> ReadReady | ReadDenied:
        """Ask the leader for a linearizable read, and wait for its answer."""
        self._requests += 1
        request_id = RequestId(self._requests)
        leader.node.up.read(request_id, self.data.now_ms + READ_MS_MAX)
        leader.group.turn(leader.node)
        found: list[ReadReady | ReadDenied] = []

        def answered() -> bool:
            found.extend(each for each in leader.node.reads if each.request_id == request_id)
            return bool(found)

        self.run_until(answered, READ_MS_MAX + 200)
        return found[0]

    def placement(self) -> Placement:
        """Return the data group's placement as the control plane has it now."""
        machine = max(self.control_machines(), key=lambda each: each.kv.revision)
        held = find(machine.kv, Placement, DATA)
        assert held is not None, "not one replica of the control plane is up"
        return held

    def move(self, *voters: int) -> None:
        """Place the data group anew."""
        self.call(self._moving(voters))

    def try_move(self, *voters: int) -> None:
        """Ask for a move, whatever comes of it."""
        if not any(find(machine.kv, Placement, DATA) for machine in self.control_machines()):
            return  # nobody is there to be asked, or none who has read its log yet
        self._requests += 1
        caller = Caller(identity=OPERATOR)
        call = encode_call(caller, f"op{self._requests}", self.now.unix_ms, self._moving(voters))
        self.ask(None, call, lambda _reply: None)

    def _moving(self, voters: tuple[int, ...]) -> PlacePartition:
        return PlacePartition(
            partition_id=DATA,
            members=Members(voters=voters),
            load=1,
            expected_routing_epoch=self.placement().routing_epoch,
        )

    def cut_links(self, *node_ids: int) -> None:
        """Take the control plane from these nodes."""
        for node_id in node_ids:
            self.sides[node_id].reaches = set()

    def mend_links(self) -> None:
        for side in self.sides.values():
            side.reaches = {1, 2, 3}

    def cache_state(self, side: Side) -> CacheState:
        return side.cache.state(self.now)

    def control_machines(self) -> Iterator[ControlMachine]:
        for node in self.control.nodes.values():
            if node.replica is not None:
                yield machine_of(node)


def machine_of(node: Node) -> ControlMachine:
    machine = node.up.machine
    assert isinstance(machine, ControlMachine)
    return machine
