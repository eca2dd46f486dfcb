"""The broker as a service of its node: tenants, connections, links, and the turn of the loop."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Protocol

import msgspec

from clustor.control.command_gates import CommandGate, lacking_nodes, members_of
from clustor.raft.types import ReplicaId
from clustor.replica import ReplicaOutput
from clustor.runtime.audit.log import AuditLog
from clustor.runtime.containment import contained
from clustor.runtime.group import HostedGroup
from clustor.runtime.node import Node
from clustor.runtime.pki.identity import NodeId
from clustor.security import AuditEvent
from clustor.wall_clock import wall_clock_ms
from quantum.broker import Broker
from quantum.edge.lobby import Lobby
from quantum.edge.ports import ConnectionPeer, Transport, WirePort
from quantum.mesh import link
from quantum.mesh.peer_words import PeerWords
from quantum.mesh.questions import NodeQuestions
from quantum.mesh.relay import RelayEntry
from quantum.mesh.relays import Relays
from quantum.mesh.tenant import Tenant
from quantum.mesh.topic_reads import StreamFilesPort
from quantum.partition.backpressure import TurnShare
from quantum.partition.gate import OperationGate
from quantum.partition.leader import PartitionLeader
from quantum.protocols.amqp.session.adapter import AmqpAdapter
from quantum.protocols.amqp.session.amqp_node import AmqpLimits
from quantum.protocols.kafka.session.adapter import KafkaAdapter
from quantum.protocols.kafka.session.limits import KafkaLimits
from quantum.protocols.mqtt.session.adapter import MqttAdapter
from quantum.protocols.mqtt.session.limits import MqttLimits
from quantum.protocols.mqtt.session.traces import Traces
from quantum.protocols.ports import Adapter
from quantum.routing.ring import HashRing
from quantum.tenancy import ConnectionAudit, TenantDescription
from quantum.tenants.broker_file import BrokerFile, RingsFile, TenantEntry
from quantum.tenants.group_ids import GroupPlacement, grown_placements, placements_of
from quantum.tenants.partition_settings import broker_settings
from quantum.tenants.policy import TenantsFile, server_name_owners
from quantum.tenants.recent import Recent

_ROUND_TICKS: Final = 10
"""Half a second: what is not urgent is looked at once in so many ticks."""
_LINK_BYTES_PER_TURN: Final = 2 << 20
_WAITING_TICKS: Final = 2
_REVIEW_TICKS: Final = 2

journal = logging.getLogger("quantum.broker")


class Follower(Protocol):
    """Who keeps the tenants of a service as somebody else says."""

    def follow(self) -> None:
        """Take up what changed; called ten times a second."""

    def describe(self, filed: dict[str, TenantDescription]) -> None:
        """Take up what the file says of tenants."""


class BrokerService:
    """All tenants and all clients of one node."""

    def __init__(
        self,
        node: Node,
        limits: MqttLimits | None = None,
        entropy: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self._node = node
        self.tenants: dict[str, Tenant] = {}
        self._by_group: dict[HostedGroup, PartitionLeader] = {}
        self._touched: dict[PartitionLeader, None] = {}
        self._round = 0  # ticks since the last round
        self._leaders: dict[PartitionLeader, int | None] = {}
        self._links_out: dict[int, link.LinkOut] = {}
        self._links_in: dict[int, link.LinkIn] = {}
        self._incarnation = int.from_bytes(entropy(6), "little")
        self.tick_ms = self._started_ms = node.now_ms()
        self.audit: AuditLog | None = None
        """Where to tell what clients may not; None: nowhere."""
        self.recent = Recent(self.now_ms)
        """What happened to clients lately, for who asks why."""
        self.lobby: Lobby | None = None
        """The door of all listeners, to be asked what came to it."""
        self.references: dict[int, dict[Transport, str]] = {}
        """Where other nodes serve clients, where that is known."""
        self.server_names: dict[str, str] = {}
        """Which tenant each server name (SNI) leads to."""
        self._tenants_file: TenantsFile | None = None
        self.rings_file: RingsFile | None = None
        self._placements: dict[str, Sequence[GroupPlacement]] = {}
        self._by_life: dict[str, Tenant] = {}
        """Tenants by their names between nodes."""
        self.draining = False
        """An operator wants nobody to be served here."""
        self.gate_of: Callable[[PartitionLeader], OperationGate] | None = None
        """Says how a partition stands with the control plane; None where there is none."""
        self.keeper: Follower | None = None
        """What follows the control plane's word on tenants; None: the files are all there is."""
        self.on_full: Callable[[PartitionLeader, str], None] | None = None
        """Told of every session whose full queue holds publishers up."""
        self.on_hosted: Callable[[PartitionLeader], None] | None = None
        """Told of every partition that is hosted from then on."""
        self.on_stream_news: Callable[[PartitionLeader, set[int]], None] | None = None
        """Told of every partition of a stream that something happened to."""
        self.stream_files: StreamFilesPort | None = None
        """Who reads files of streams without holding the loop up; None: nobody does yet."""
        self.distrusted = 0
        """How many tenants have a trust bundle that cannot be used."""
        self.on_described: Callable[[BrokerFile], None] | None = None
        """Told of `broker.json` when it changed, and all its partitions are hosted."""
        self.mqtt = MqttAdapter(self, limits or MqttLimits(), entropy)
        self.kafka = KafkaAdapter(self, KafkaLimits(), entropy)
        self.amqp = AmqpAdapter(self, AmqpLimits(), self.mqtt.passwords, entropy)
        self.adapters: tuple[Adapter, ...] = (self.mqtt, self.kafka, self.amqp)
        """The protocols that clients speak here."""
        self.relays = Relays(self, self._incarnation, self.mqtt.relayed_connection)
        self.questions = NodeQuestions(self)
        self._words = PeerWords(
            self, {kind: call for each in self.adapters for kind, call in each.words.items()}
        )
        self._number = node.serve(self)

    @property
    def limits(self) -> MqttLimits:
        """What new connections may ask for."""
        return self.mqtt.limits

    @limits.setter
    def limits(self, limits: MqttLimits) -> None:
        self.mqtt.limits = limits

    def trace_with(self, traces: Traces | None) -> None:
        """Tell of single messages from now on, of connections that begin from now on."""
        self.mqtt.traces = traces
        for tenant in self.tenants.values():
            tenant.traces = traces

    @property
    def node(self) -> Node:
        """The node whose part it is, to be looked at."""
        return self._node

    # Tenants.

    def add_tenant(self, entry: TenantEntry, ordinal: int) -> Tenant:
        """Host the partitions of a tenant of the file; `ordinal` is the same on every node."""
        return self.add_placed(entry, placements_of(entry, ordinal))

    def add_placed(
        self, entry: TenantEntry, placements: Sequence[GroupPlacement], life: str | None = None
    ) -> Tenant:
        """Host the partitions of a tenant in these groups."""
        tenant = Tenant(entry.name, self, HashRing(), life)
        tenant.traces = self.mqtt.traces
        tenant.guard.recent = self.recent
        tenant.share = TurnShare(self.soon)
        for adapter in self.adapters:
            adapter.host_tenant(tenant)
        self._placements[entry.name] = placements
        self.host(tenant, entry)
        self.tenants[entry.name] = tenant
        self._by_life[tenant.life] = tenant
        self._note_sharing()
        return tenant

    def _note_sharing(self) -> None:
        """Let tenants know whether they are alone: that changes what clients have to show."""
        shared = len(self.tenants) > 1
        for tenant in self.tenants.values():
            if tenant.guard.is_shared != shared:
                tenant.guard.is_shared = shared
                tenant.judge_again()

    def forget_tenant(self, name: str) -> None:
        """Serve a tenant no more. Its groups run on until the next start; their data stays."""
        tenant = self.tenants.pop(name, None)
        if tenant is not None:
            self._by_life.pop(tenant.life, None)
            for adapter in self.adapters:
                adapter.forget_tenant(tenant)
            self._note_sharing()

    def host(
        self,
        tenant: Tenant,
        entry: TenantEntry,
        placements: Sequence[GroupPlacement] | None = None,
    ) -> None:
        """Host the partitions of a tenant that are not hosted yet, in groups known by now."""
        placements = placements or grown_placements(self._placements[tenant.name], entry)
        self._placements[tenant.name] = placements
        for number in range(len(tenant.prgs), entry.prg_count):
            settings = broker_settings(entry, number)
            group = self._node.host(
                placements[number].partition,
                lambda settings=settings: Broker(settings, keeps_streams=True),  # type: ignore[misc]
                self,
                frozenset(map(ReplicaId, placements[number].voters)) or None,
            )
            prg = PartitionLeader(tenant, number, group)
            tenant.prgs.append(prg)
            tenant.topics.host_partition(prg)
            for adapter in self.adapters:
                adapter.host_partition(prg)
            self._by_group[group] = prg
            self._leaders[prg] = None
            if self.on_hosted is not None:
                self.on_hosted(prg)
        tenant.rings = entry.rings
        tenant.prg_count = max(tenant.prg_count, entry.prgs)  # what the logs know comes with a tick

    def watch_rings(self, directory: Path) -> None:
        """Follow `broker.json`: host what a tenant's ring grows by, while everything goes on."""
        self.rings_file = RingsFile(directory)

    def _follow_rings(self) -> None:
        described = self.rings_file.read_if_changed() if self.rings_file is not None else None
        if described is None:
            return
        for entry in described.tenants:
            tenant = self.tenants.get(entry.name)
            if tenant is not None and len(entry.rings) > len(tenant.rings):
                journal.info("tenant %s grows to %d partitions", entry.name, entry.prg_count)
                self.host(tenant, entry)
        if self.on_described is not None:
            self.on_described(described)

    def obey(self, tenants_file: TenantsFile) -> None:
        """Put the operator's policy in force, and again whenever it changes."""
        self._tenants_file = tenants_file
        self._describe(tenants_file.read())

    def _describe(self, described: dict[str, TenantDescription]) -> None:
        if self.keeper is not None:
            self.keeper.describe(described)
            return
        for name in described.keys() - self.tenants.keys():
            journal.warning("tenant %s is served after the next start", name)
        for name, tenant in self.tenants.items():
            tenant.obey(described.get(name, TenantDescription()))
        self.server_names = server_name_owners(described)

    def gate_for(self, prg: PartitionLeader) -> OperationGate | None:
        """Say how a partition stands; None: nobody says, and nothing is closed."""
        return None if self.gate_of is None else self.gate_of(prg)

    def _review(self) -> None:
        """Look how every partition stands that is led here."""
        for tenant in self.tenants.values():
            tenant.review()

    # What the node calls.

    def prepare(self) -> None:
        """Turn what this turn brought into commands, before the groups are asked."""
        while self._touched:
            touched, self._touched = self._touched, {}
            for prg in touched:
                prg.group.answer_for(prg.prepare)
                self._node.touch(prg.group)

    def on_output(self, group: HostedGroup, output: ReplicaOutput) -> None:
        prg = self._by_group[group]
        prg.on_output(output)
        if output.stream_news:
            if self.on_stream_news is not None:
                self.on_stream_news(prg, output.stream_news)
            tenant = self._by_life.get(prg.tenant.life)
            if tenant is not None:
                tenant.topics.stream_news(prg.number, output.stream_news)
        leader = prg.leader_node
        if self._leaders[prg] != leader:
            self._leaders[prg] = leader
            self.relays.leader_changed(prg)
            prg.tenant.leadership_changed(prg.number)

    def flush(self) -> None:
        """Write to every client and to every peer that something is there for, once."""
        for adapter in self.adapters:
            adapter.flush()
        for node, out in self._links_out.items():
            if out.has_more and self._node.transport.is_behind(NodeId(node)):
                continue  # with a later turn: what is too much for the transport, it drops
            for frame in out.take(_LINK_BYTES_PER_TURN):
                self._node.send_service(self._number, NodeId(node), frame)
            if out.has_more:
                self._node.turn_soon()

    def on_tick(self) -> None:
        self.tick_ms = self._node.now_ms()
        for prg in self._by_group.values():
            prg.group.answer_for(prg.on_tick)
        for tenant in self.tenants.values():
            contained.run("tenant tick", tenant.name, tenant.on_tick)
        for adapter in self.adapters:
            adapter.on_tick(self.tick_ms)
        self._round = (self._round + 1) % _ROUND_TICKS
        if self.gate_of is not None and self._round % _REVIEW_TICKS == 0:
            contained.run("tenant tick", "", self._review)
        if self._round % _WAITING_TICKS == 0:
            for tenant in self.tenants.values():
                contained.run("tenant tick", tenant.name, tenant.ask_again)
            contained.run("tenant words", "broker.json", self._follow_rings)
            if self.keeper is not None:
                contained.run("tenant words", "control plane", self.keeper.follow)
        if self.draining:
            contained.run("drain", "", self.relays.send_some_away)
        if self._round == 0:
            self.relays.end_strays()
            contained.run("tenant words", "tenants.json", self._follow_tenants)

    def _follow_tenants(self) -> None:
        described = self._tenants_file.read_if_changed() if self._tenants_file else None
        if described is not None:
            journal.info("the tenants are described anew")
            self._describe(described)

    def on_peer_data(self, peer: NodeId, data: bytes) -> None:
        incoming = self._links_in.setdefault(peer, link.LinkIn())
        try:
            said, lost = incoming.receive(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            journal.warning("node %d said something that cannot be read", peer)
            return
        if lost:
            self._begin_link_anew(peer)
        for each in said:
            self._words.on_said(peer, each)

    def on_peer_lost(self, peer: NodeId) -> None:
        out = self._links_out.get(peer)
        if out is not None:
            out.begin_anew()
        self._begin_link_anew(peer)

    def _begin_link_anew(self, peer: int) -> None:
        """Something between the nodes was lost: what rests on it ends, or is sent again."""
        self.relays.link_anew(peer)
        self.questions.link_anew(peer)
        for tenant in self.tenants.values():
            tenant.link_anew(peer)

    def set_draining(self, draining: bool) -> None:
        """Serve nobody here any more, or again; leaderships leave by themselves."""
        self.draining = draining

    # What the rooms above a node ask.

    def now_ms(self) -> int:
        """Return the time of day: what is stamped into commands."""
        return wall_clock_ms()

    def clock_ms(self) -> int:
        """Return the loop's own clock, which only runs: what lasts is measured by it."""
        return self._node.now_ms()

    @property
    def uptime_seconds(self) -> int:
        return (self.tick_ms - self._started_ms) // 1000

    def touch(self, prg: PartitionLeader) -> None:
        self._touched[prg] = None
        self._node.touch(prg.group)

    def turn_soon(self) -> None:
        """Let the loop take a turn, at whose end adapters flush."""
        self._node.flush_soon()

    def soon(self, call: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_soon(contained.run, "soon", "", call)

    def is_local(self, node: int | None) -> bool:
        return node == self._node.node_id

    def reaches(self, node: int) -> bool:
        """Say whether another node can be spoken to now: what is said to a dead one is lost."""
        return not self.is_local(node) and NodeId(node) in self._node.transport.connected()

    def reference(self, node: int | None, transport: Transport) -> str | None:
        """Return where another node serves clients, as a Server Reference (MQTT 5, 4.11)."""
        found = None if node is None or self.is_local(node) else self.references.get(node)
        return None if found is None else found.get(transport)

    def note_refused(
        self, what: str, *, who: str, why: str, target: str = "", tenant: str = ""
    ) -> None:  # fmt: skip
        """Tell the audit log of something that a client may not."""
        if self.audit is not None:
            self.audit.refused(what, who=who, why=why, target=target, tenant=tenant)

    def note_client(self, what: str, why: str, who: str, tenant: Tenant) -> None:
        """Tell the audit log of a client that came or went, as its tenant's policy says."""
        wanted = tenant.guard.description.policy.connection_audit
        if self.audit is not None and wanted is not ConnectionAudit.OFF:
            every = wanted is ConnectionAudit.ALL
            self.audit.client_did(what, who=who, why=why, tenant=tenant.name, every=every)

    def note_act(
        self,
        what: str,
        outcome: str,
        *,
        who: str = "(control plane)",
        target: str = "",
        tenant: str = "",
    ) -> None:
        """Tell the audit log what was done to clients because somebody in charge wants it."""
        if self.audit is not None:
            at_ms = self.now_ms()
            event = AuditEvent(
                who=who, what=what, outcome=outcome, at_ms=at_ms, object=target, tenant=tenant
            )
            self.audit.note(event)

    def tell_full(self, prg: PartitionLeader, session: bytes) -> None:
        """Tell people that publishers wait for a session's full queue (C24)."""
        name = session.decode(errors="replace")
        journal.warning(
            "tenant %s: publishers wait for the full queue of session %s", prg.tenant.name, name
        )
        self.recent.note(session, "its queue is full, and publishers wait for it")
        if self.on_full is not None:
            self.on_full(prg, name)

    def note_end(self, client_id: bytes, why: str) -> None:
        journal.debug("client %r: %s", client_id, why)
        self.recent.note(client_id, f"its connection ended: {why}")

    # Links.

    def say(self, node: int, said: link.Said, size: int) -> None:
        """Let something leave for another node with this turn."""
        out = self._links_out.get(node)
        if out is None:
            out = self._links_out[node] = link.LinkOut(self._incarnation)
        out.say(said, size)
        self._node.flush_soon()

    def open_relay(  # noqa: PLR0917  # a relay is all of these
        self,
        wire: WirePort,
        peer: ConnectionPeer,
        prg: PartitionLeader,
        node: int,
        client_id: bytes,
        data: bytes,
    ) -> RelayEntry:
        """Let another node serve a client that came here."""
        return self.relays.open(wire, peer, prg, node, client_id, data)

    def knows_full_queues(self, prg: PartitionLeader) -> bool:
        """Say whether every replica of a partition can apply another choice for full queues."""
        return self.members_know(prg, CommandGate.FULL_QUEUES)

    def knows_topics(self, prg: PartitionLeader) -> bool:
        """Say whether every replica of a partition can apply commands of topics."""
        return self.members_know(prg, CommandGate.TOPICS)

    def members_know(self, prg: PartitionLeader, gate: CommandGate) -> bool:
        """Say whether every replica of a partition can apply a family of commands."""
        control = self._node.control
        if control is None:
            return True
        store = control.state()
        members = members_of(store, int(prg.group.partition_id))
        return not lacking_nodes(store, gate, members)

    def knows(self, node: int, gate: CommandGate) -> bool:
        """Say whether a node's build knows a word; without a control plane all are one build."""
        control = self._node.control
        return control is None or not lacking_nodes(control.state(), gate, (node,))

    def find_tenant(self, life: str) -> Tenant | None:
        """Return a tenant by its name between nodes."""
        return self._by_life.get(life)

    def find_partition(self, life: str, number: int) -> PartitionLeader | None:
        """Return a partition that is hosted here, by its tenant's name between nodes."""
        tenant = self._by_life.get(life)
        if tenant is None or not 0 <= number < len(tenant.prgs):
            return None
        return tenant.prgs[number]
