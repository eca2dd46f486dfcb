"""`quantum cluster members`, `add-node`, `remove-node`, `rejoin-node`, `transfer-leader`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from clustor.runtime.cluster_file import CLUSTER_FILE, read_cluster_file
from clustor.runtime.data_directory import permit_rejoin, withdraw_rejoin
from clustor.runtime.development import NODES_MAX, forget_node, node_directory, prepare_node
from clustor.runtime.errors import NodeError
from clustor.runtime.peers.transport import Address
from clustor.runtime.pki.identity import NodeId, utc_now
from quantum.cli.admin_client import AdminUnreachable, fail_unreachable, parse_address
from quantum.cli.credentials import speak_beside, speaking
from quantum.cli.exits import Exit, fail
from quantum.cli.group_changes import (
    ChangeFailed,
    ChangeTimedOut,
    Group,
    GroupChanges,
    all_groups,
    leaders_in,
    partitions_in,
    silent_in,
)
from quantum.cli.node_exits import exit_of_node

Admin = Annotated[
    str | None, typer.Option(metavar="HOST:PORT", help="The admin address of any node.")
]
MaybeData = Annotated[Path | None, typer.Option("--data", help="The cluster's directory, instead.")]
Data = Annotated[Path, typer.Option("--data", help="The cluster's directory.")]
Node = Annotated[int, typer.Argument(min=1, help="The number of a node.")]
Timeout = Annotated[float, typer.Option(min=0.1, help="Seconds to wait for the change.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Force = Annotated[
    str,
    typer.Option(metavar="REASON", help="Do it although the groups would not survive a loss."),
]


@speaking
def members(*, admin: Admin = None, data: MaybeData = None, as_json: AsJson = False) -> None:
    """List the members of every group, and how a change of them stands.

    Voters decide; learners only receive, until they have caught up. While a change is in its
    Joint phase, the voters before it (`outgoing`) must agree to everything, too.

    Exit code 0: every group has a leader, and every node answers. 1: one has none, or a node
    does not. 12: no node answered.
    """
    with _telling():
        found = GroupChanges(addresses_of(admin, data), timeout_seconds=0.0).status()
    leading, silent = leaders_in(found), silent_in(found)
    groups = [leading[partition] for partition in sorted(leading)]
    _show(groups, {"silent": sorted(silent)}, as_json)
    for node, reason in silent.items():
        typer.echo(f"node {node} does not answer: {reason}", err=True)
    led = leading.keys() == partitions_in(found)
    raise typer.Exit(0 if led and not silent else Exit.FAILED)


@speaking
def add_node(*, data: Data, timeout: Timeout = 180.0, as_json: AsJson = False) -> None:
    """Start one more node, and make it a voter of every group.

    The node gets the next number and its ports. It joins each group as a learner, catches up,
    and then becomes a voter through joint consensus; writes go on meanwhile. An addition that
    was interrupted is gone on with. `quantum cluster up` must be running: it starts the node.

    Exit code 1: a group refused or went back. 3: not a cluster's directory. 12: not in time.
    """
    with _telling():
        changes = GroupChanges(addresses_of(None, data), timeout, _say)
        node_id = _unfinished(data, changes) or _new_node(data)
        changes.reload(_listed(data))
        changes.wait_for_node(node_id)
        _report(node_id, changes.add(node_id), as_json)


@speaking
def remove_node(
    node: Node, *, data: Data, force: Force = "", timeout: Timeout = 60.0, as_json: AsJson = False
) -> None:
    """Take node NODE out of every group, then stop it. Its directory stays.

    It first hands over what it leads. A node that is dead can be removed as well, as long as
    the others are a majority. Fewer than three voters do not survive a loss: that needs --force.
    The number is never given again.

    Exit code 1: a group refused or went back. 3: no such node. 12: not in time.
    """
    with _telling():
        read_cluster_file(data / CLUSTER_FILE).node(NodeId(node))
        changes = GroupChanges(addresses_of(None, data, but=node), timeout, _say)
        groups = changes.remove(node, force)
        forget_node(data, NodeId(node))
        changes.reload(_listed(data))
        _report(node, groups, as_json)


@speaking
def rejoin_node(
    node: Node, *, data: Data, timeout: Timeout = 180.0, as_json: AsJson = False
) -> None:
    """Let a node whose disk lost its data start empty, and take it in again as a new member.

    Such a node refuses to start, because it may have voted and acknowledged what it no longer
    knows. It may come back without a vote; the groups then remove it, and add it as a learner
    that catches up and becomes a voter. A majority of the other nodes must be running.

    Exit code 1: a group refused, or the node is running. 3: no such node. 12: not in time.
    """
    with _telling():
        cluster = read_cluster_file(data / CLUSTER_FILE)
        cluster.node(NodeId(node))
        changes = GroupChanges(addresses_of(None, data, but=node), timeout, _say)
        directory = node_directory(data, NodeId(node))
        permit_rejoin(directory, _epochs(changes, node))
        try:
            started = changes.wait_for_node(node)
        finally:
            withdraw_rejoin(directory)
        if not any(group["rejoining"] for group in started["groups"]):
            raise ChangeFailed(f"node {node} has lost nothing")
        changes.remove(node, f"the disk of node {node} was lost")
        _report(node, changes.add(node), as_json)


@speaking
def transfer_leader(
    to: Annotated[int, typer.Option("--to", min=1, help="The node that is to lead.")],
    *,
    group: Annotated[int, typer.Option(min=1, help="Which group.")] = 1,
    admin: Admin = None,
    data: MaybeData = None,
    timeout: Timeout = 10.0,
    as_json: AsJson = False,
) -> None:
    """Let another node lead a group. Writes wait a moment, and none is lost.

    A leader keeps a new term for a while before it hands it on; the command waits for that.

    Exit code 0: it leads. 1: it is no voter of the group. 12: not in time.
    """
    with _telling():
        GroupChanges(addresses_of(admin, data), timeout).transfer(group, to)
    found = {"group": group, "leader_id": to}
    typer.echo(json.dumps(found) if as_json else f"node {to} leads group {group}")


def addresses_of(admin: str | None, data: Path | None, *, but: int = 0) -> list[Address]:
    """Return where to ask; exactly one of the two must be given."""
    if (admin is None) == (data is None):
        fail("give either --admin or --data", Exit.USAGE)
    if admin is not None:
        try:
            return [parse_address(admin)]
        except ValueError as error:
            fail(str(error), Exit.USAGE)
    assert data is not None
    speak_beside(data)
    nodes = read_cluster_file(data / CLUSTER_FILE).nodes
    return [entry.admin for entry in nodes if entry.node_id != but]


@contextmanager
def _telling() -> Iterator[None]:
    """Turn what goes wrong into one line and an exit code."""
    try:
        yield
    except NodeError as error:
        fail(str(error), exit_of_node(error))
    except ChangeFailed as error:
        fail(str(error), Exit.FAILED)
    except ChangeTimedOut as error:
        fail(str(error), Exit.UNREACHABLE)
    except AdminUnreachable as error:
        fail_unreachable(error)


def _listed(data: Path) -> dict[str, object] | None:
    """Return the list of nodes as it is sent; None: the nodes share the directory, and read it."""
    cluster = read_cluster_file(data / CLUSTER_FILE)
    found: dict[str, object] = msgspec.to_builtins(cluster.node_list)
    return found if cluster.production else None


def _new_node(data: Path) -> int:
    if read_cluster_file(data / CLUSTER_FILE).production:
        raise ChangeFailed("every listed host is a member: `quantum cluster add-host` adds one")
    if len(read_cluster_file(data / CLUSTER_FILE).nodes) >= NODES_MAX:
        raise ChangeFailed(f"a development cluster has at most {NODES_MAX} nodes")
    return prepare_node(data, utc_now()).node_id


def _unfinished(data: Path, changes: GroupChanges) -> int | None:
    """Return a node that was listed before and is not yet a voter everywhere."""
    joined = [entry for entry in read_cluster_file(data / CLUSTER_FILE).nodes if not entry.founder]
    leading = changes.leading()
    for entry in joined:
        if any(entry.node_id not in group["voters"] for group in leading.values()):
            return entry.node_id
    return None


def _epochs(changes: GroupChanges, node: int) -> dict[int, int]:
    """Ask for every group's newest routing epoch, of a leader that a majority knows.

    Whatever the lost replica took part in is of that epoch or older: a leader of the highest
    term among a majority, with no change under way, holds every change that can still count.
    """
    found = changes.status()["nodes"]
    if any(each["node_id"] == node and "groups" in each for each in found):
        raise ChangeFailed(f"node {node} is running")
    leading, epochs = changes.leading(), {}
    for partition in sorted(changes.partitions()):
        group = leading.get(partition)
        terms = [
            each["term"]
            for other in found
            for each in all_groups(other)
            if each["partition_id"] == partition
        ]
        if group is None or max(terms) > group["term"] or 2 * len(terms) <= len(group["voters"]):
            raise ChangeFailed(f"group {partition} has no leader that a majority follows")
        if group["membership_phase"] != "Idle" or not group["wal_committed_index"]:
            raise ChangeFailed(f"another change of group {partition} is under way")
        epochs[partition] = group["routing_epoch"]
    return epochs


def _of_group(group: Group) -> dict[str, Any]:
    return {
        "group": group["partition_id"],
        "leader_id": group["leader_id"],
        "term": group["term"],
        "voters": group["voters"],
        "outgoing": group["outgoing"],
        "learners": group["learners"],
        "phase": group["membership_phase"],
        "recorded": group["membership_recorded"],
        "routing_epoch": group["routing_epoch"],
    }


def _line(group: dict[str, Any]) -> str:
    parts = [f"group {group['group']}", f"leader {group['leader_id']}"]
    for name in ("voters", "outgoing", "learners"):
        if group[name]:
            parts.append(f"{name} {','.join(map(str, group[name]))}")
    parts.append(f"epoch {group['routing_epoch']}")
    if group["phase"] != "Idle":
        parts.append(f"phase {group['phase']}")
    return "  ".join(parts)


def _say(line: str) -> None:
    typer.echo(line, err=True)


def _report(node: int, groups: list[Group], as_json: bool) -> None:
    if not as_json:
        typer.echo(f"node {node}")
    _show(groups, {"node_id": node}, as_json)


def _show(groups: list[Group], head: dict[str, Any], as_json: bool) -> None:
    """Print the groups; the control plane's own stands apart from those with data."""
    found = [_of_group(group) for group in groups if "is_control" not in group]
    control = [_of_group(group) for group in groups if "is_control" in group]
    if as_json:
        typer.echo(json.dumps({**head, "groups": found, "control": control}))
        return
    for line in map(_line, [*found, *control]):
        typer.echo(line)
