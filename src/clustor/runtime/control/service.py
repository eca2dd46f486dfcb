"""The control plane on a real node: a replica of its group, and everything that hangs on it.

Any node takes calls and passes them to the leader; an answer comes after the entry is committed,
durable on a quorum and applied. Every node keeps a copy that it folds from its own replica and
that the leader confirms; the groups of the node hear from it. Nothing here decides about data:
where the control plane is gone, its copy ages, and the groups do what the age says.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Awaitable
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec

from clustor.control import (
    Answer,
    Caller,
    ClockReading,
    ClusterConfig,
    Command,
    ControlCache,
    ControlMachine,
    DraftReading,
    Feature,
    NodeSpec,
    NodeState,
    ProofPublisher,
    call_refusal,
    decode_answer,
    find,
    scan,
)
from clustor.control.commands import KIND_OF
from clustor.control.objects import canonical
from clustor.log.types import PartitionId
from clustor.raft.control_plane import CacheState
from clustor.raft.types import ReplicaId, RoutingEpoch
from clustor.replica import ReplicaOutput
from clustor.runtime.admin.status import group_status
from clustor.runtime.admin.status_shapes import ControlStatus
from clustor.runtime.containment import contained
from clustor.runtime.control.cache_file import SAVE_SECONDS, NodeCopy, moment
from clustor.runtime.control.client import Questions
from clustor.runtime.control.features import open_gates, tell_groups
from clustor.runtime.control.group_words import GroupWords
from clustor.runtime.control.leader_requests import Desk
from clustor.runtime.control.node_loop import Rounds, report_states
from clustor.runtime.control.placement import Steering, epoch_above
from clustor.runtime.control.proofs import OwnProofs, Proofs
from clustor.runtime.control.reconciler import Steward
from clustor.runtime.control.records import (
    CONTROL_PARTITION,
    Plan,
    cluster_records,
    members_of,
    new_machine,
    steward_of,
)
from clustor.runtime.control.wire import (
    Answered,
    Confirmed,
    Message,
    NewestAsked,
    Passed,
    decode_message,
    encode_message,
)
from clustor.runtime.errors import ControlUnavailable
from clustor.runtime.group import HostedGroup
from clustor.runtime.keys.signers import SignerKeeper
from clustor.runtime.kv.service import KvService
from clustor.runtime.pki.identity import NodeId
from clustor.security import KeyUse

if TYPE_CHECKING:
    from clustor.runtime.node import Node

CALL_SECONDS_MAX: Final = 5.0
_REFRESH_SECONDS_MAX: Final = 2.0
_CONFIRMED_MS_MAX: Final = 2_500  # a refresh takes a confirmation that others caused
_LOOK_SECONDS: Final = 0.01
_GATES_TICKS: Final = 20  # a second: for so long a gate that was opened or shut is not seen
_LOOK_AGAIN_MS: Final = 200  # at groups that are not as they are placed

journal = logging.getLogger("clustor.control")


class ControlService:
    """One node's part of the control plane: `call`, `reading`, `cache`, `status` are its face."""

    def __init__(self, node: Node, kv: KvService, signers: SignerKeeper) -> None:
        self._node = node
        self._kv = kv
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Future[None]] = set()
        self._number = node.serve(self, CONTROL_PARTITION)
        self.group = self._host()
        kv.serve(self.group)
        numbers = node.settings.profile.control_plane
        self._numbers = numbers
        self._copy = NodeCopy(node.data_root, numbers, self._now())
        self._questions = Questions(self._leader, self._send)
        incarnation = f"n{node.node_id}-{os.urandom(6).hex()}"
        self._incarnation = incarnation
        self._proofs = Proofs(
            ProofPublisher(node.node_id, incarnation, numbers),
            self._questions,
            self._spawn,
            node.now_ms,
        )
        self._own_proofs = OwnProofs()
        self._steering = Steering(
            node.node_id,
            self.call_for_node,
            self.call_as_steward,
            lambda: Feature.OBSERVER_ADMISSION in open_gates(self),
        )
        proof_key = signers.signers[KeyUse.CONTROL_PLANE_PROOF]
        self._desk = Desk(node, self.group, self._send, signers.proof_key_id, proof_key)
        self._rounds = Rounds(
            node,
            self._desk,
            signers,
            state=self.state,
            call_for_node=self.call_for_node,
            call_as_steward=self.call_as_steward,
            reading=self.reading,
        )
        self._steward = Steward(
            lambda: self.group.replica.leads,
            self.state,
            lambda: self._questions.ask(lambda number: NewestAsked(number, 0), CALL_SECONDS_MAX),
            self.call_as_steward,
        )
        self._steward.add(self._cluster)
        self._refreshing = asyncio.Event()
        self._saving = asyncio.Event()
        self._seen_tenants = 0
        self._words = GroupWords(
            node,
            self.group,
            lambda: self.cache,
            features=lambda group: tell_groups(self, (group,)),
            steer=self._steer,
        )
        self._seen_revision = -1
        self._look_again_ms = 0
        self._calls = 0
        self._ticks = 0

    def _host(self) -> HostedGroup:
        cluster = self._node.cluster
        voters = frozenset(map(ReplicaId, cluster.control_founders))
        return self._node.host(CONTROL_PARTITION, lambda: new_machine(cluster.birth), self, voters)

    # Beginning and end.

    def start(self) -> None:
        """Begin to refresh, to publish and, where this node leads, to see to the records."""
        self._node.watcher = self
        self._words.tell_all()
        for duty in (
            self._refresh_always,
            self._steward.run,
            self._save_always,
            self._rounds.run,
        ):
            self._spawn(contained.lasting("control plane", duty))

    async def close(self) -> None:
        """Stop what runs beside the loop, and keep the copy."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._copy.save()

    def _spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Future[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            contained.caught("control plane", "", error)

    # The face.

    @property
    def machine(self) -> ControlMachine:
        """This node's replica of the machine: what it has applied, however old that is."""
        machine = self.group.replica.machine
        assert isinstance(machine, ControlMachine)
        return machine

    @property
    def cache(self) -> ControlCache:
        """This node's confirmed copy: `find` and `scan` read it, `local_age` says how old it is."""
        return self._copy.cache

    def has_seen(self, revision: int) -> bool:
        """Say whether the copy has what was done up to a revision; 0 is none."""
        cursor = self.cache.cursor
        return cursor is not None and 0 < revision <= cursor.revision

    def state(self) -> DraftReading:
        """Return what this node's replica has applied, without asking anybody."""
        return self.machine.kv

    def local_age(self) -> int | None:
        """Return how many ms ago the copy was known to be whole; None: never in this life."""
        return self.cache.age_ms(self._now())

    def cache_state(self) -> CacheState:
        """Name the state of the copy by its age (clustor §14.2)."""
        return self.cache.state(self._now())

    async def call(
        self,
        command: Command,
        caller: Caller,
        request_id: str,
        *,
        seconds_max: float = CALL_SECONDS_MAX,
    ) -> Answer:
        """Carry out a command for a caller whose identity is proven; any node may be asked.

        What is answered `Done` is durable on a quorum. Repeated under its request id a call is
        done once and answered the same. Raises ControlUnavailable: no leader answered in time,
        or the copy of this node is too old for this command (clustor §14.2).
        """
        deadline = self._loop.time() + seconds_max
        await self._until_admitted(command, deadline)
        return await self._pass(command, caller, request_id, deadline - self._loop.time())

    async def reading(self, *, seconds_max: float = CALL_SECONDS_MAX) -> DraftReading:
        """Return a store that misses nothing committed before this call: a linearizable read.

        It is the local replica's: read from it before the next await. Raises ControlUnavailable.
        """
        deadline = self._loop.time() + seconds_max
        reply = await self._questions.ask(lambda number: NewestAsked(number, 0), seconds_max)
        assert isinstance(reply, Confirmed)
        while self.machine.kv.revision < reply.revision:
            if self._loop.time() >= deadline:
                raise ControlUnavailable("this replica is behind", wanted=reply.revision)
            await asyncio.sleep(_LOOK_SECONDS)
        return self.machine.kv

    def epoch_above(self, group: HostedGroup) -> RoutingEpoch:
        """Return an epoch for a change of members that is ordered at the group itself."""
        return epoch_above(group, self.cache)

    def draining(self) -> frozenset[int]:
        """Return which nodes shall lead nothing, by this node's copy."""
        return frozenset(
            each.node_id for each in scan(self.cache, NodeSpec) if each.state is NodeState.DRAINING
        )

    def request_id(self) -> str:
        """Return a request id that nobody used, for a call of this node's own."""
        self._calls += 1
        return f"{self._incarnation}-c{self._calls}"

    def status(self) -> ControlStatus:
        """Say how the control plane stands, as this node sees it."""
        cache, fallback = self.cache, self.group.replica.group.fallback
        return ControlStatus(
            group=group_status(self.group),
            revision=self.machine.kv.revision,
            initialized=find(self.state(), ClusterConfig, "config") is not None,
            cache_state=str(self.cache_state()),
            cache_age_ms=self.local_age(),
            cache_revision=cache.cursor.revision if cache.cursor is not None else 0,
            cache_saved_revision=self._copy.saved_revision,
            cache_expiry_total=cache.cache_expiry_total,
            strict_fallback_state=str(fallback.state),
            proofs_published=self._proofs.published,
            proofs_failed=self._proofs.failed,
            proofs_bad=cache.bad_proofs,
            proofs_refused={str(each): v for each, v in self._proofs.last_refused.items()},
            calls_led=self._desk.counts.calls,
            publications_led=self._desk.counts.publications,
            confirmations_led=self._desk.counts.confirmations,
            reports=report_states(self.state(), self._now().unix_ms),
        )

    def ensure(self, plan: Plan) -> None:
        """Let the leader call what a plan finds missing: now, and at each new leadership."""
        self._steward.add(plan)

    async def _until_admitted(self, command: Command, deadline: float) -> None:
        """Wait until this node's copy is fresh enough for the command."""
        freshness = KIND_OF[type(command)].freshness
        while True:
            refusal = call_refusal(freshness, self.cache_state())
            ready = find(self.state(), ClusterConfig, "config") is not None
            if refusal is None and ready:
                return
            if self._loop.time() >= deadline:
                reason = refusal.value if refusal is not None else "NotInitialized"
                raise ControlUnavailable("ControlPlaneUnavailable", because=reason)
            self._refreshing.set()
            await asyncio.sleep(_LOOK_SECONDS)

    async def _pass(
        self, command: Command, caller: Caller, request_id: str, seconds_max: float
    ) -> Answer:
        encoded = canonical(command)
        reply = await self._questions.ask(
            lambda number: Passed(number, caller, request_id, encoded), seconds_max
        )
        assert isinstance(reply, Answered)
        return decode_answer(reply.body)

    # Between nodes.

    def _leader(self) -> NodeId | None:
        leader = self.group.replica.leader_id
        return None if leader is None else NodeId(leader)

    def _send(self, peer: NodeId, message: Message) -> None:
        if peer == self._node.node_id:
            self._loop.call_soon(self._take_own, peer, message)
        else:
            self._node.send_service(self._number, peer, encode_message(message))

    def on_peer_data(self, peer: NodeId, data: bytes) -> None:
        try:
            message = decode_message(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            journal.warning("node %d sent what is no message of this version", peer)
            return
        self._take(peer, message)

    def _take_own(self, peer: NodeId, message: Message) -> None:
        contained.run("control plane", "this node", partial(self._take, peer, message))

    def _take(self, peer: NodeId, message: Message) -> None:
        if isinstance(message, Answered | Confirmed):
            self._questions.answered(peer, message)
        else:
            self._desk.take(peer, message)

    def on_peer_lost(self, peer: NodeId) -> None:
        self._questions.lost(peer)

    # What the node calls, for the control plane's own group.

    def prepare(self) -> None:
        if self._desk.is_asked:
            self.group.answer_for(self._desk.prepare)
        if self._words.to_tell:
            self._words.tell_some()

    def on_output(self, group: HostedGroup, output: ReplicaOutput) -> None:
        """Answer, let watchers of the store see what is new, and fold it."""
        if output.replies or output.reads:
            self._desk.on_output(output)
        self._kv.on_output(group, output)
        if output.role is not None and group.replica.leads:
            self._steward.look()
        if self.machine.kv.revision != self._seen_revision:
            self._fold()

    def flush(self) -> None:
        """Answers left with the services' messages."""

    def on_tick(self) -> None:
        self._proofs.on_tick()
        self._ticks += 1
        if self._ticks % _GATES_TICKS == 0:
            tell_groups(self, self._node.groups.values())
        if self._steering.unsettled and self._node.now_ms() >= self._look_again_ms:
            self._look_again_ms = self._node.now_ms() + _LOOK_AGAIN_MS
            self._words.add(self._steering.unsettled)
            self._steering.unsettled.clear()  # who still leads puts it back

    # What the node calls, for every group.

    def on_group(self, group: HostedGroup, output: ReplicaOutput) -> None:
        """Take a group's wish for a proof, and note which groups are led elsewhere now."""
        partition, proven = group.partition_id, output.publish_proof
        if output.role is not None and not group.replica.leads:
            self._proofs.forget(partition)
        if output.record_membership is not None or output.role is not None:
            self._words.add((partition,))  # its placement may have to follow
        if proven is None:
            return
        if group is self.group:
            latched = group.replica.group.fallback.asserted
            if not self._own_proofs.lets(proven, latched=latched, now_ms=self._node.now_ms()):
                return
        self._proofs.wish(partition, proven)

    def on_cluster_changed(self) -> None:
        """Take in that nodes joined or left."""
        self._steward.look()

    # The copy, and who hears of it.

    def _now(self) -> ClockReading:
        return moment(self._node.now_ms())

    def _fold(self) -> None:
        store = self.machine.kv
        self._seen_revision = store.revision
        more = True
        while more:
            changes = self._copy.fold(store, self._now())
            more = changes.more
            if changes.all:
                self._words.tell_all()
            if changes.binding:
                self._saving.set()  # a node that starts cut off believes and obeys by them
            if changes.placed:
                self._steward.look()  # a node that left may carry nothing any more
            self._words.add(changes.partitions)
        if self._words.to_tell:
            self._node.turn_soon()
        if self.cache.tenants_revision != self._seen_tenants:
            self._seen_tenants = self.cache.tenants_revision
            self._saving.set()  # what brokers act on outlives the process
            self._steward.look()

    def _steer(self, group: HostedGroup) -> None:
        work = self._steering.steer(group, self.cache)
        if work is not None:
            self._spawn(work)

    # What runs beside.

    async def _refresh_always(self) -> None:
        """Keep the copy fresh: the loop of clustor §14.2."""
        while True:
            self._refreshing.clear()
            with contextlib.suppress(ControlUnavailable):
                await self._refresh()
            delay_ms = self.cache.refresh_delay_ms(self._now())
            delay_ms = min(delay_ms, max(100, self._numbers.cache_fresh_ms // 4))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay_ms / 1000):
                    await self._refreshing.wait()

    async def _refresh(self) -> None:
        asked = self._now()
        age_ms_max = min(_CONFIRMED_MS_MAX, self._numbers.cache_fresh_ms // 8)
        reply = await self._questions.ask(
            lambda number: NewestAsked(number, age_ms_max), _REFRESH_SECONDS_MAX
        )
        assert isinstance(reply, Confirmed)
        known = ClockReading(asked.monotonic_ms - reply.age_ms, asked.unix_ms - reply.age_ms)
        self._copy.confirm(known, reply.revision)
        self._fold()

    async def _save_always(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SAVE_SECONDS):
                    await self._saving.wait()
            self._saving.clear()
            await self._copy.save()

    def _cluster(self, store: DraftReading) -> list[Command]:
        """Plan the cluster as its file and its groups are now."""
        system = [PartitionId(n) for n in range(1, self._node.cluster.groups + 1)]
        partitions = {
            each: members_of(self._node.groups[each].replica.group.core.hard.membership)
            for each in (CONTROL_PARTITION, *system)
        }
        return cluster_records(self._node.cluster, partitions)(store)

    async def call_as_steward(self, command: Command) -> Answer:
        """Call for the cluster itself; raises ControlUnavailable."""
        return await self._call_as(steward_of(self._node.cluster.id), command)

    async def call_for_node(self, command: Command) -> Answer:
        """Call as this node; raises ControlUnavailable."""
        return await self._call_as(Caller(identity=self._node.identity), command)

    async def _call_as(self, caller: Caller, command: Command) -> Answer:
        return await self._pass(command, caller, self.request_id(), CALL_SECONDS_MAX)
