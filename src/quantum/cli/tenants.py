"""`quantum tenants show|grow`: the rings of tenants, and partitions added while clients work."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from typing import Annotated, Any, Final
from urllib.parse import quote

import typer

from quantum.cli.admin_client import (
    AdminUnreachable,
    fail_unreachable,
    fetch,
    parse_address,
    post,
)
from quantum.cli.broker import ADMIN_DEFAULT, Admin
from quantum.cli.credentials import speaking
from quantum.cli.exits import Exit, fail

LOOK_SECONDS: Final = 0.1
_PAGE: Final = "/v1/tenants/{tenant}/ring"

Tenant = Annotated[str, typer.Argument(metavar="TENANT", help="The tenant's name.")]

app = typer.Typer(help="Look at tenants' rings, or let one grow.", no_args_is_help=True)


@app.command()
@speaking
def show(tenant: Tenant, admin: Admin = ADMIN_DEFAULT) -> None:
    """Print a tenant's ring and what a change of it waits for, as JSON."""
    typer.echo(json.dumps(_look(admin, tenant), indent=2))


@app.command()
@speaking
def grow(
    tenant: Tenant,
    prgs: Annotated[int, typer.Option(min=1, help="How many partitions there shall be.")],
    admin: Admin = ADMIN_DEFAULT,
    *,
    timeout: Annotated[float, typer.Option(help="How long to watch, in seconds.")] = 60.0,
) -> None:
    """Add partitions to a tenant's ring, and watch until everything has moved.

    Clients go on meanwhile: those whose sessions move are asked to reconnect, and find them
    there, whole. A ring never shrinks. The order is written down before anything happens, so the
    change goes on by itself if this command, or a node, is interrupted.

    Exit code 0: done. 1: refused, or not over in time. 12: no node answered.
    """
    path = _PAGE.format(tenant=quote(tenant, safe=""))
    try:
        code, answer = post(parse_address(admin), path, {"prg_count": prgs})
    except ValueError as error:
        fail(str(error), Exit.USAGE)
    except AdminUnreachable as error:
        fail_unreachable(error)
    if code >= 400:
        fail(str(answer.get("message", code)), Exit.FAILED)
    _watch(admin, tenant, answer["epoch"], time.monotonic() + timeout)


def _watch(admin: str, tenant: str, epoch: int, deadline: float) -> None:
    said = ""
    while True:
        words = "the node to answer"
        with suppress(AdminUnreachable):  # it may be the one that was interrupted
            found = _ask(admin, tenant)
            if found["settled"] and found["routing_epoch"] >= epoch:
                typer.echo(f"{tenant} has {found['prg_count']} partitions (ring {epoch})")
                return
            words = "; ".join(_waits(found)) or "the nodes to host the new partitions"
        if words != said:
            typer.echo(f"waits for {words}")
            said = words
        if time.monotonic() >= deadline:
            fail(f"not over yet; it goes on by itself, waiting for {words}", Exit.FAILED)
        time.sleep(LOOK_SECONDS)


def _waits(found: dict[str, Any]) -> list[str]:
    return [
        f"{row['partition']}: {', '.join(row['waits_for'])}"
        for row in found["partitions"]
        if row["waits_for"]
    ]


def _look(admin: str, tenant: str) -> dict[str, Any]:
    try:
        return _ask(admin, tenant)
    except ValueError as error:
        fail(str(error), Exit.USAGE)
    except AdminUnreachable as error:
        fail_unreachable(error)


def _ask(admin: str, tenant: str) -> dict[str, Any]:
    code, answer = fetch(parse_address(admin), _PAGE.format(tenant=quote(tenant, safe="")))
    if code >= 400:
        fail(str(answer.get("message", code)), Exit.FAILED)
    return answer
