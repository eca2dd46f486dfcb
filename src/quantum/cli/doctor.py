"""`quantum doctor`: examine a node, or its whole cluster, from outside, and say what to do."""

from __future__ import annotations

import json
import socket
from typing import Annotated, Any

import typer

from clustor.runtime.peers.transport import Address
from clustor.wall_clock import wall_clock_ms
from quantum.cli.admin_client import (
    AdminUnreachable,
    fail_unreachable,
    fetch,
    fetch_status,
    parse_address,
)
from quantum.cli.broker import ADMIN_DEFAULT, Admin, AsJson
from quantum.cli.credentials import speaking
from quantum.cli.doctor_checks import (
    CHECKS,
    DoctorFinding,
    ExaminedNode,
    Severity,
    age_rows,
    examine,
)
from quantum.cli.exits import Exit, fail

_DIAL_SECONDS = 2.0


@speaking
def doctor(
    admin: Admin = ADMIN_DEFAULT,
    cluster: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Examine every node of this one's cluster."),
    ] = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Examine a node, or a whole cluster, from outside, and say what to do.

    It looks at clocks, disks, certificates, versions, listeners, plaintext exposure, groups,
    snapshots and scrubs with their ages, copies of the control plane, readiness, alerts, gates,
    consumer groups that are behind while nobody reads for them, and how old the newest backup and
    the last practised restore are.

    Exit code 0: nothing must be done (warnings may be there). 1: something is ill. 12: no node
    answered.
    """
    nodes = _whole(cluster) if cluster is not None else [_examined(None, _parsed(admin))]
    if all(each.facts is None for each in nodes):
        fail("no node answered; start a broker with `make run`", Exit.UNREACHABLE)
    found = examine(nodes, wall_clock_ms())
    if as_json:
        typer.echo(json.dumps(_body(nodes, found)))
    else:
        for line in _lines(nodes, found):
            typer.echo(line)
    ill = any(each.severity is Severity.ILL for each in found)
    raise typer.Exit(Exit.FAILED if ill else 0)


def _parsed(text: str) -> Address:
    try:
        return parse_address(text)
    except ValueError as error:
        fail(str(error), Exit.USAGE)


def _whole(text: str) -> list[ExaminedNode]:
    """Examine every node that one of them knows of."""
    try:
        status = fetch_status(_parsed(text))
    except AdminUnreachable as error:
        fail_unreachable(error, "name another node")
    return [_examined(each["node_id"], parse_address(each["admin"])) for each in status["nodes"]]


def _examined(number: int | None, admin: Address) -> ExaminedNode:
    asked_ms = wall_clock_ms()
    try:
        code, facts = fetch(admin, "/doctor")
        answered_ms = wall_clock_ms()
        _, ready = fetch(admin, "/readyz")
        status = fetch_status(admin)
        _, incidents = fetch(admin, "/incidents")
        lags_code, lags = fetch(admin, "/kafka/lag")
        backups_code, backups = fetch(admin, "/v1/backups")
    except AdminUnreachable:
        return ExaminedNode(number or 0, None)
    if code != 200:
        return ExaminedNode(number or 0, None)
    addresses = [each["address"] for each in facts["listeners"] if each["loopback"] or number]
    return ExaminedNode(
        facts["node_id"],
        facts,
        asked_ms,
        answered_ms,
        ready,
        status["control"],
        tuple(each for each in incidents["incidents"] if _is_young(each, answered_ms)),
        tuple(each for each in addresses if not _takes_connections(each)),
        tuple(lags["partitions"]) if lags_code == 200 else (),  # an older node has no such page
        backups if backups_code == 200 else None,
    )


def _is_young(incident: dict[str, Any], now_ms: int) -> bool:
    """Say whether an alert is of the last ten minutes: older ones are for `/incidents`."""
    return bool(now_ms - incident["at_ms"] < 600_000)


def _takes_connections(address: str) -> bool:
    try:
        where = parse_address(address)
        with socket.create_connection((where.host, where.port), _DIAL_SECONDS):
            return True
    except (OSError, ValueError):
        return False


def _body(nodes: list[ExaminedNode], found: list[DoctorFinding]) -> dict[str, Any]:
    return {
        "healthy": not any(each.severity is Severity.ILL for each in found),
        "checks": CHECKS,
        "nodes": [each.facts or {"node_id": each.node, "answers": False} for each in nodes],
        "findings": [each.as_json() for each in found],
    }


def _lines(nodes: list[ExaminedNode], found: list[DoctorFinding]) -> list[str]:
    lines = [f"examined {len(nodes)} node(s): {', '.join(CHECKS)}"]
    for node in nodes:
        lines += [] if node.facts is None else age_rows(node.node, node.facts)
    for each in found:
        where = f"node {each.node}" if each.node else "cluster"
        lines.append(f"{each.severity.upper():4} {where}: {each.what}")
        lines.append(f"     {each.check}: {each.todo}")
    return lines if found else [*lines, "nothing is wrong"]
