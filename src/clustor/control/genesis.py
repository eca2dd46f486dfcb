"""The first call of a cluster, and the housekeeping of its history."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from clustor.control.calls import Command
from clustor.control.draft import Draft, Refuse
from clustor.control.nodes import ClusterConfig, check_profile
from clustor.control.rbac import Bindings, CallerAuthority, RbacManifest, check_bindings
from clustor.control.signing import RegisterKey, on_register_key
from clustor.control.types import Count, Name, RefusalCode


class InitializeCluster(Command, frozen=True, kw_only=True):
    """Make a cluster: its name, its first Operators and keys. There is no second time.

    Until then nothing else is taken, so a node proposes it before it opens any listener.
    """

    cluster_id: Name
    profile: Name = "ConsistencyProfile"
    development: bool = False
    bindings: Bindings
    keys: Annotated[tuple[RegisterKey, ...], msgspec.Meta(max_length=32)] = ()


class CompactHistory(Command, frozen=True, kw_only=True):
    """Forget the watchable history up to a revision; slower watches must list anew."""

    revision: Count


def on_initialize_cluster(
    draft: Draft, authority: CallerAuthority, command: InitializeCluster
) -> dict[str, Any]:
    if draft.find(ClusterConfig, "config") is not None:
        raise Refuse(RefusalCode.ALREADY_INITIALIZED, "the cluster has its name already")
    check_bindings(command.bindings)
    check_profile(command.profile)
    draft.put(
        ClusterConfig(
            cluster_id=command.cluster_id,
            profile=command.profile,
            development=command.development,
            initialized_at=draft.now_ms,
        )
    )
    draft.put(RbacManifest(version=1, bindings=command.bindings, published_at=draft.now_ms))
    for key in command.keys:
        on_register_key(draft, authority, key)
    return {"cluster_id": command.cluster_id}


def on_compact_history(
    draft: Draft, _authority: CallerAuthority, command: CompactHistory
) -> dict[str, Any]:
    draft.compact_through = command.revision
    return {"oldest_available": command.revision}
