"""A control plane of one machine, and callers that speak to it."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from clustor.control import (
    AccessRole,
    Answer,
    Binding,
    Caller,
    Command,
    ControlMachine,
    CreateTenant,
    Done,
    InitializeCluster,
    IssueBreakGlass,
    KeyPurpose,
    Members,
    OverrideContent,
    OverrideScope,
    PlacePartition,
    ProofTuple,
    PublishProofs,
    RecordOverride,
    RefusalCode,
    Refused,
    RegisterKey,
    RegisterNode,
    TenantTier,
    WriterMode,
    decode_answer,
    encode_call,
    sign,
    sign_proofs,
    verdicts_of,
)
from clustor.kv import StoreId
from clustor.log.types import PartitionId

OPERATOR = "spiffe://test/operator"
OBSERVER = "spiffe://test/observer"
TENANT_ADMIN = "spiffe://test/tenant-admin"  # of tenant "a"
STRANGER = "spiffe://test/stranger"
ACTOR = "spiffe://test/on-call"
PROOF_KEY = Ed25519PrivateKey.from_private_bytes(b"p" * 32)
RELEASE_KEY = Ed25519PrivateKey.from_private_bytes(b"r" * 32)
START_MS = 1_000_000


def node_identity(node_id: int) -> str:
    return f"spiffe://test/node/{node_id}"


def public(key: Ed25519PrivateKey) -> bytes:
    return key.public_key().public_bytes_raw()


def genesis() -> InitializeCluster:
    return InitializeCluster(
        cluster_id="test",
        bindings=(
            Binding(identity=OPERATOR, role=AccessRole.OPERATOR),
            Binding(identity=OBSERVER, role=AccessRole.OBSERVER),
            Binding(identity=TENANT_ADMIN, role=AccessRole.TENANT_ADMIN, tenant_id="a"),
        ),
        keys=(
            RegisterKey(
                purpose=KeyPurpose.CONTROL_PLANE_PROOF, key_id="p1", public_key=public(PROOF_KEY)
            ),
            RegisterKey(purpose=KeyPurpose.CP_RELEASE, key_id="r1", public_key=public(RELEASE_KEY)),
        ),
    )


def proof(
    partition_id: int, index: int, *, term: int = 1, segment: int = 1, epoch: int = 0, at: int = 0
) -> ProofTuple:
    return ProofTuple(
        partition_id=partition_id,
        last_durable_term=term,
        last_durable_index=index,
        segment_seq=segment,
        io_writer_mode=WriterMode.FIXED_URING,
        durability_mode_epoch=epoch,
        updated_at=at,
    )


def signed_override(
    override_id: str, scope: OverrideScope, expires_at: int, *partitions: int
) -> RecordOverride:
    content = OverrideContent(
        override_id=override_id,
        scope=scope,
        partitions=partitions,
        ticket_url="https://tickets/1",
        justification="a drill",
        expires_at=expires_at,
    )
    return RecordOverride(
        **msgspec.structs.asdict(content),
        signature=sign(RELEASE_KEY, "r1", KeyPurpose.CP_RELEASE, content),
    )


class Plane:
    """A machine whose calls are stamped and numbered for the test."""

    def __init__(self, machine: ControlMachine | None = None, *, initialized: bool = True) -> None:
        self.machine = machine or ControlMachine(StoreId(b"control"))
        self.now_ms = START_MS
        self._requests = 0
        if initialized:
            self.done(genesis(), by=OPERATOR)

    def call(
        self,
        command: Command,
        *,
        by: str = OPERATOR,
        token: str | None = None,
        request_id: str | None = None,
    ) -> Answer:
        return decode_answer(self.apply(self.encode(command, by, token, request_id)))

    def encode(
        self, command: Command, by: str, token: str | None = None, request_id: str | None = None
    ) -> bytes:
        self._requests += 1
        return encode_call(
            Caller(identity=by, break_glass=token),
            request_id or f"request-{self._requests}",
            self.now_ms,
            command,
        )

    def apply(self, encoded: bytes) -> bytes:
        return self.machine.apply_batch(self.machine.applied_index + 1, [encoded])[0]

    def done(
        self, command: Command, *, by: str = OPERATOR, token: str | None = None
    ) -> dict[str, Any]:
        answer = self.call(command, by=by, token=token)
        assert isinstance(answer, Done), answer
        return answer.result

    def refused(
        self, command: Command, *, by: str = OPERATOR, token: str | None = None
    ) -> RefusalCode:
        answer = self.call(command, by=by, token=token)
        assert isinstance(answer, Refused), answer
        return answer.code

    # What tests often need.

    def add_nodes(self, count: int, *, zones: int = 3, capacity: int = 100) -> None:
        for node_id in range(1, count + 1):
            self.done(
                RegisterNode(
                    node_id=node_id,
                    identity=node_identity(node_id),
                    zone=f"z{node_id % zones}",
                    address=f"node{node_id}:7000",
                    capacity=capacity,
                )
            )

    def add_tenant(self, tenant_id: str = "a", **more: Any) -> None:
        self.done(CreateTenant(tenant_id=tenant_id, sni=f"{tenant_id}.example.com", **more))

    def place(self, partition_id: int, *voters: int, epoch: int = 0, load: int = 10) -> None:
        self.done(self.placing(partition_id, *voters, epoch=epoch, load=load))

    @staticmethod
    def placing(
        partition_id: int, *voters: int, epoch: int = 0, load: int = 10, **more: Any
    ) -> PlacePartition:
        return PlacePartition(
            partition_id=partition_id,
            members=Members(voters=voters or (1, 2, 3)),
            load=load,
            expected_routing_epoch=epoch,
            **more,
        )

    def publish(self, *proofs: ProofTuple, node_id: int = 1) -> dict[str, str]:
        stamped = [
            msgspec.structs.replace(each, updated_at=each.updated_at or self.now_ms)
            for each in proofs
        ]
        command = PublishProofs(node_id=node_id, proofs=sign_proofs(PROOF_KEY, "p1", stamped))
        return self.verdicts(command)

    def verdicts(self, command: PublishProofs) -> dict[str, str]:
        """Publish, and return what became of each proof, by partition."""
        result = self.done(command, by=node_identity(command.node_id))
        partitions = [PartitionId(signed.proof.partition_id) for signed in command.proofs]
        return {str(each): str(v) for each, v in verdicts_of(partitions, result).items()}

    def break_glass(self, token_id: str, scope: OverrideScope, ttl_ms: int = 300_000) -> None:
        self.done(
            IssueBreakGlass(
                token_id=token_id,
                scope=scope,
                actor_id=ACTOR,
                ticket_url="https://tickets/1",
                ttl_ms=ttl_ms,
            )
        )

    def override(self, override_id: str, scope: OverrideScope, *partitions: int) -> None:
        token = f"token-{override_id}"
        self.break_glass(token, scope)
        command = signed_override(override_id, scope, self.now_ms + 600_000, *partitions)
        self.done(command, by=ACTOR, token=token)


def settled_plane() -> Plane:
    """A cluster of four nodes in three zones, a tenant, and partition 1 on nodes 1 to 3."""
    plane = Plane()
    plane.add_nodes(4)
    plane.add_tenant("a", tier=TenantTier.DEVELOPMENT, group_fsync_allowed=True)
    plane.place(1)
    return plane


def digest(text: str) -> bytes:
    return sha256(text.encode()).digest()
