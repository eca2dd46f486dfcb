"""The cluster and its nodes: who they are, how they enrol, what they can carry."""

from __future__ import annotations

from enum import StrEnum
from hashlib import sha256
from hmac import compare_digest
from typing import Annotated, Any, ClassVar, Final, TypeAlias

import msgspec

from clustor.control.calls import Command
from clustor.control.draft import Draft, Refuse
from clustor.control.objects import ControlObject, key_of
from clustor.control.rbac import CallerAuthority
from clustor.control.types import (
    Count,
    Digest,
    Identity,
    Name,
    Ratio,
    RefusalCode,
    Text,
    WriterMode,
)
from clustor.kv import Key
from clustor.raft.profiles import PROFILES

VOTERS_MIN: Final = 3  # clustor §6.3
DR_VOTERS_MIN: Final = 5
DR_PROFILE: Final = "DR"
PLACEMENT_PROFILES: Final = frozenset({*PROFILES, DR_PROFILE})


class ClusterConfig(ControlObject, frozen=True, kw_only=True):
    """What the whole cluster is; made once."""

    PREFIX: ClassVar[str] = "cluster/"
    cluster_id: Name
    development: bool
    profile: Name  # of partitions that are placed without one
    initialized_at: Count

    def key(self) -> Key:
        return key_of(ClusterConfig, "config")

    def voters_min(self, profile: str) -> int:
        """Return how many voters a partition of a profile needs (clustor §6.3)."""
        if self.development:
            return 1
        return DR_VOTERS_MIN if profile == DR_PROFILE else VOTERS_MIN


class NodeState(StrEnum):
    ACTIVE = "Active"
    DRAINING = "Draining"


class NodeSpec(ControlObject, frozen=True, kw_only=True):
    """A node: who it is, where it stands, what it can carry, and what it says of itself."""

    PREFIX: ClassVar[str] = "node/"
    node_id: Count
    identity: Identity
    zone: Name
    address: Text
    capacity: Count  # in units of load
    state: NodeState
    registered_at: Count
    version: Text = ""
    io_writer_mode: WriterMode | None = None
    features: tuple[Name, ...] = ()  # that its build supports

    def key(self) -> Key:
        return key_of(NodeSpec, self.node_id)


