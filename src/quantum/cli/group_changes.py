"""Changing the members of all groups of a cluster: asked, watched, and asked again until done.

Every step can be repeated: what is already as wanted is left alone. So a command that was
interrupted is simply given once more.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, Final

from clustor.runtime.peers.transport import Address
from quantum.cli.admin_client import (
    AdminDoorShut,
    AdminUnreachable,
    cluster_status,
    parse_address,
    post,
)
from quantum.cli.status_table import is_led_by

LOOK_SECONDS: Final = 0.05
ASK_AGAIN_SECONDS: Final = 0.5
SAY_AGAIN_SECONDS: Final = 5.0
_SHOWN_GROUPS: Final = 3

# What a leader says while it cannot begin *now*; anything else it says for good.
_NOT_INITIALIZED: Final = "NotInitialized"  # a newcomer brings the list that lists it
_PASSING: Final = (
    "not the leader",
    "the control plane was not heard for too long",
    "another change is under way",
    "the group is not placed yet",
    "the control plane does not know the node yet",
    "this term has committed nothing yet",
    "NotLeader",
    "MinLeaderTerm",
    "JointConfiguration",
)

Group = dict[str, Any]
Say = Callable[[str], None]


class ChangeFailed(Exception):
    """A group refused the change, or gave it up; nothing more was asked of it."""


class ChangeTimedOut(Exception):
    """The change was not over in time. It may still go on by itself."""


class GroupChanges:
    """One operator at a cluster, whose nodes are found from `addresses`, until a deadline.

    `say` hears every few seconds what a change waits for.
    """

    def __init__(
        self, addresses: list[Address], timeout_seconds: float, say: Say = lambda _line: None
    ) -> None:
        self._addresses = addresses
        self._deadline = time.monotonic() + timeout_seconds
        self._say = say
        self._asked: dict[tuple[int, str], float] = {}
        self._put_off: dict[int, str] = {}
        """Why each group's leader could not begin when it was asked last."""
        self._waits_for = ""
        self._said_at = time.monotonic()

    # Looking.

    def status(self) -> dict[str, Any]:
        """Ask every node; raises AdminUnreachable where none answers."""
        return cluster_status(self._addresses)

    def leading(self) -> dict[int, Group]:
        """Return each group as its leader of the highest term sees it; its `admin` beside it."""
        return leaders_in(self.status())

    def partitions(self) -> set[int]:
        """Return the numbers of all groups that any node hosts."""
        return partitions_in(self.status())

    # Changing.

    def add(self, node_id: int, reason: str = "") -> list[Group]:
        """Make a node a voter of every group; it catches up first. Returns the groups."""
        return self._change("add", node_id, reason, lambda group: node_id in group["voters"])

    def remove(self, node_id: int, reason: str = "") -> list[Group]:
        """Take a node out of every group, its leadership first."""

        def gone(group: Group) -> bool:
            return node_id not in (*group["voters"], *group["learners"])

        return self._change("remove", node_id, reason, gone)

    def transfer(self, partition: int, node_id: int) -> None:
        """Let a node lead a group."""
        for leaders in self._until(f"node {node_id} leads group {partition}"):
            group = leaders.get(partition)
            if group is not None and group["leader_id"] == node_id:
                return
            if group is not None and self._may_ask(partition, "leader"):
                self._order(group, "leader", {"node_id": node_id})

    def _change(
        self, kind: str, node_id: int, reason: str, done: Callable[[Group], bool]
    ) -> list[Group]:
        partitions = self.partitions()
        order = {"kind": kind, "node_id": node_id, "reason": reason}
        for leaders in self._until(f"every group has finished to {kind} node {node_id}"):
            waiting = [group for group in leaders.values() if not (done(group) and _rests(group))]
            if leaders.keys() == partitions and not waiting:
                return [leaders[partition] for partition in sorted(leaders)]
            for group in waiting:
                self._push(group, kind, order)
            self._tell(waiting, partitions - leaders.keys())
        raise AssertionError("the wait ends by returning or raising")

    def _tell(self, waiting: list[Group], unled: set[int]) -> None:
        """Note what the change waits for, and say it now and then."""
        causes = [f"group {partition} has no leader" for partition in sorted(unled)]
        causes += [f"group {each['partition_id']}: {self._cause(each)}" for each in waiting]
        more = len(causes) - _SHOWN_GROUPS
        self._waits_for = "; ".join(causes[:_SHOWN_GROUPS]) + (f"; {more} more" if more > 0 else "")
        now = time.monotonic()
        if self._waits_for and now - self._said_at >= SAY_AGAIN_SECONDS:
            self._said_at = now
            self._say(f"waiting for {self._waits_for}")

    def _cause(self, group: Group) -> str:
        """Say in which step a group's change is, or why its leader cannot begin it."""
        if not _rests(group):
            phase = group["membership_phase"]
            return f"its change is in {phase}" if phase != "Idle" else "its change is not recorded"
        return self._put_off.get(group["partition_id"], "its change is asked for")

    def _push(self, group: Group, kind: str, order: dict[str, object]) -> None:
        """Move one group's change on, where it is for us to do."""
        partition = group["partition_id"]
        if group["rolled_back"] and (partition, kind) in self._asked:
            raise ChangeFailed(f"group {partition} went back: {group['rolled_back']}")
        if not _rests(group):
            return
        heirs = [voter for voter in group["voters"] if voter != group["leader_id"]]
        if kind == "remove" and group["leader_id"] == order["node_id"] and heirs:
            if self._may_ask(partition, "leader"):
                self._order(group, "leader", {"node_id": self._best_heir(group)})
        elif self._may_ask(partition, kind):
            self._order(group, "members", order)

    def _best_heir(self, group: Group) -> int:
        """Name the voter that is furthest: it has the least to catch up with."""
        voters = [member for member in group["members"] if member["kind"] == "voter"]
        best: int = max(voters, key=lambda member: member["match_index"])["replica_id"]
        return best

    # Asking.

    def _order(self, group: Group, page: str, order: dict[str, object]) -> None:
        path = f"/groups/{group['partition_id']}/{page}"
        try:
            code, answer = post(parse_address(group["admin"]), path, order)
        except AdminUnreachable:
            return  # another leader will be found, or this one again
        if code in (200, 202):
            self._put_off.pop(group["partition_id"], None)
        elif answer.get("error") in _PASSING:
            self._put_off[group["partition_id"]] = answer["error"]
        else:
            raise ChangeFailed(f"group {group['partition_id']}: {answer.get('error', code)}")

    def reload(self, listed: dict[str, object] | None = None) -> None:
        """Let every node that runs read the list of nodes again; others do when they start.

        `listed` is the list itself, for hosts that share no directory.
        """
        for admin in _admins(self.status()).values():
            try:
                code, answer = post(parse_address(admin), "/reload", listed or {})
            except AdminUnreachable:
                continue
            if code != 200 and answer.get("error") != _NOT_INITIALIZED:
                raise ChangeFailed(f"{admin} cannot read the list: {answer.get('error', code)}")

    def wait_for_node(self, node_id: int) -> dict[str, Any]:
        """Wait until a node answers, and return its status."""
        for _ in self._until(f"node {node_id} answers"):
            for node in self.status()["nodes"]:
                if node["node_id"] == node_id and "groups" in node:
                    found: dict[str, Any] = node
                    return found
        raise AssertionError("the wait ends by returning or raising")

    def _may_ask(self, partition: int, what: str) -> bool:
        now = time.monotonic()
        if now - self._asked.get((partition, what), 0.0) < ASK_AGAIN_SECONDS:
            return False
        self._asked[partition, what] = now
        return True

    def _until(self, what: str) -> Iterator[dict[int, Group]]:
        """Look again and again; the caller returns when it sees what it waits for."""
        problem = ""
        while time.monotonic() < self._deadline:
            try:
                leaders = self.leading()
            except AdminDoorShut:
                raise
            except AdminUnreachable as error:
                problem = f": {error}"
            else:
                problem = ""
                yield leaders
            time.sleep(LOOK_SECONDS)
        problem = problem or (f"; waiting for {self._waits_for}" if self._waits_for else "")
        raise ChangeTimedOut(f"not in time: {what}{problem}")


