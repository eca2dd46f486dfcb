"""What an operator may order on the admin port, beside looking: members, leaders, the node list.

A command answers at once with what it began; `GET /status` tells how it ended.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from clustor.log.types import PartitionId
from clustor.raft.control_plane import CacheState
from clustor.raft.errors import MembershipRefused
from clustor.raft.leadership import ProposalRefusal
from clustor.raft.types import ReplicaId
from clustor.runtime.cluster_file import ClusterFile, NodeList
from clustor.runtime.control.waivers import take_waiver
from clustor.runtime.errors import NodeError
from clustor.runtime.group import HostedGroup
from clustor.runtime.members import WantedChange, change_members

if TYPE_CHECKING:
    from clustor.runtime.node import Node
    from clustor.runtime.pki.certificate_watch import NodeTrust

Answer: TypeAlias = tuple[int, object]
"""The HTTP status, and what is sent as JSON."""

CONTROL_EXPIRED: Final = "the control plane was not heard for too long"  # clustor §14.2

_GROUP_PATH: Final = re.compile(r"/groups/([1-9][0-9]{0,19})/(members|leader|pause|scrub)")

journal = logging.getLogger("clustor.node")


class WantedLeader(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`POST /groups/<number>/leader`: let this node lead the group."""

    node_id: int


class WantedPause(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`POST /groups/<number>/pause`: let this node's replica of the group hang, or go on."""

    paused: bool


class WantedShift(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`POST /clock`: let this node's guard see a time of day that is so much off."""

    shift_ms: int


class AdminCommands:
    """The commands of one node. `read_cluster` reads the list of nodes as it is now."""

    def __init__(self, node: Node, read_cluster: Callable[[], ClusterFile]) -> None:
        self._node = node
        self._read_cluster = read_cluster
        self.scrub_now: Callable[[HostedGroup], dict[str, Any]] | None = None
        """Begins to read a whole group again; None: nothing here does."""
        self.keep_list: Callable[[NodeList], None] | None = None
        """Writes down which nodes there are, where each keeps its own list; raises NodeError."""
        self.office: Callable[[], dict[str, object]] | None = None
        """Returns what one more host is set up with; None: it lies in the cluster's directory."""
        self.trust: NodeTrust | None = None
        """Whom waivers are given to."""

    def carry_out(self, path: str, body: bytes) -> Answer:
        """Do what was posted; every refusal is an answer too."""
        if path == "/reload":
            return self._reload(body)
        if path == "/clock":
            return self._shift_clock(body)
        if path == "/office" and self.office is not None:
            return 200, self.office()
        if path == "/revocation/waiver":
            return take_waiver(self._node, self.trust, body)
        found = _GROUP_PATH.fullmatch(path)
        group = None if found is None else self._node.groups.get(PartitionId(int(found[1])))
        if found is None or group is None:
            return 404, {"error": "no such page"}
        try:
            if found[2] == "scrub" and self.scrub_now is not None:
                return 202, self.scrub_now(group)
            if found[2] == "members":
                return self._change(group, msgspec.json.decode(body, type=WantedChange))
            if found[2] == "pause":
                return self._pause(group, msgspec.json.decode(body, type=WantedPause))
            return self._transfer(group, msgspec.json.decode(body, type=WantedLeader))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            return 400, {"error": f"not what this page takes: {_why(error)}"}

    def _reload(self, body: bytes) -> Answer:
        """Take the list that is sent, or read the one that all nodes of a directory share."""
        try:
            if body.strip() in (b"", b"{}"):
                self._node.adopt_cluster(self._read_cluster())
            elif self.keep_list is None:
                return 409, {"error": "this node reads its list in the cluster's own directory"}
            else:
                self.keep_list(msgspec.json.decode(body, type=NodeList))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            return 400, {"error": f"not what this page takes: {_why(error)}"}
        except NodeError as error:
            return 409, {"error": str(error)}
        nodes = [entry.node_id for entry in self._node.cluster.nodes]
        journal.info("the cluster's nodes are now %s", nodes)
        return 200, {"nodes": nodes}

    def _change(self, group: HostedGroup, wanted: WantedChange) -> Answer:
        known = {entry.node_id for entry in self._node.cluster.nodes}
        if wanted.kind == "add" and wanted.node_id not in known:
            return 409, {"error": "no such node in the cluster", "node_id": wanted.node_id}
        control = self._node.control
        if control is not None and control.cache_state() is CacheState.EXPIRED:
            return 409, {"error": CONTROL_EXPIRED, "leader": self._leader(group)}
        try:
            epoch = None if control is None else control.epoch_above(group)
            begun = change_members(group, wanted, epoch)
        except MembershipRefused as error:
            return 409, {"error": error.reason, "leader": self._leader(group)}
        journal.info("group %d: %s node %d begins", group.partition_id, wanted.kind, wanted.node_id)
        self._node.touch(group)
        return 202, begun

    def _transfer(self, group: HostedGroup, wanted: WantedLeader) -> Answer:
        target = ReplicaId(wanted.node_id)
        if group.replica.leads and target == group.replica.leader_id:
            return 202, {"leader_id": target}
        refused = group.replica.transfer(target)
        if refused is not None:
            early = refused.reason is ProposalRefusal.TOO_YOUNG
            answer = {"error": str(refused.reason), "leader": self._leader(group), "early": early}
            return 409, answer
        self._node.touch(group)
        return 202, {"leader_id": target}

    def _pause(self, group: HostedGroup, wanted: WantedPause) -> Answer:
        if not self._node.cluster.fault_injection:
            return 403, {"error": "cluster.json does not allow fault_injection"}
        journal.warning("group %d: told to %s", group.partition_id, _verb(wanted.paused))
        self._node.pause(group, paused=wanted.paused)
        return 200, {"paused": wanted.paused}

    def _shift_clock(self, body: bytes) -> Answer:
        if not self._node.cluster.fault_injection or self._node.duties is None:
            return 403, {"error": "cluster.json does not allow fault_injection"}
        try:
            wanted = msgspec.json.decode(body, type=WantedShift)
        except msgspec.MsgspecError as error:
            return 400, {"error": f"not what this page takes: {error}"}
        journal.warning("the clock is told to be %d ms off", wanted.shift_ms)
        self._node.duties.shift_ms = wanted.shift_ms
        return 200, {"shift_ms": wanted.shift_ms}

    def _leader(self, group: HostedGroup) -> str:
        return self._node.admin_address(group.replica.leader_id)


def _why(error: Exception) -> str:
    """Say what is wrong with a body, without its bytes."""
    return str(error) if isinstance(error, msgspec.MsgspecError) else "it is not JSON in UTF-8"


def _verb(paused: bool) -> str:
    return "hang" if paused else "go on"