class NodeLoad(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """How full a node is, and what it carries: one word for all its groups."""

    utilization: Ratio  # of what is fullest; today that is the disk of its data
    disk_bytes: Count
    disk_free_bytes: Count
    groups_hosted: Count
    groups_led: Count


class NodeReport(ControlObject, frozen=True, kw_only=True):
    """The newest word of a node. It counts until the control plane's leader hears it no more."""

    PREFIX: ClassVar[str] = "node_report/"
    node_id: Count
    reported_at: Count
    load: NodeLoad
    silent: bool | msgspec.UnsetType = msgspec.UNSET  # unset while it is heard: older bytes stay

    def key(self) -> Key:
        return key_of(NodeReport, self.node_id)


class NodeIdentity(ControlObject, frozen=True, kw_only=True):
    """Finds a node by its identity, and keeps two from sharing one."""

    PREFIX: ClassVar[str] = "node_identity/"
    digest: Name
    node_id: Count

    def key(self) -> Key:
        return key_of(NodeIdentity, self.digest)


def identity_digest(identity: str) -> str:
    """Name an identity by characters that a key can carry."""
    return sha256(identity.encode()).hexdigest()


Secret: TypeAlias = Annotated[str, msgspec.Meta(min_length=16, max_length=256)]
"""What a newcomer shows; long enough that its digest says nothing of it."""


class BootstrapToken(ControlObject, frozen=True, kw_only=True):
    """A one-use token for enrolment (quantumqtt §9.2); of the secret only its digest."""

    PREFIX: ClassVar[str] = "bootstrap_token/"
    token_id: Name
    secret_sha256: Digest
    expires_at: Count
    used_by: Count | None = None

    def key(self) -> Key:
        return key_of(BootstrapToken, self.token_id)


# Commands on nodes.


class RegisterNode(Command, frozen=True, kw_only=True):
    """Add a node, or change its zone, address and capacity."""

    node_id: Annotated[int, msgspec.Meta(ge=1, le=2**53 - 1)]
    identity: Identity
    zone: Name
    address: Text
    capacity: Count


class IssueBootstrapToken(Command, frozen=True, kw_only=True):
    """Let one node enrol by itself, once."""

    token_id: Name
    secret_sha256: Digest
    ttl_ms: Annotated[int, msgspec.Meta(ge=1, le=86_400_000)]


class EnrollNode(Command, frozen=True, kw_only=True):
    """Add the calling node, by a one-use bootstrap token.

    The secret itself is shown, and hashed here: who reads the token's record, in a backup or a
    replica, has nothing to show.
    """

    token_id: Name
    secret: Secret
    node_id: Annotated[int, msgspec.Meta(ge=1, le=2**53 - 1)]
    zone: Name
    address: Text
    capacity: Count


class DrainNode(Command, frozen=True, kw_only=True):
    """Stop placing partitions on a node, or start again."""

    node_id: Count
    draining: bool


class RemoveNode(Command, frozen=True, kw_only=True):
    """Forget a node that carries nothing any more."""

    node_id: Count


def on_register_node(
    draft: Draft, _authority: CallerAuthority, command: RegisterNode
) -> dict[str, Any]:
    held = draft.find(NodeSpec, command.node_id)
    if held is not None and held.identity != command.identity:
        raise Refuse(RefusalCode.IN_USE, "the number is another node's", identity=held.identity)
    _claim_identity(draft, command.identity, command.node_id)
    fresh = NodeSpec(
        node_id=command.node_id,
        identity=command.identity,
        zone=command.zone,
        address=command.address,
        capacity=command.capacity,
        state=NodeState.ACTIVE,
        registered_at=draft.now_ms,
    )
    if held is not None:
        fresh = msgspec.structs.replace(
            held, zone=command.zone, address=command.address, capacity=command.capacity
        )
    draft.put(fresh)
    return {"node_id": command.node_id}


def _claim_identity(draft: Draft, identity: str, node_id: int) -> None:
    digest = identity_digest(identity)
    held = draft.find(NodeIdentity, digest)
    if held is not None and held.node_id != node_id:
        raise Refuse(RefusalCode.IN_USE, "the identity is another node's", node_id=held.node_id)
    draft.put(NodeIdentity(digest=digest, node_id=node_id))


def on_issue_bootstrap_token(
    draft: Draft, _authority: CallerAuthority, command: IssueBootstrapToken
) -> dict[str, Any]:
    draft.absent(BootstrapToken, command.token_id)
    expires_at = draft.now_ms + command.ttl_ms
    draft.put(
        BootstrapToken(
            token_id=command.token_id,
            secret_sha256=command.secret_sha256,
            expires_at=expires_at,
        )
    )
    return {"expires_at": expires_at}


def on_enroll_node(draft: Draft, authority: CallerAuthority, command: EnrollNode) -> dict[str, Any]:
    token = draft.find(BootstrapToken, command.token_id)
    shown = sha256(command.secret.encode()).digest()
    if token is None or not compare_digest(token.secret_sha256, shown):
        raise Refuse(RefusalCode.UNAUTHORIZED, "no such bootstrap token")
    if token.used_by is not None or draft.now_ms >= token.expires_at:
        raise Refuse(RefusalCode.UNAUTHORIZED, "the bootstrap token is used or expired")
    draft.absent(NodeSpec, command.node_id)
    draft.put(msgspec.structs.replace(token, used_by=command.node_id))
    register = RegisterNode(
        node_id=command.node_id,
        identity=authority.identity,
        zone=command.zone,
        address=command.address,
        capacity=command.capacity,
    )
    return on_register_node(draft, authority, register)


def on_drain_node(draft: Draft, _authority: CallerAuthority, command: DrainNode) -> dict[str, Any]:
    held = draft.need(NodeSpec, command.node_id)
    state = NodeState.DRAINING if command.draining else NodeState.ACTIVE
    draft.put(msgspec.structs.replace(held, state=state))
    return {"state": state}


def on_remove_node(
    draft: Draft, _authority: CallerAuthority, command: RemoveNode
) -> dict[str, Any]:
    held = draft.need(NodeSpec, command.node_id)
    count = draft.indexes.node_partitions[command.node_id]
    if count:
        raise Refuse(RefusalCode.IN_USE, "move its partitions away first", partitions=count)
    draft.delete(NodeSpec, command.node_id)
    draft.delete(NodeReport, command.node_id)
    draft.delete(NodeIdentity, identity_digest(held.identity))
    return {}


def check_profile(profile: str) -> None:
    """Refuse a profile that no node knows."""
    if profile not in PLACEMENT_PROFILES:
        known = sorted(PLACEMENT_PROFILES)
        raise Refuse(RefusalCode.INVALID, "no such profile", profile=profile, known=known)
