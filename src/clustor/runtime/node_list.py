"""The list of nodes where every host keeps its own: a newer one is handed on until all have it.

An operator gives a new list to any node. Each node tells its peers the version of its own once a
second, and sends the whole list to who has an older one: so a host that was down when nodes came
and went learns of it as soon as it is back. The list is durable before it is acted on. Peers have
shown certificates of the cluster; a list of another cluster's birth is refused.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from clustor.replica import ReplicaOutput
from clustor.runtime.cluster_file import NodeList, encode_cluster_file
from clustor.runtime.data_directory import write_durably
from clustor.runtime.errors import DataDirectoryRefused
from clustor.runtime.group import HostedGroup
from clustor.runtime.pki.identity import NodeId

if TYPE_CHECKING:
    from clustor.runtime.node import Node

NUMBER: Final = 1_000_010
"""Its place among the services of a node; development clusters share a file instead."""
_TELL_MS: Final = 1_000

journal = logging.getLogger("clustor.node")


class NodeListService:
    """One node's own `cluster.json`, kept as new as the newest of its peers'."""

    def __init__(self, node: Node, file: Path) -> None:
        self._node = node
        self._file = file
        self._told_ms = 0
        self.on_changed: Callable[[], None] = lambda: None
        """Told when another list is in force."""
        self._waiting: dict[NodeId, bytes] = {}
        """What leaves with this turn."""
        node.serve(self, NUMBER)

    def keep(self, fresh: NodeList) -> None:
        """Write a newer list down and act on it; the same one again changes nothing.

        Raises DataDirectoryRefused for one that is older, another cluster's, or without this node.
        """
        known = self._node.cluster
        if fresh == known.node_list:
            return
        if fresh.birth_id != known.birth:
            raise DataDirectoryRefused("a list of another cluster's nodes", cluster=known.id)
        if fresh.version <= known.list_version:
            raise DataDirectoryRefused(
                "the cluster has a newer list of nodes", has=known.list_version, got=fresh.version
            )
        wanted = known.listing(fresh)
        write_durably(self._file, encode_cluster_file(wanted), 0o644)
        self._node.adopt_cluster(wanted)
        listed = [entry.node_id for entry in wanted.nodes]
        journal.info("the cluster's nodes are now %s (list %d)", listed, fresh.version)
        self._told_ms = 0
        self.on_changed()

    # What the node calls.

    def prepare(self) -> None:
        """Propose nothing: no group is ours."""

    def on_output(self, _group: HostedGroup, _output: ReplicaOutput) -> None:
        """Take nothing: no group is ours."""

    def flush(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for peer, data in waiting.items():
            self._node.send_service(NUMBER, peer, data)

    def on_tick(self) -> None:
        now_ms = self._node.now_ms()
        if now_ms - self._told_ms < _TELL_MS:
            return
        self._told_ms = now_ms
        version = b"%d" % self._node.cluster.list_version
        for peer in self._node.transport.connected():
            self._waiting.setdefault(peer, version)
        if self._waiting:
            self._node.turn_soon()

    def on_peer_data(self, peer: NodeId, data: bytes) -> None:
        if data.isdigit() and len(data) < 20:
            if int(data) < self._node.cluster.list_version:
                self._waiting[peer] = msgspec.json.encode(self._node.cluster.node_list)
                self._node.turn_soon()
            return
        try:
            fresh = msgspec.json.decode(data, type=NodeList)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            journal.warning("node %d sent a list of nodes that cannot be read", peer)
            return
        if fresh.version > self._node.cluster.list_version:
            try:
                self.keep(fresh)
            except DataDirectoryRefused as error:
                journal.error("the list of node %d is not taken: %s", peer, error)

    def on_peer_lost(self, peer: NodeId) -> None:
        self._waiting.pop(peer, None)
