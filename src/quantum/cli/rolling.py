"""A rolling upgrade: one node at a time is drained, restarted on another build, and taken back.

Nothing is remembered between two runs: what is done is read off the nodes, so a run that was
interrupted is simply begun again. A node that runs the wanted build is left alone, but for being
wanted again where an earlier run had drained it.
"""

from __future__ import annotations

import shlex
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from clustor.runtime.peers.transport import Address
from quantum.cli.admin_api import AdminApi
from quantum.cli.admin_client import AdminUnreachable, cluster_status, fetch, parse_address
from quantum.cli.group_changes import all_groups, leaders_in, partitions_in, silent_in

LOOK_SECONDS: Final = 0.2
SAY_AGAIN_SECONDS: Final = 5.0
_DRAINING: Final = "Draining"
_SHOWN: Final = 4

Say = Callable[[str], None]


class UpgradeStopped(Exception):
    """The cluster is not fit for the next step, or the step failed. What was done stays done."""


class UpgradeTimedOut(Exception):
    """A step was not over in time; the same command goes on with it."""


@dataclass(frozen=True, slots=True)
class NodeBuild:
    """One node before its turn."""

    node_id: int
    admin: Address
    build: str
    pid: int
    leads: tuple[int, ...]
    is_draining: bool

    def runs(self, wanted: str) -> bool:
        """Say whether it runs the wanted build, however it was compiled."""
        return self.build.startswith(wanted)


@dataclass(frozen=True, slots=True)
class Cluster:
    """All nodes as they were seen at one moment."""

    nodes: tuple[NodeBuild, ...]
    silent: dict[int, str]
    unled: tuple[int, ...]
    behind: dict[int, tuple[int, ...]]
    """The nodes that are behind in groups that they vote in, by node."""
    changing: tuple[int, ...]

    def node(self, node_id: int) -> NodeBuild | None:
        """Return a node that answered."""
        return next((each for each in self.nodes if each.node_id == node_id), None)

    def unfit(self) -> str:
        """Say why the cluster would not survive the stop of one node; empty: it would."""
        for node, why in self.silent.items():
            return f"node {node} does not answer: {why}"
        if self.unled:
            return f"group {self.unled[0]} has no leader"
        if self.changing:
            return f"the members of group {self.changing[0]} are being changed"
        for node, groups in self.behind.items():
            return f"node {node} is behind in {_listed(groups)}"
        return ""


def look(addresses: list[Address]) -> Cluster:
    """Ask every node for its groups and its build. Raises AdminUnreachable where none answers."""
    found = cluster_status(addresses)
    leaders = leaders_in(found)
    admins = {int(each["node_id"]): parse_address(each["admin"]) for each in found["addresses"]}
    silent = silent_in(found)
    nodes: list[NodeBuild] = []
    for status in found["nodes"]:
        number = int(status["node_id"])
        if number in silent:
            continue
        try:
            code, facts = fetch(admins[number], "/doctor")
        except AdminUnreachable as error:
            silent[number] = str(error)
            continue
        build = str(facts.get("version", "")) if code == 200 else ""
        led = [g["partition_id"] for g in all_groups(status) if g["role"] == "Leader"]
        is_draining = status["mode"] == _DRAINING
        nodes.append(
            NodeBuild(number, admins[number], build, status["pid"], tuple(sorted(led)), is_draining)
        )
    groups = list(leaders.values())
    return Cluster(
        nodes=tuple(nodes),
        silent=silent,
        unled=tuple(sorted(partitions_in(found) - leaders.keys())),
        behind=_behind(groups),
        changing=tuple(g["partition_id"] for g in groups if g["membership_phase"] != "Idle"),
    )


def _behind(leaders: list[dict[str, Any]]) -> dict[int, tuple[int, ...]]:
    found: dict[int, list[int]] = {}
    for group in leaders:
        for member in group["members"]:
            if member["kind"] == "voter" and member["lag_class"] != "None":
                found.setdefault(member["replica_id"], []).append(group["partition_id"])
    return {node: tuple(groups) for node, groups in found.items()}


