"""`quantum explain`: which rule decides, asked of the broker that would decide by it.

And where a message of the past has been, asked of the logs that have it.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any, Final
from urllib.parse import quote, urlencode

import typer

from quantum.cli.broker import ADMIN_DEFAULT, Admin, AsJson, Tenant, get_page, tenant_path
from quantum.cli.credentials import speaking
from quantum.cli.exits import Exit, fail
from quantum.cli.why import ask_all, find_nodes
from quantum.tenancy import ResourceKind

app = typer.Typer(help="Say which rule decides, or where a message was.", no_args_is_help=True)


class AccessAction(StrEnum):
    """What a client wants to do."""

    PUBLISH = "publish"
    SUBSCRIBE = "subscribe"
    CONNECT = "connect"
    PRODUCE = "produce"
    CONSUME = "consume"
    MANAGE = "manage"
    DESCRIBE = "describe"


_SECONDS: Final = 30.0
_AT_TOPICS = (AccessAction.PUBLISH, AccessAction.SUBSCRIBE, AccessAction.CONNECT)


@app.callback()
def _tree() -> None:
    """Say which rule decides, or where a message was."""


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


@app.command()
@speaking
def delivery(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="What is published to.")],
    client: Annotated[str, typer.Argument(metavar="CLIENT", help="Who should get it.")],
    admin: Admin = ADMIN_DEFAULT,
    *,
    tenant: Tenant = "",
    qos: Annotated[int, typer.Option(min=0, max=2, help="At which it is sent.")] = 1,
    publisher: Annotated[str, typer.Option(metavar="CLIENT", help="Who publishes.")] = "",
    principal: Annotated[
        str, typer.Option(help="Whom the client's proof names, where it is away.")
    ] = "",
    publisher_principal: Annotated[
        str, typer.Option(help="Whom the publisher's proof names.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Say whether a message would come to a client now, by which subscription, and what stops it.

    Any node may be asked. The one that leads the session's partition looks: at the subscriptions,
    the shared ones with their turn, the access rules, the quotas and the queues.

    Example: quantum explain delivery plant/7/temperature screen-1

    Exit code 0: it would come, or wait for the client. 1: it would not. 12: no node answered.
    """
    asked = {"topic": topic, "client_id": client, "qos": str(qos), "publisher": publisher}
    asked |= {"principal": principal, "publisher_principal": publisher_principal}
    query = urlencode({name: value for name, value in asked.items() if value})
    page = get_page(
        admin, f"{tenant_path(admin, tenant)}/explain/delivery?{query}", seconds=_SECONDS
    )
    if as_json:
        typer.echo(json.dumps(page))
    else:
        typer.echo(f"{page['delivered']}: {page['sentence']}")
        for step in page["steps"]:
            typer.echo(f"  {'passes' if step['passes'] else 'STOPS '}  {step['sentence']}")
        if page["captures"]:
            typer.echo(f"  kept by the streams {', '.join(page['captures'])}")
        if page["command"]:
            typer.echo(f"  {page['command']}")
    raise typer.Exit(Exit.FAILED if page["delivered"] == "no" else 0)


@app.command()
@speaking
def message(
    message_id: Annotated[
        str, typer.Argument(metavar="[ID]", help="As an acknowledgement named it.")
    ] = "",
    admin: Admin = ADMIN_DEFAULT,
    *,
    tenant: Tenant = "",
    stream: Annotated[str, typer.Option(help="A stream that has it, instead of an id.")] = "",
    partition: Annotated[int, typer.Option(min=0, help="The partition of that stream.")] = 0,
    offset: Annotated[int, typer.Option(min=0, help="Its offset there.")] = 0,
    client: Annotated[str, typer.Option(help="What did this client's session do with it?")] = "",
    as_json: AsJson = False,
) -> None:
    """Tell a past message's way: when which log had it, and what sessions did with it.

    All of it is read from the logs of the node that is asked, which has a replica of every
    partition. What was compacted away is not told, and is said not to be.

    Example: quantum explain message 10-52-1f0a33d0c9be7714 --client screen-1

    Example: quantum explain message --stream telemetry --partition 0 --offset 41

    Exit code 0: it is told. 1: the logs do not have it. 12: no node answered.
    """
    if bool(message_id) == bool(stream):
        fail("say either an ID, or --stream with --partition and --offset", Exit.USAGE)
    asked = {"message": message_id, "client_id": client}
    if stream:
        asked |= {"stream": stream, "partition": str(partition), "offset": str(offset)}
    query = urlencode({name: value for name, value in asked.items() if value})
    page = get_page(
        admin, f"{tenant_path(admin, tenant)}/explain/message?{query}", seconds=_SECONDS
    )
    if as_json:
        typer.echo(json.dumps(page))
        return
    typer.echo(
        f"{page['id']}: {page['topic']}, {page['bytes']} bytes at QoS {page['qos']}, "
        f"published by {page['publisher']}"
    )
    for step in page["steps"]:
        at = datetime.fromtimestamp(int(step["at_ms"]) / 1000, UTC)
        place = f"partition {step['partition']}, entry {step['index']} of term {step['term']}"
        whom = f"{step['client_id']}: " if step["client_id"] else ""
        typer.echo(f"  {at:%Y-%m-%d %H:%M:%S.%f}"[:-3] + f"  {place}: {whom}{step['sentence']}")
    for each in page["unknown"]:
        typer.echo(f"  not told: {each}")


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
