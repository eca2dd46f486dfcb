"""`quantum queues`: AMQP's queues as an operator sees them, over any node's API."""

from __future__ import annotations

import json
import time
from typing import Annotated, Any, Final

import typer

from quantum.cli.broker import ADMIN_DEFAULT, Admin, AsJson, Tenant, get_page, print_table
from quantum.cli.credentials import speaking
from quantum.cli.queues_asking import all_rows, order, queue_path

_COLUMNS: Final = ("name", "partition", "messages", "dead_letters", "bytes", "oldest")

Name = Annotated[str, typer.Argument(metavar="QUEUE", help="The queue's name.")]
Dead = Annotated[bool, typer.Option("--dead", help="Dead letters, and not messages.")]
Count = Annotated[int, typer.Option(min=1, max=10_000, help="How many at most.")]

app = typer.Typer(help="AMQP's queues: made, looked at, emptied, moved.", no_args_is_help=True)


@app.command()
@speaking
def create(
    name: Name,
    admin: Admin = ADMIN_DEFAULT,
    *,
    messages_max: Annotated[int, typer.Option(min=0, help="So many at most.")] = 1_000_000,
    bytes_max: Annotated[int, typer.Option(min=0, help="So many bytes at most.")] = 8 << 30,
    deliveries_max: Annotated[
        int, typer.Option(min=0, help="Deliveries that may fail; 0: any number.")
    ] = 10,
    ttl_ms: Annotated[int, typer.Option(min=0, help="How long messages are kept; 0: ever.")] = 0,
    keep_expired: Annotated[
        bool, typer.Option("--keep-expired", help="What expires is a dead letter.")
    ] = False,
    tenant: Tenant = "",
    as_json: AsJson = False,
) -> None:
    """Make a queue, or change the bounds of one that is there; its messages stay.

    When this ends with 0, a quorum has it on disk.
    """
    body = {
        "name": name,
        "messages_max": messages_max,
        "bytes_max": bytes_max,
        "deliveries_max": deliveries_max,
        "ttl_ms": ttl_ms,
        "keeps_expired": keep_expired,
    }
    _say(order(admin, queue_path(admin, tenant), body), f"queue {name} is there", as_json=as_json)


@app.command("list")
@speaking
def list_queues(
    admin: Admin = ADMIN_DEFAULT, *, tenant: Tenant = "", as_json: AsJson = False
) -> None:
    """List the queues of a tenant, as the node that is asked has them."""
    rows = all_rows(admin, queue_path(admin, tenant))
    if as_json:
        typer.echo(json.dumps({"items": rows}))
        return
    for row in rows:
        row["oldest"] = _time(row["oldest_ms"])
    print_table("Queues", _COLUMNS, rows)


@app.command()
@speaking
def show(
    name: Name, admin: Admin = ADMIN_DEFAULT, *, tenant: Tenant = "", as_json: AsJson = False
) -> None:
    """Show a queue, its bounds, and what its receivers hold."""
    found = get_page(admin, queue_path(admin, tenant, name))
    if found["unsettled"] is None and found["leader_admin"]:
        found = get_page(found["leader_admin"], queue_path(admin, tenant, name))
    if as_json:
        typer.echo(json.dumps(found))
        return
    for key, value in found.items():
        is_time = key in ("oldest_ms", "created_ms")
        typer.echo(f"{key.replace('_', ' '):<16} {_time(value) if is_time else value}")


@app.command()
@speaking
def peek(
    name: Name,
    count: Count = 20,
    admin: Admin = ADMIN_DEFAULT,
    *,
    dead: Dead = False,
    tenant: Tenant = "",
    as_json: AsJson = False,
) -> None:
    """Print the oldest messages of a queue; nothing is taken. With --json a line for each."""
    _print_messages(admin, tenant, name, count, dead=dead, as_json=as_json)


@app.command()
@speaking
def purge(
    name: Name,
    admin: Admin = ADMIN_DEFAULT,
    *,
    dead: Dead = False,
    tenant: Tenant = "",
    as_json: AsJson = False,
) -> None:
    """Drop all messages of a queue, or with --dead all its dead letters."""
    done = order(admin, f"{queue_path(admin, tenant, name)}/purge", {"dead": dead})
    _say(done, f"{done['done']} {_what(dead=dead)} of {name} are gone", as_json=as_json)


@app.command()
@speaking
def delete(
    name: Name,
    admin: Admin = ADMIN_DEFAULT,
    *,
    if_empty: Annotated[bool, typer.Option("--if-empty", help="Only an empty one.")] = False,
    tenant: Tenant = "",
    as_json: AsJson = False,
) -> None:
    """End a queue with all that it holds; its links are detached."""
    done = order(admin, f"{queue_path(admin, tenant, name)}/delete", {"if_empty": if_empty})
    _say(done, f"queue {name} is gone, with {done['done']} messages", as_json=as_json)


@app.command()
@speaking
def move(
    name: Name,
    target: Annotated[str, typer.Argument(metavar="TARGET", help="Where they go.")],
    count: Count = 1_000,
    admin: Admin = ADMIN_DEFAULT,
    *,
    dead: Dead = False,
    tenant: Tenant = "",
    as_json: AsJson = False,
) -> None:
    """Let messages, or with --dead dead letters, be another queue's, the oldest first.

    What receivers hold stays where it is. Between queues of one partition a message is in one of
    them, whatever fails; over two partitions a failure may leave it in both.
    """
    body: dict[str, object] = {"target": target, "dead": dead, "count": count}
    done = order(admin, f"{queue_path(admin, tenant, name)}/move", body)
    _say(done, f"{done['done']} {_what(dead=dead)} moved to {target}", as_json=as_json)


@app.command("dead-letters")
@speaking
def dead_letters(
    name: Name,
    count: Count = 20,
    admin: Admin = ADMIN_DEFAULT,
    *,
    revive: Annotated[
        bool, typer.Option("--revive", help="Let them be messages of the queue again.")
    ] = False,
    tenant: Tenant = "",
    as_json: AsJson = False,
) -> None:
    """Print the dead letters of a queue and why each is one, or revive the oldest of them."""
    if not revive:
        _print_messages(admin, tenant, name, count, dead=True, as_json=as_json)
        return
    done = order(admin, f"{queue_path(admin, tenant, name)}/revive", {"count": count})
    _say(done, f"{done['done']} dead letters of {name} are messages again", as_json=as_json)


def _print_messages(
    admin: str, tenant: str, name: str, count: int, *, dead: bool, as_json: bool
) -> None:
    path = f"{queue_path(admin, tenant, name)}/messages"
    for row in all_rows(admin, path, count, dead=str(dead).lower()):
        typer.echo(json.dumps(row) if as_json else message_line(row))


def message_line(row: dict[str, Any]) -> str:
    """Say a message in one line."""
    body = row["body"]
    text = body["text"] if body["text"] is not None else f"base64:{body['base64'] or ''}"
    said = [str(row["number"]), _time(row["enqueued_ms"])]
    if row["delivery_count"]:
        said.append(f"failed={row['delivery_count']}")
    if row["dead_because"]:
        said.append(f"[{row['dead_because']}]")
    if row["subject"]:
        said.append(f"subject={row['subject']}")
    return " ".join([*said, text])


def _say(answer: dict[str, Any], words: str, *, as_json: bool) -> None:
    typer.echo(json.dumps(answer) if as_json else words)


def _what(*, dead: bool) -> str:
    return "dead letters" if dead else "messages"


def _time(at_ms: str | None) -> str:
    if at_ms is None:
        return "-"
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(int(at_ms) / 1000))
