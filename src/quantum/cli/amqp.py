"""`quantum amqp send|receive`: messages of queues, without a client."""

from __future__ import annotations

import base64
import json
import sys
from typing import Annotated, Final

import typer

from quantum.cli.broker import ADMIN_DEFAULT, Admin, AsJson, Tenant
from quantum.cli.credentials import speaking
from quantum.cli.exits import Exit, fail
from quantum.cli.queues import message_line
from quantum.cli.queues_asking import order, queue_path

_WAIT_MS: Final = 5_000
_AT_ONCE: Final = 100

Queue = Annotated[str, typer.Argument(metavar="QUEUE", help="The queue's name.")]

app = typer.Typer(help="Send messages to AMQP's queues, and receive them.", no_args_is_help=True)


@app.command()
@speaking
def send(  # options of a command
    queue: Queue,
    message: Annotated[str, typer.Argument(help="The text; - is standard input, as bytes.")],
    admin: Admin = ADMIN_DEFAULT,
    *,
    subject: Annotated[str, typer.Option(help="Its subject.")] = "",
    prop: Annotated[
        list[str] | None,
        typer.Option("--property", metavar="NAME=VALUE", help="An application property."),
    ] = None,
    priority: Annotated[int, typer.Option(min=0, max=255, help="Higher ones overtake.")] = 4,
    ttl_ms: Annotated[int, typer.Option(min=0, help="How long it is kept; 0: for ever.")] = 0,
    group_id: Annotated[str, typer.Option(help="Messages of a group go to one receiver.")] = "",
    reply_to: Annotated[str, typer.Option(help="Where an answer goes.")] = "",
    correlation_id: Annotated[str, typer.Option(help="What it answers.")] = "",
    tenant: Tenant = "",
    as_json: AsJson = False,
) -> None:
    """Send a message to a queue; exit code 0: a quorum has it on disk."""
    body: dict[str, object] = {"priority": priority, "ttl_ms": ttl_ms}
    if message == "-":
        body["base64"] = base64.b64encode(sys.stdin.buffer.read()).decode()
    else:
        body["text"] = message
    named = {
        "subject": subject,
        "group_id": group_id,
        "reply_to": reply_to,
        "correlation_id": correlation_id,
    }
    body |= {name: value for name, value in named.items() if value}
    body["properties"] = [_pair(each) for each in prop or ()]
    answer = order(admin, f"{queue_path(admin, tenant, queue)}/send", body)
    typer.echo(json.dumps(answer) if as_json else "accepted")


def _pair(text: str) -> list[str]:
    name, found, value = text.partition("=")
    if not found or not name:
        fail(f"{text!r} is no property: say name=value", Exit.USAGE)
    return [name, value]


@app.command()
@speaking
def receive(  # options of a command
    queue: Queue,
    count: Annotated[int, typer.Option(min=1, max=10_000, help="How many at most.")] = 1,
    outcome: Annotated[
        str, typer.Option(metavar="accepted|released|rejected", help="What becomes of them.")
    ] = "accepted",
    wait_ms: Annotated[int, typer.Option(min=0, max=8_000, help="For the first.")] = _WAIT_MS,
    admin: Admin = ADMIN_DEFAULT,
    *,
    selector: Annotated[
        str, typer.Option(help="Only those of which this is true: \"colour = 'blue'\".")
    ] = "",
    dead: Annotated[bool, typer.Option("--dead", help="Dead letters, and not messages.")] = False,
    tenant: Tenant = "",
    as_json: AsJson = False,
) -> None:
    """Take messages of a queue and print them; with --json a line for each.

    They are settled before they are printed: what a broken connection loses on its way here is
    lost. `quantum queues peek` shows messages and takes none. Exit code 1: nothing came in time.
    """
    if outcome not in ("accepted", "released", "rejected"):
        fail(f"{outcome!r} is no outcome: accepted, released or rejected", Exit.USAGE)
    path, printed = f"{queue_path(admin, tenant, queue)}/receive", 0
    while printed < count:
        body: dict[str, object] = {
            "count": min(count - printed, _AT_ONCE),
            "wait_ms": wait_ms,
            "outcome": outcome,
            "dead": dead,
            "selector": selector,
        }
        items = order(admin, path, body)["items"]
        for row in items:
            typer.echo(json.dumps(row) if as_json else message_line(row))
        printed += len(items)
        if not items or outcome == "released":
            break
    if not printed:
        raise typer.Exit(Exit.FAILED)
