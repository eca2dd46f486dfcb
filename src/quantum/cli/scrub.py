"""`quantum scrub`: let every node read its logs again now, and say what was found."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Annotated, Any, Final

import typer

from clustor.runtime.peers.transport import Address
from quantum.cli.admin_client import (
    AdminUnreachable,
    fail_unreachable,
    fetch,
    fetch_status,
    parse_address,
    post,
)
from quantum.cli.broker import ADMIN_DEFAULT, Admin, AsJson
from quantum.cli.credentials import speaking
from quantum.cli.exits import Exit, fail

_PAUSE_SECONDS: Final = 0.1


@speaking
def scrub(
    admin: Admin = ADMIN_DEFAULT,
    *,
    group: Annotated[int, typer.Option(min=0, help="Only this group; 0: all of them.")] = 0,
    node: Annotated[int, typer.Option(min=0, help="Only on this node; 0: on all of them.")] = 0,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds to wait.")] = 600.0,
    as_json: AsJson = False,
) -> None:
    """Read every log again now, past the page cache, and authenticate every byte of it.

    Nodes do this by themselves, all of it within seven days; this does not wait for them. What
    is damaged is quarantined and repaired by its peers, and `quantum why GROUP` says how far
    that is.

    Exit code 0: everything is as it was written. 3: no such group or node. 6: something was
    damaged, or is being repaired. 12: a node did not answer, or not in time.
    """
    try:
        found = scrub_all(_nodes(admin, node), group, timeout)
    except AdminUnreachable as error:
        fail_unreachable(error, "see `quantum cluster status`")
    if not found:
        fail(f"no node hosts group {group}", Exit.NOT_FOUND)
    if as_json:
        typer.echo(json.dumps(found))
    else:
        for line in lines(found):
            typer.echo(line)
    raise typer.Exit(Exit.QUARANTINED if any(map(is_bad, found)) else 0)


def _nodes(admin: str, node: int) -> dict[int, Address]:
    """Ask one node who the others are."""
    try:
        address = parse_address(admin)
    except ValueError as error:
        fail(str(error), Exit.USAGE)
    status = fetch_status(address)
    entries = [entry for entry in status["nodes"] if not entry["admin"].endswith(":0")]
    nodes = {entry["node_id"]: parse_address(entry["admin"]) for entry in entries}
    nodes[status["node_id"]] = address
    if node and node not in nodes:
        fail(f"there is no node {node}", Exit.NOT_FOUND)
    return {node: nodes[node]} if node else nodes


def scrub_all(nodes: dict[int, Address], group: int, timeout: float) -> list[dict[str, Any]]:
    """Begin on all nodes at once, and return a row for each replica when it was read."""
    deadline = time.monotonic() + timeout
    begun = {at: _begin(address, group) for at, address in nodes.items()}
    return [
        row | {"node_id": at}
        for at, rows in begun.items()
        for row in _ended(nodes[at], rows, deadline)
    ]


def _begin(address: Address, group: int) -> dict[int, int]:
    """Order it; return how often each group had been read before."""
    code, page = fetch(address, "/scrub")
    if code != 200:
        raise AdminUnreachable(f"{address} answered {code}: it reads nothing again")
    wanted = [row for row in page["groups"] if group in (0, row["partition_id"])]
    for row in wanted:
        post(address, f"/groups/{row['partition_id']}/scrub", {})
    return {row["partition_id"]: row["asked_passes"] for row in wanted}


def _ended(address: Address, before: dict[int, int], deadline: float) -> Iterator[dict[str, Any]]:
    open_groups = dict(before)
    while open_groups:
        for row in fetch(address, "/scrub")[1]["groups"]:
            number = row["partition_id"]
            if number not in open_groups:
                continue
            if is_bad(row) or row["asked_passes"] > open_groups[number]:
                del open_groups[number]
                yield row
            elif not row["running"]:  # its replica was not ready when it was ordered
                post(address, f"/groups/{number}/scrub", {})
        if open_groups and time.monotonic() > deadline:
            left = ", ".join(map(str, open_groups))
            raise AdminUnreachable(f"{address} did not read groups {left} in time")
        time.sleep(_PAUSE_SECONDS)


def is_bad(row: dict[str, Any]) -> bool:
    return bool(row["problem"] or row["quarantine"] or row["failed"])


def lines(found: list[dict[str, Any]]) -> Iterator[str]:
    """Give one line for each replica."""
    for row in sorted(found, key=lambda each: (each["partition_id"], each["node_id"])):
        words = row["problem"] or row["quarantine"] or row["failed"]
        words = words or f"whole, {row['read_bytes']} bytes read"
        yield f"group {row['partition_id']}  node {row['node_id']}  {words}"