class RollingUpgrade:
    """One operator's way through all nodes, each within `seconds`."""

    def __init__(
        self, addresses: list[Address], wanted: str, restart: str | None, seconds: float, say: Say
    ) -> None:
        self._addresses = addresses
        self._wanted = wanted
        self._restart = restart
        self._seconds = seconds
        self._say = say

    def plan(self) -> list[NodeBuild]:
        """Return the nodes in the order in which they have their turn: who leads least, first."""
        cluster = look(self._addresses)
        if cluster.silent:
            raise UpgradeStopped(cluster.unfit())
        return sorted(cluster.nodes, key=lambda each: (len(each.leads), each.node_id))

    def run(self) -> list[int]:
        """Upgrade every node that runs another build; return their numbers."""
        done: list[int] = []
        for node in self.plan():
            if not node.runs(self._wanted):
                self._upgrade(node)
                done.append(node.node_id)
            elif node.is_draining:
                self._want(node, draining=False)
        return done

    def _upgrade(self, node: NodeBuild) -> None:
        self._wait(node, "the cluster can do without it", lambda seen: seen.unfit())
        self._want(node, draining=True)
        self._wait(node, "it leads nothing", lambda seen: _leads(seen, node))
        self._replace(node)
        self._wait(node, "it runs the wanted build", lambda seen: self._not_new(seen, node))
        self._wait(node, "it has caught up", lambda seen: seen.unfit())
        self._want(node, draining=False)
        self._wait(node, "it is wanted again", lambda seen: _still_drained(seen, node))
        self._say(f"node {node.node_id} is done")

    def _want(self, node: NodeBuild, *, draining: bool) -> None:
        self._say(f"node {node.node_id}: {'draining it' if draining else 'it may lead again'}")
        path = f"/v1/nodes/{node.node_id}/drain"
        told = AdminApi(node.admin).ask("POST", path, body={"draining": draining})
        if not told.is_done:
            said = told.body.get("message") or told.body.get("error") or told.code
            raise UpgradeStopped(f"node {node.node_id} cannot be drained: {said}")

    def _replace(self, node: NodeBuild) -> None:
        """Run the operator's own command, or leave that to the operator."""
        if self._restart is None:
            self._say(f"node {node.node_id}: install {self._wanted} there, and restart it now")
            return
        filled = self._restart.replace("{node}", str(node.node_id))
        line = shlex.split(filled.replace("{host}", node.admin.host))
        self._say(f"node {node.node_id}: {shlex.join(line)}")
        try:
            code = subprocess.run(line, check=False, timeout=self._seconds).returncode
        except (OSError, subprocess.TimeoutExpired) as error:
            raise UpgradeStopped(f"node {node.node_id}: {error}; it is drained") from error
        if code != 0:
            raise UpgradeStopped(f"node {node.node_id}: {line[0]} ended with {code}; it is drained")

    def _not_new(self, seen: Cluster, node: NodeBuild) -> str:
        now = seen.node(node.node_id)
        if now is None:
            return seen.silent.get(node.node_id, "it does not answer")
        return "" if now.runs(self._wanted) else f"it still runs {now.build}"

    def _wait(self, node: NodeBuild, what: str, problem: Callable[[Cluster], str]) -> None:
        """Look until nothing is in the way; say now and then what is."""
        why = ""
        said_at = time.monotonic()
        for seen in self._looks():
            why = problem(seen) if seen is not None else "no node answers"
            if not why:
                return
            if time.monotonic() - said_at >= SAY_AGAIN_SECONDS:
                said_at = time.monotonic()
                self._say(f"node {node.node_id}: waiting until {what}: {why}")
        raise UpgradeTimedOut(f"node {node.node_id}: not in time until {what}: {why}")

    def _looks(self) -> Iterator[Cluster | None]:
        deadline = time.monotonic() + self._seconds
        while time.monotonic() < deadline:
            try:
                yield look(self._addresses)
            except AdminUnreachable:
                yield None
            time.sleep(LOOK_SECONDS)


def _leads(seen: Cluster, node: NodeBuild) -> str:
    now = seen.node(node.node_id)
    if now is None or not now.leads:
        return ""  # one that is gone leads nothing
    return f"it leads {_listed(now.leads)}"


def _still_drained(seen: Cluster, node: NodeBuild) -> str:
    now = seen.node(node.node_id)
    return "it has not heard so" if now is None or now.is_draining else ""


def _listed(groups: tuple[int, ...]) -> str:
    shown = ", ".join(map(str, groups[:_SHOWN]))
    more = len(groups) - _SHOWN
    return f"group {shown}" + (f" and {more} more" if more > 0 else "")
