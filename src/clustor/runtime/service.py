"""What a node's groups are for: a service gives them machines and takes what they put out."""

from __future__ import annotations

from typing import Protocol

from clustor.replica import ReplicaOutput
from clustor.runtime.group import HostedGroup
from clustor.runtime.pki.identity import NodeId


class GroupWatcher(Protocol):
    """Who looks at what all groups of a node put out, whatever service they belong to."""

    def on_group(self, group: HostedGroup, output: ReplicaOutput) -> None:
        """Take an output with a change of role, a proof to publish or members to record."""

    def on_cluster_changed(self) -> None:
        """Take in that the list of nodes is another now."""


class NodeWatch(Protocol):
    """Who looks on while a node works, and decides nothing."""

    def on_tick(self, now_ms: int) -> None:
        """See that time passed."""

    def on_output(self, group: HostedGroup, output: ReplicaOutput) -> None:
        """See what a group put out."""


class Service(Protocol):
    """Everything is called in the thread of the node's loop, and nothing here may block."""

    def prepare(self) -> None:
        """Propose what the turn brought: the groups are asked next."""

    def on_output(self, group: HostedGroup, output: ReplicaOutput) -> None:
        """Take what one of the service's groups put out in this turn."""

    def flush(self) -> None:
        """Write what the turn staged: every group has been asked."""

    def on_tick(self) -> None:
        """Let time pass: once for every tick of the groups."""

    def on_peer_data(self, peer: NodeId, data: bytes) -> None:
        """Take what the same service of another node sent with `Node.send_service`."""

    def on_peer_lost(self, peer: NodeId) -> None:
        """The connection to or from a peer ended: what was sent to it may be lost."""
