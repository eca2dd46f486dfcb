"""`quantum explain`: which rule decides, asked of the broker that would decide by it."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Annotated, Any
from urllib.parse import quote, urlencode

import typer

from quantum.cli.broker import ADMIN_DEFAULT, Admin, AsJson
from quantum.cli.credentials import speaking
from quantum.cli.exits import Exit, fail
from quantum.cli.why import ask_all, find_nodes
from quantum.tenancy import ResourceKind

app = typer.Typer(help="Say which rule decides.", no_args_is_help=True)


class AccessAction(StrEnum):
    """What a client wants to do."""

    PUBLISH = "publish"
    SUBSCRIBE = "subscribe"
    CONNECT = "connect"
    PRODUCE = "produce"
    CONSUME = "consume"
    MANAGE = "manage"
    DESCRIBE = "describe"


_AT_TOPICS = (AccessAction.PUBLISH, AccessAction.SUBSCRIBE, AccessAction.CONNECT)


@app.callback()
def _tree() -> None:
    """Say which rule decides."""


@app.command()
@speaking
def access(
    client: Annotated[str, typer.Argument(metavar="CLIENT", help="The client's id.")],
    action: Annotated[AccessAction, typer.Argument(case_sensitive=False, help="What it does.")],
    name: Annotated[
        str, typer.Argument(help="A topic, a filter, or another resource's name; none for connect.")
    ] = "",
    admin: Admin = ADMIN_DEFAULT,
    *,
    tenant: Annotated[str, typer.Option(help="The client's tenant, where it is away.")] = "",
    principal: Annotated[
        str | None, typer.Option(help="Whom its certificate, token or password names.")
    ] = None,
    resource: Annotated[
        ResourceKind | None,
        typer.Option(
            case_sensitive=False,
            help="What is named: a topic, or a stream where it is produced or consumed.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say whether a client may do something, and name the rule that decides.

    Rules have no order: one that denies wins, and what none allows is refused. Of a subscription
    that is allowed, messages of topics that a rule denies are withheld.

    Example: quantum explain access dev1 subscribe 'plant/#'

    Example: quantum explain access billing consume invoices --resource group

    Exit code 0: it may. 1: it may not. 3: no such tenant. 12: no node answered.
    """
    kind = resource or (ResourceKind.TOPIC if action in _AT_TOPICS else ResourceKind.STREAM)
    wanted = {"action": action.value, "topic": name, "tenant": tenant, "principal": principal}
    wanted["resource"] = None if kind is ResourceKind.TOPIC else kind.value
    query = urlencode({name: value for name, value in wanted.items() if value})
    path = f"/clients/{quote(client, safe='')}/access?{query}"
    page = _page(admin, path)
    if as_json:
        typer.echo(json.dumps(page))
    else:
        what = name if kind is ResourceKind.TOPIC else f"{kind.value} {name}"
        _print(client, f"{action.value} {what}".strip(), page, is_named=principal is not None)
    raise typer.Exit(0 if page["allowed"] else Exit.FAILED)


def _page(admin: str, path: str) -> dict[str, Any]:
    """Ask every node; who has the client connected knows whom its certificate names."""
    answers = [(code, page) for _, code, page in ask_all(find_nodes(admin), path)]
    pages = [page for code, page in answers if code == 200]
    if not pages:
        said = next((page for code, page in answers if code == 400), None)
        if said is not None:
            fail(str(said["error"]), Exit.USAGE)
        fail("no node serves MQTT clients, or knows that tenant", Exit.NOT_FOUND)
    return next((page for page in pages if page["connected"]), pages[0])


def _print(client: str, what: str, page: dict[str, Any], *, is_named: bool) -> None:
    who = f" as {page['principal']}" if page["principal"] else ""
    typer.echo(f"{client}{who}, tenant {page['tenant']}, {what}: {page['sentence']}")
    if not page["connected"] and not is_named:
        typer.echo("  it is not connected: rules for a principal count only with --principal")