def leaders_in(found: dict[str, Any]) -> dict[int, Group]:
    """Return each group as its leader of the highest term sees it; its `admin` beside it."""
    admins = _admins(found)
    leaders: dict[int, Group] = {}
    for node in found["nodes"]:
        for group in all_groups(node):
            known = leaders.get(group["partition_id"])
            later = known is None or group["term"] > known["term"]
            if is_led_by(group) and later:
                admin = admins[node["node_id"]]
                leaders[group["partition_id"]] = {**group, "admin": admin}
    return leaders


def partitions_in(found: dict[str, Any]) -> set[int]:
    """Return the numbers of all groups that any node hosts."""
    return {group["partition_id"] for node in found["nodes"] for group in all_groups(node)}


def silent_in(found: dict[str, Any]) -> dict[int, str]:
    """Return the nodes that do not answer, each with the reason."""
    return {node["node_id"]: node["error"] for node in found["nodes"] if "error" in node}


def all_groups(node: dict[str, Any]) -> list[Group]:
    """Return the groups in a node's status, the control plane's own behind the others."""
    groups: list[Group] = node.get("groups", [])
    control = node.get("control")
    return [*groups, {**control["group"], "is_control": True}] if control else groups


def _rests(group: Group) -> bool:
    """Say whether no change is under way, and the last one is recorded."""
    settled = group["membership_phase"] == "Idle" and not group["outgoing"]
    return bool(settled and group["membership_recorded"])


def _admins(found: dict[str, Any]) -> dict[int, str]:
    """Return where each node is, as the first that answered knows it."""
    return {int(entry["node_id"]): str(entry["admin"]) for entry in found["addresses"]}
