"""`quantum streams create|list|show|read|delete`: messages kept by offset, captured by filters."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Annotated, Any, Final
from urllib.parse import quote, urlencode

import typer

from quantum.cli.admin_client import AdminUnreachable, fail_unreachable, parse_address, post
from quantum.cli.broker import (
    ADMIN_DEFAULT,
    Admin,
    AsJson,
    Tenant,
    get_page,
    print_table,
    tenant_path,
)
from quantum.cli.credentials import speaking
from quantum.cli.exits import Exit, fail

_TIMES: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_SIZES: Final = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_RETENTION: Final = re.compile(r"(\d+)\s*([A-Za-z]+)")
_READ_BYTES: Final = 1 << 20
_WAIT_MS: Final = 2_000

Name = Annotated[str, typer.Argument(metavar="NAME", help="The stream's name.")]

app = typer.Typer(help="Messages kept by offset: captured, read, replayed.", no_args_is_help=True)


@app.command()
@speaking
def create(
    name: Name,
    capture: Annotated[
        list[str], typer.Option(metavar="FILTER", help="Keep what is published here; repeat it.")
    ],
    retention: Annotated[
        list[str] | None,
        typer.Option(metavar="7d|50GiB", help="How long, or how much; repeat it for both."),
    ] = None,
    admin: Admin = ADMIN_DEFAULT,
    *,
    tenant: Tenant = "",
    as_json: AsJson = False,
) -> None:
    """Keep what is published at QoS 1 and 2 below topic filters, in order, by offset.

    When this ends with 0, every publish that is acknowledged from now on is kept. It costs
    publishers no second write: the log that acknowledges them is what the stream is filled from.
    The same command again changes nothing.

        quantum streams create telemetry --capture 'sensors/#' --retention 7d --retention 50GiB
    """
    age_ms, size = _retention(retention or [])
    body = {
        "name": name,
        "filters": capture,
        "retention_ms": age_ms,
        "retention_bytes": size,
    }
    found = _order(admin, f"{tenant_path(admin, tenant)}/streams", body)
    if as_json:
        typer.echo(json.dumps(found))
        return
    count = len(found["partitions"])
    typer.echo(f"stream {name} captures {', '.join(capture)} in {count} partitions")


def _retention(given: list[str]) -> tuple[int, int]:
    age_ms = size = 0
    for text in given:
        found = _RETENTION.fullmatch(text)
        if found is None or found[2] not in _TIMES | _SIZES or not int(found[1]):
            units = ", ".join((*_TIMES, *_SIZES))
            fail(f"{text!r} is no retention: say 7d or 50GiB (units: {units})", Exit.USAGE)
        number, unit = int(found[1]), found[2]
        if unit in _TIMES:
            age_ms = number * _TIMES[unit] * 1000
        else:
            size = number * _SIZES[unit]
    return age_ms, size


@app.command("list")
@speaking
def list_streams(
    admin: Admin = ADMIN_DEFAULT, *, tenant: Tenant = "", as_json: AsJson = False
) -> None:
    """List the streams of a tenant."""
    path = f"{tenant_path(admin, tenant)}/streams"
    rows: list[dict[str, Any]] = []
    after: str | None = ""
    while after is not None:
        query = urlencode({"limit": 1000, **({"after": after} if after else {})})
        page = get_page(admin, f"{path}?{query}")
        rows += page["items"]
        after = page["after"]
    if as_json:
        typer.echo(json.dumps({"items": rows}))
        return
    for row in rows:
        row["captures"] = ", ".join(row["filters"])
        row["keeps"] = _keeps(row)
    print_table("Streams", ("name", "captures", "keeps"), rows)


@app.command()
@speaking
def show(
    name: Name, admin: Admin = ADMIN_DEFAULT, *, tenant: Tenant = "", as_json: AsJson = False
) -> None:
    """Show a stream, and how far each of its partitions reaches on the node that is asked."""
    found = get_page(admin, _path(admin, tenant, name))
    if as_json:
        typer.echo(json.dumps(found))
        return
    typer.echo(f"{name} captures {', '.join(found['filters'])}, keeps {_keeps(found)}")
    columns = ("partition", "leader", "start", "next", "file_bytes")
    print_table("Partitions", columns, found["partitions"])


def _keeps(row: dict[str, Any]) -> str:
    said = []
    if int(row["retention_ms"]):  # large numbers are texts in JSON
        said.append(_with_unit(int(row["retention_ms"]) // 1000, _TIMES))
    if int(row["retention_bytes"]):
        said.append(_with_unit(int(row["retention_bytes"]), _SIZES))
    return " and ".join(said) or "everything"


def _with_unit(number: int, units: dict[str, int]) -> str:
    """Write a number in the largest unit that leaves it whole."""
    unit = max((name for name in units if number % units[name] == 0), key=lambda name: units[name])
    return f"{number // units[unit]}{unit}"


@app.command()
@speaking
def delete(name: Name, admin: Admin = ADMIN_DEFAULT, *, tenant: Tenant = "") -> None:
    """End a stream, and delete all that it holds; what is published goes on."""
    _order(admin, f"{_path(admin, tenant, name)}/delete", {})
    typer.echo(f"stream {name} is gone")


@app.command()
@speaking
def read(  # options of a command
    name: Name,
    begin: Annotated[
        str, typer.Option("--from", metavar="OFFSET|TIME", help="Where to begin; else the start.")
    ] = "",
    partition: Annotated[
        int | None, typer.Option(min=0, help="Only this partition; else all, one by one.")
    ] = None,
    admin: Admin = ADMIN_DEFAULT,
    *,
    follow: Annotated[bool, typer.Option("--follow", help="Wait for more, until Ctrl-C.")] = False,
    tenant: Tenant = "",
    as_json: AsJson = False,
) -> None:
    """Print the messages of a stream; with --json one line of JSON for each.

    An offset counts in each partition from 0; a time is ISO 8601 (2026-11-16T09:30:00Z). An offset
    that is gone, or not there yet, is an error that names the first one that there is.

    Exit code 0: everything was printed. 1: refused, with the reason. 12: no node answered.
    """
    path = _path(admin, tenant, name)
    numbers = [row["partition"] for row in get_page(admin, path)["partitions"]]
    if partition is not None:
        numbers = [partition]
    places: dict[int, dict[str, int]] = {number: _begin(begin) for number in numbers}
    while True:
        moved = False
        for number in numbers:
            wait_ms = _WAIT_MS // len(numbers) if follow else 0
            for page in _pages(admin, path, number, places[number], wait_ms):
                moved |= bool(page["items"])
                for row in page["items"]:
                    typer.echo(json.dumps(row) if as_json else _line(row))
                places[number] = {"offset": int(page["next"])}
        if not follow and not moved:
            return


def _begin(text: str) -> dict[str, int]:
    if not text:
        return {}
    if text.isascii() and text.isdecimal():
        return {"offset": int(text)}
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        fail(f"{text!r} is no offset and no time like 2026-11-16T09:30:00Z", Exit.USAGE)
    at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    return {"time_ms": max(0, int(at.timestamp() * 1000))}


def _pages(
    admin: str, path: str, partition: int, place: dict[str, int], wait_ms: int
) -> Iterator[dict[str, Any]]:
    """Walk the pages of a partition until there is nothing more now."""
    while True:
        asked = {"partition": partition, "bytes_max": _READ_BYTES, "wait_ms": wait_ms, **place}
        page = get_page(admin, f"{path}/records?{urlencode(asked)}")
        yield page
        if not page["items"]:
            return
        place = {"offset": int(page["next"])}
        wait_ms = 0


def _line(row: dict[str, Any]) -> str:
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(int(row["timestamp_ms"]) / 1000))
    payload = row["payload"] or {}
    text = payload.get("text")
    shown = text if text is not None else f"base64:{payload.get('base64') or ''}"
    return f"{row['partition']}:{row['offset']} {at} {row['address']} {shown}"


def _path(admin: str, tenant: str, name: str) -> str:
    return f"{tenant_path(admin, tenant)}/streams/{quote(name, safe='')}"


def _order(admin: str, path: str, body: dict[str, object]) -> dict[str, Any]:
    """Order something of whoever leads the catalogue's partition."""
    code, answer = _post(admin, path, body)
    leader = answer.get("facts", {}).get("admin") if code == 409 else None
    if leader:
        code, answer = _post(str(leader), path, body)
    if code >= 400:
        fail(str(answer.get("message", code)), Exit.FAILED)
    return answer


def _post(admin: str, path: str, body: dict[str, object]) -> tuple[int, dict[str, Any]]:
    try:
        return post(parse_address(admin), path, body)
    except ValueError as error:
        fail(str(error), Exit.USAGE)
    except AdminUnreachable as error:
        fail_unreachable(error)
