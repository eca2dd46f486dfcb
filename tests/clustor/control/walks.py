"""Walks: long, seeded sequences of calls whose authors mostly know what stands.

Blind draws are refused nearly always. A walk looks at the machine before each call and gives it
the epoch and version that stand, four times out of five.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TypeVar

from clustor.control import (
    AclAction,
    AclEffect,
    AdvanceKeyEpochs,
    ArmBarrier,
    BreakGlassToken,
    ClearProofConflict,
    ClearQuarantine,
    Command,
    CommitFence,
    CompactHistory,
    ConfigHead,
    ControlObject,
    CreateTenant,
    DefineActivate,
    DeleteTenant,
    DrainNode,
    IssueBreakGlass,
    KeyEpochs,
    LiftFence,
    Members,
    ModeName,
    NodeSpec,
    OverrideScope,
    Placement,
    PlacePartition,
    PublishedProof,
    PublishProofs,
    QuarantineCause,
    QuotaPolicy,
    RecordMembership,
    RegisterNode,
    RemoveNode,
    ReportQuarantine,
    ReportWarmup,
    RetirePartition,
    RollBackConfiguration,
    RoutingMap,
    ScopeKind,
    SetAcls,
    SetConfiguration,
    SetDurabilityMode,
    SetFollowerReads,
    SetQuotas,
    SetRoutingMap,
    SettingScope,
    TenantAclRule,
    TenantTier,
    digest_of,
    find,
    scan,
    sign_proofs,
)
from clustor.control.tenants import AclPolicy
from clustor.kv import DeleteRange, Expire, Key, Put, encode_command
from tests.clustor.control.plane import (
    ACTOR,
    OBSERVER,
    OPERATOR,
    PROOF_KEY,
    STRANGER,
    node_identity,
    proof,
    settled_plane,
    signed_override,
)
from tests.clustor.control.samples import SAMPLES, bundle, manifest

_Object = TypeVar("_Object", bound=ControlObject)

PLAIN = (
    encode_command(Put(Key(b"user/x"), b"1", 50)),
    encode_command(Put(Key(b"tenant/a"), b"1")),
    encode_command(DeleteRange(b"user/", b"user0")),
    encode_command(Expire(2_000_000, 5)),
    b"{}",
    b"\x00",
)


class Walk:
    """One walk: `calls` is the log of it, `plane` the machine that it was made on."""

    def __init__(self, seed: int, steps: int) -> None:
        self.rng = Random(seed)
        self.plane = settled_plane()
        self.calls: list[bytes] = []
        self.answers: list[bytes] = []
        for _ in range(steps):
            self._step()

    def _step(self) -> None:
        rng, plane = self.rng, self.plane
        plane.now_ms += rng.choice([0, 1, 50, 2_000])
        roll = rng.random()
        if roll < 0.05:
            encoded = rng.choice(PLAIN)
        elif roll < 0.12 and self.calls:
            encoded = rng.choice(self.calls)
        else:
            command, identity, token = self._call()
            request_id = rng.choice(["same", "again"]) if rng.random() < 0.05 else None
            encoded = plane.encode(command, identity, token, request_id)
        self.calls.append(encoded)
        self.answers.append(plane.apply(encoded))

    def _call(self) -> tuple[Command, str, str | None]:
        rng = self.rng
        if rng.random() < 0.06:
            command = rng.choice(list(SAMPLES.values()))
            return command, rng.choice([OPERATOR, OBSERVER, STRANGER, ACTOR]), None
        if rng.random() < 0.08:
            return self._override()
        command = rng.choice(self._drawn)(self)
        identity = OPERATOR
        if hasattr(command, "node_id") and not isinstance(
            command, RegisterNode | RemoveNode | DrainNode | ClearQuarantine
        ):
            identity = node_identity(command.node_id)
        return command, identity, None

    # What stands.

    def _about(self, number: int) -> int:
        """Return the number, or now and then its neighbour."""
        return number if self.rng.random() < 0.8 else max(0, number + self.rng.choice([-1, 1]))

    def _epoch(self, partition_id: int) -> int:
        held = find(self.plane.machine.kv, Placement, partition_id)
        return self._about(held.routing_epoch if held is not None else 0)

    def _placed(self) -> Placement | None:
        return self._any(Placement)

    def _any(self, kind: type[_Object]) -> _Object | None:
        held = list(scan(self.plane.machine.kv, kind))
        return self.rng.choice(held) if held else None

    def _tenant(self) -> str:
        return self.rng.choice("abc")

    # What is called.

    def _override(self) -> tuple[Command, str, str | None]:
        plane, scope = self.plane, self.rng.choice(list(OverrideScope)[:3])
        token = self._any(BreakGlassToken)
        if token is None or self.rng.random() < 0.5:
            number = self.rng.randrange(1_000)
            issue = IssueBreakGlass(
                token_id=f"t{number}",
                scope=scope,
                actor_id=ACTOR,
                ticket_url="https://tickets/1",
                ttl_ms=60_000,
            )
            return issue, OPERATOR, None
        name = f"o{self.rng.randrange(3)}"
        return signed_override(name, token.scope, plane.now_ms + 90_000), ACTOR, token.token_id

    def _place(self) -> Command:
        rng = self.rng
        partition = rng.randrange(1, 6)
        held = find(self.plane.machine.kv, Placement, partition)
        tenant = held.tenant_id if held is not None else rng.choice([None, "a", "b"])
        nodes = [node.node_id for node in scan(self.plane.machine.kv, NodeSpec)]
        by_zone = [[node for node in nodes if node % 3 == zone] for zone in range(3)]
        voters = [rng.choice(zone) for zone in by_zone if zone] or [1]
        if rng.random() < 0.1:
            voters = voters[:1]
        return PlacePartition(
            partition_id=partition,
            tenant_id=tenant,
            members=Members(voters=tuple(voters)),
            load=rng.choice([0, 5, 10]),
            expected_routing_epoch=self._epoch(partition),
            override_ref=rng.choice([None, None, "o0", "o1"]),
        )

    def _publish(self) -> Command:
        rng, plane = self.rng, self.plane
        wishes = []
        node = rng.randrange(1, 5)
        for partition in rng.sample(range(1, 6), 2):
            held = find(plane.machine.kv, PublishedProof, partition)
            placement = find(plane.machine.kv, Placement, partition)
            if placement is not None:
                node = rng.choice(placement.members.voters)
            index = held.proof.last_durable_index if held is not None else 0
            term = held.proof.last_durable_term if held is not None else 1
            segment = held.proof.segment_seq if held is not None else 1
            epoch = placement.durability_mode_epoch if placement is not None else 0
            if rng.random() < 0.1:
                segment = rng.randrange(1, 4)
            if rng.random() < 0.2:
                term += 1
            step = rng.choice([1, 1, 3, 0, -1])
            wishes.append(
                proof(
                    partition,
                    max(0, index + step),
                    term=term,
                    segment=segment,
                    epoch=self._about(epoch),
                    at=plane.now_ms,
                )
            )
        return PublishProofs(node_id=node, proofs=sign_proofs(PROOF_KEY, "p1", wishes))

    def _register(self) -> Command:
        node = self.rng.randrange(1, 7)
        return RegisterNode(
            node_id=node,
            identity=node_identity(node),
            zone=f"z{node % 3}",
            address="x:1",
            capacity=100,
        )

    def _retire(self) -> Command:
        partition = self.rng.randrange(1, 6)
        return RetirePartition(
            partition_id=partition, expected_routing_epoch=self._epoch(partition)
        )

    def _ring(self) -> Command:
        tenant = self._tenant()
        held = find(self.plane.machine.kv, RoutingMap, tenant)
        ours = [
            each.partition_id
            for each in scan(self.plane.machine.kv, Placement)
            if each.tenant_id == tenant
        ] or [1]
        return SetRoutingMap(
            tenant_id=tenant,
            partitions=tuple(self.rng.sample(ours, self.rng.randint(1, len(ours)))),
            expected_routing_epoch=self._about(held.routing_epoch if held is not None else 0),
        )

    def _mode(self) -> Command:
        held = self._placed()
        epoch = held.durability_mode_epoch if held is not None else 0
        return SetDurabilityMode(
            partition_id=held.partition_id if held is not None else 1,
            mode=self.rng.choice(list(ModeName)),
            expected_epoch=self._about(epoch),
        )

    def _follower_reads(self) -> Command:
        return SetFollowerReads(
            partition_id=self.rng.randrange(1, 6), capability=self.rng.random() < 0.5
        )

    def _membership(self) -> Command:
        held = self._placed()
        if held is None:
            return self._place()
        members = held.members
        if held.previous is not None and self.rng.random() < 0.3:
            members = held.previous
        return RecordMembership(
            partition_id=held.partition_id,
            node_id=self.rng.choice(members.voters),
            routing_epoch=self._about(held.routing_epoch),
            membership_digest=digest_of(members),
            durability_mode_epoch=held.durability_mode_epoch,
        )

    def _create(self) -> Command:
        name = self._tenant()
        return CreateTenant(
            tenant_id=name,
            sni=f"{name}.example.com",
            tier=self.rng.choice(list(TenantTier)),
            group_fsync_allowed=True,
        )

    def _quotas(self) -> Command:
        name = self._tenant()
        held = find(self.plane.machine.kv, QuotaPolicy, name)
        version = self._about(held.version if held is not None else 0)
        quotas = {"connections_max": self.rng.randrange(9)}
        return SetQuotas(tenant_id=name, expected_version=version, quotas=quotas)

    def _acls(self) -> Command:
        name = self._tenant()
        held = find(self.plane.machine.kv, AclPolicy, name)
        rule = TenantAclRule(effect=AclEffect.DENY, action=AclAction.PUBLISH, filter="x/#")
        version = self._about(held.version if held is not None else 0)
        return SetAcls(tenant_id=name, expected_version=version, rules=(rule,))

    def _configure(self) -> Command:
        scope = SettingScope(kind=ScopeKind.TENANT, name=self._tenant())
        held = find(self.plane.machine.kv, ConfigHead, "Tenant", scope.name)
        version = held.version if held is not None else 0
        if self.rng.random() < 0.3:
            return RollBackConfiguration(scope=scope, to_version=max(1, version - 1))
        document: dict[str, bool | int | str] = {"x": self.rng.randrange(4)}
        return SetConfiguration(
            scope=scope, expected_version=self._about(version), document=document
        )

    def _epochs(self) -> Command:
        held = find(self.plane.machine.kv, KeyEpochs, "newest")
        kek, dek, mac = held.parts() if held is not None else (1, 1, 1)
        return AdvanceKeyEpochs(
            kek_version=kek, dek_epoch=self._about(dek + 1), integrity_mac_epoch=mac
        )

    def _barrier(self) -> Command:
        return self.rng.choice(
            [
                bundle(),
                manifest(),
                ArmBarrier(
                    barrier_id=f"w{self.rng.randrange(3)}",
                    bundle_id="b1",
                    readiness_threshold=500_000,
                    warmup_deadline_ms=20_000,
                    readiness_window_ms=10_000,
                    partitions=(1,),
                ),
                ReportWarmup(
                    node_id=self.rng.randrange(1, 4),
                    partition_id=1,
                    bundle_id="b1",
                    shadow_apply_checkpoint_index=5,
                    partition_ready_ratio=self.rng.choice([400_000, 600_000]),
                ),
                DefineActivate(barrier_id=f"w{self.rng.randrange(3)}"),
            ]
        )

    def _fence(self) -> Command:
        name = f"f{self.rng.randrange(3)}"
        if self.rng.random() < 0.3:
            return LiftFence(fence_id=name)
        return CommitFence(fence_id=name, region="east", partitions=(self.rng.randrange(1, 6),))

    def _quarantine(self) -> Command:
        partition, node = self.rng.randrange(1, 6), self.rng.randrange(1, 5)
        if self.rng.random() < 0.4:
            return ClearQuarantine(partition_id=partition, node_id=node, evidence="rebuilt")
        return ReportQuarantine(
            partition_id=partition, node_id=node, cause=QuarantineCause.INTEGRITY, detail="mac"
        )

    def _rare(self) -> Command:
        rng = self.rng
        return rng.choice(
            [
                RemoveNode(node_id=rng.randrange(1, 7)),
                DrainNode(node_id=rng.randrange(1, 7), draining=rng.random() < 0.3),
                DeleteTenant(tenant_id=self._tenant()),
                ClearProofConflict(partition_id=rng.randrange(1, 6), justification="looked"),
                CompactHistory(revision=rng.randrange(60)),
            ]
        )

    _drawn: tuple[Callable[[Walk], Command], ...] = (
        *(_place,) * 4,
        *(_publish,) * 6,
        *(_rare,) * 3,
        *(_membership,) * 2,
        _register,
        _retire,
        _ring,
        _mode,
        _follower_reads,
        _create,
        _quotas,
        _acls,
        _configure,
        _epochs,
        _barrier,
        _barrier,
        _fence,
        _quarantine,
    )
