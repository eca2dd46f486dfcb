"""`quantum status`, `sessions`, `topics`, `retained`, `session show|kick`: look at a broker."""

from __future__ import annotations

import json
from typing import Annotated, Any, Final
from urllib.parse import quote, urlencode

import typer

from quantum.cli.admin_client import (
    TIMEOUT_SECONDS,
    AdminUnreachable,
    fail_unreachable,
    fetch,
    parse_address,
    post,
)
from quantum.cli.credentials import speaking
from quantum.cli.exits import Exit, fail

ADMIN_DEFAULT: Final = "127.0.0.1:9080"

Admin = Annotated[
    str,
    typer.Option(
        metavar="HOST:PORT", envvar="QUANTUM_ADMIN", help="The admin address of any node."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Limit = Annotated[int, typer.Option(min=1, max=1000, help="How many to print.")]
After = Annotated[str, typer.Option(help="Go on behind this one: the page before names it.")]
Tenant = Annotated[
    str, typer.Option(metavar="NAME", help="Whose they are; needed where there are several.")
]

session_app = typer.Typer(help="Look at one session, or end it.", no_args_is_help=True)


@speaking
def status(admin: Admin = ADMIN_DEFAULT, *, as_json: AsJson = False) -> None:
    """Show the broker's partitions: who serves them, and what is in them.

    Exit code 0: every partition has a leader and takes writes. 1: one has no leader, a group has
    stopped, the disk is too full for writes, or the control plane is away. 12: no node answered.
    """
    found = get_page(admin, "/v1/broker/status")
    if as_json:
        typer.echo(json.dumps(found))
    else:
        _print_status(found)
    led = all(row["leader"] is not None for row in found["partitions"])
    raise typer.Exit(Exit.FAILED if not led or _problems(found) else 0)


def _problems(found: dict[str, Any]) -> list[str]:
    """Say what is wrong, with its cause and what to do, one line each."""
    lines = [
        f"group {each['group']} has stopped: {each['cause']}; mend the cause and restart the node"
        for each in found["stopped"]
    ]
    if found["disk"]["level"] == "DiskHard":
        free = int(found["disk"]["free_bytes"] or 0) / 1e6
        lines.append(f"writes are refused: only {free:.0f} MB are free on the disk; make room")
    for cause in found.get("closed", [])[:1]:
        lines.append(f"clients must wait: {cause}; bring the control plane back")
    return lines


def _print_status(found: dict[str, Any]) -> None:
    names = ("tenant", "partition", "leader", "state")
    counts = ("sessions", "filters", "retained", "queued")
    print_table("Partitions", (*names, *counts), found["partitions"])
    typer.echo(f"{found['connections']} connections here, {found['dropped']} messages dropped")
    for fault, count in sorted(found["faults"].items()):
        typer.echo(f"refused {count} times: {fault}")
    for problem in _problems(found):
        typer.echo(problem)


@speaking
def sessions(
    admin: Admin = ADMIN_DEFAULT,
    *,
    tenant: Tenant = "",
    contains: Annotated[str, typer.Option(help="Only client ids that contain this.")] = "",
    after: After = "",
    limit: Limit = 100,
    as_json: AsJson = False,
) -> None:
    """List sessions: connected clients, and those that will come back."""
    found = _page(admin, tenant, "sessions", {"contains": contains}, after, limit)
    columns = ("client_id", "connected", "subscriptions", "queued", "in_flight", "full")
    _show(found, "Sessions", columns, as_json=as_json)


@speaking
def topics(
    topic_filter: Annotated[str, typer.Argument(metavar="FILTER", help="Only these.")] = "",
    admin: Admin = ADMIN_DEFAULT,
    *,
    tenant: Tenant = "",
    after: After = "",
    limit: Limit = 100,
    as_json: AsJson = False,
) -> None:
    """List the filters that clients subscribe to."""
    found = _page(admin, tenant, "topics", {"filter": topic_filter}, after, limit)
    _show(found, "Topics", ("filter", "subscribers"), as_json=as_json)


@speaking
def retained(
    topic_filter: Annotated[str, typer.Argument(metavar="FILTER", help="Only these.")] = "#",
    admin: Admin = ADMIN_DEFAULT,
    *,
    tenant: Tenant = "",
    after: After = "",
    limit: Limit = 100,
    as_json: AsJson = False,
) -> None:
    """List retained messages."""
    found = _page(admin, tenant, "retained", {"filter": topic_filter}, after, limit)
    _show(found, "Retained", ("topic", "qos", "bytes", "payload"), as_json=as_json)


@session_app.command()
@speaking
def show(client_id: str, admin: Admin = ADMIN_DEFAULT, *, tenant: Tenant = "") -> None:
    """Print everything about one session, as JSON."""
    path = f"{tenant_path(admin, tenant)}/sessions/{quote(client_id, safe='')}"
    typer.echo(json.dumps(get_page(admin, path), indent=2))


@session_app.command()
@speaking
def kick(client_id: str, admin: Admin = ADMIN_DEFAULT, *, tenant: Tenant = "") -> None:
    """End a session: its client is disconnected, its subscriptions and queue are gone."""
    path = f"{tenant_path(admin, tenant)}/sessions/{quote(client_id, safe='')}/kick"
    code, answer = _order(admin, path)
    leader = answer.get("facts", {}).get("admin") if code == 409 else None
    if leader:
        code, answer = _order(leader, path)  # who leads the session's partition does it
    if code >= 400:
        fail(f"{answer.get('message', code)}: {client_id}", Exit.FAILED)
    typer.echo(f"ended the session of {client_id}")


def _order(admin: str, path: str) -> tuple[int, dict[str, Any]]:
    try:
        return post(parse_address(admin), path, {})
    except ValueError as error:
        fail(str(error), Exit.USAGE)
    except AdminUnreachable as error:
        fail_unreachable(error)


def tenant_path(admin: str, tenant: str) -> str:
    """Return the path of a tenant: the one that is named, or the only one that there is."""
    if tenant:
        return f"/v1/tenants/{quote(tenant, safe='')}"
    served = sorted({row["tenant"] for row in get_page(admin, "/v1/broker/status")["partitions"]})
    if len(served) != 1:
        names = ", ".join(served) or "none"
        fail(f"say whose it is: --tenant NAME (tenants served here: {names})", Exit.USAGE)
    return f"/v1/tenants/{quote(served[0], safe='')}"


def _page(  # noqa: PLR0917  # a page is all of these
    admin: str, tenant: str, name: str, wanted: dict[str, str], after: str, limit: int
) -> dict[str, Any]:
    asked = {name: text for name, text in {**wanted, "after": after}.items() if text}
    query = urlencode({**asked, "limit": limit})
    return get_page(admin, f"{tenant_path(admin, tenant)}/{name}?{query}")


def get_page(admin: str, path: str, *, seconds: float = TIMEOUT_SECONDS) -> dict[str, Any]:
    """Return a page, or end the command with a sentence; `seconds`: where logs are read for it."""
    try:
        code, answer = fetch(parse_address(admin), path, seconds=seconds)
    except ValueError as error:
        fail(str(error), Exit.USAGE)
    except AdminUnreachable as error:
        fail_unreachable(error, "start a broker with `make run`")
    if code != 200:
        fail(str(answer.get("message") or answer.get("error", code)), Exit.FAILED)
    return answer


def _show(found: dict[str, Any], title: str, columns: tuple[str, ...], *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(found))
        return
    print_table(title, columns, found["items"])
    if found["after"] is not None:
        typer.echo(f"there are more: --after {found['after']}")


def print_table(title: str, columns: tuple[str, ...], rows: list[dict[str, Any]]) -> None:
    from rich.console import Console  # late: what fails before needs no tables
    from rich.table import Table

    table = Table(title=title)
    for column in columns:
        is_number = bool(rows) and isinstance(rows[0].get(column), int)
        table.add_column(column.replace("_", " "), justify="right" if is_number else "left")
    for row in rows:
        table.add_row(*(_cell(row.get(column)) for column in columns))
    Console().print(table)


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return str(next((each for each in value.values() if each is not None), ""))
    return "-" if value is None else str(value)
