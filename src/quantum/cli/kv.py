"""`quantum kv`: read and write the replicated key-value store of a cluster."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, TypeVar

import typer

from clustor.kv import Conflict, Deleted, KvRecord, KvWritten, Reply, prefix_end
from clustor.runtime.admin.caller import CredentialsUnusable, credentials_for
from clustor.runtime.kv.client import KvClient, KvRejected, KvUnavailable, WatchCompacted
from quantum.cli.admin_client import parse_address, why_shut
from quantum.cli.credentials import chosen, speaking
from quantum.cli.exits import Exit, fail

app = typer.Typer(
    help="Read and write the replicated key-value store of a cluster.", no_args_is_help=True
)

Cluster = Annotated[
    str, typer.Option("--cluster", metavar="HOST:PORT", help="The admin address of any node.")
]
Group = Annotated[int, typer.Option(min=1, help="Which group's store.")]
Timeout = Annotated[float, typer.Option(min=0.1, help="Seconds to wait for a leader.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")]
SnapshotOnly = Annotated[
    bool,
    typer.Option(help="Take what the asked node has, however old; followers may be let answer it."),
]
Key = Annotated[str, typer.Argument(help="A key, as UTF-8 text.")]

_Answer = TypeVar("_Answer")


@app.command()
@speaking
def get(
    key: Key,
    *,
    cluster: Cluster,
    snapshot_only: SnapshotOnly = False,
    group: Group = 1,
    timeout: Timeout = 10.0,
    as_json: AsJson = False,
) -> None:
    """Print the value of KEY, as new as it was at some moment during the call.

    Exit code 0: there is one. 3: there is none. 12: no leader answered in time, or the control
    plane was not heard for so long that nothing may be read.
    """
    record = _run(
        cluster,
        group,
        timeout,
        lambda client: client.get(key.encode(), snapshot_only=snapshot_only),
    )
    if record is None:
        fail(f"no such key: {key}", Exit.NOT_FOUND)
    _print(_of_record(record) if as_json else _text(record.value), as_json)


@app.command()
@speaking
def put(
    key: Key,
    value: Annotated[str, typer.Argument(help="The value, as UTF-8 text.")],
    *,
    cluster: Cluster,
    ttl_ms: Annotated[int, typer.Option(min=0, help="Delete it after so long; 0: never.")] = 0,
    group: Group = 1,
    timeout: Timeout = 10.0,
    as_json: AsJson = False,
) -> None:
    """Write VALUE under KEY. When this returns, it is fsynced on a quorum."""
    reply = _run(
        cluster,
        group,
        timeout,
        lambda client: client.put(key.encode(), value.encode(), ttl_ms=ttl_ms),
    )
    _print_written(reply, as_json)


@app.command()
@speaking
def cas(
    key: Key,
    value: Annotated[str, typer.Argument(help="The new value.")],
    *,
    cluster: Cluster,
    expect: Annotated[str | None, typer.Option(help="The value it must hold now.")] = None,
    expect_revision: Annotated[
        int | None, typer.Option(min=0, help="The revision it must have now; 0: absent.")
    ] = None,
    expect_absent: Annotated[bool, typer.Option(help="It must not exist now.")] = False,
    group: Group = 1,
    timeout: Timeout = 10.0,
    as_json: AsJson = False,
) -> None:
    """Write VALUE under KEY if the key is as expected. Exit code 13: it was not."""
    if [expect is not None, expect_revision is not None, expect_absent].count(True) != 1:
        fail("give exactly one of --expect, --expect-revision and --expect-absent", Exit.USAGE)

    def swap(client: KvClient) -> Awaitable[Reply]:
        if expect_revision is not None:
            return client.cas_revision(key.encode(), expect_revision, value.encode())
        expected = None if expect is None else expect.encode()
        return client.cas_value(key.encode(), expected, value.encode())

    reply = _run(cluster, group, timeout, swap)
    if isinstance(reply, Conflict):
        fail(f"{key} is at revision {reply.mod_revision}", Exit.CONFLICT)
    _print_written(reply, as_json)


@app.command()
@speaking
def delete(
    key: Key,
    *,
    cluster: Cluster,
    group: Group = 1,
    timeout: Timeout = 10.0,
    as_json: AsJson = False,
) -> None:
    """Delete KEY. Exit code 3: there was nothing to delete."""
    reply = _run(cluster, group, timeout, lambda client: client.delete(key.encode()))
    assert isinstance(reply, Deleted)
    if not reply.count:
        fail(f"no such key: {key}", Exit.NOT_FOUND)
    plain = f"deleted at revision {reply.revision}"
    _print({"revision": reply.revision, "count": reply.count} if as_json else plain, as_json)


@app.command(name="range")
@speaking
def list_range(
    prefix: Annotated[str, typer.Argument(help="What the keys start with; nothing: all.")] = "",
    *,
    cluster: Cluster,
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="How many keys.")] = 1000,
    snapshot_only: SnapshotOnly = False,
    group: Group = 1,
    timeout: Timeout = 10.0,
    as_json: AsJson = False,
) -> None:
    """List the keys that start with PREFIX, with their values, in order."""
    start = prefix.encode()
    page = _run(
        cluster,
        group,
        timeout,
        lambda client: client.range(start, prefix_end(start), limit, snapshot_only=snapshot_only),
    )
    for record in page.records:
        line = f"{_text(record.key)}\t{_text(record.value)}"
        _print(_of_record(record) if as_json else line, as_json)


@app.command()
@speaking
def watch(
    prefix: Annotated[str, typer.Argument(help="What the keys start with; nothing: all.")] = "",
    *,
    cluster: Cluster,
    since: Annotated[int, typer.Option(min=0, help="Show what happened after this revision.")] = 0,
    count: Annotated[int, typer.Option(min=0, help="End after so many events; 0: never.")] = 0,
    group: Group = 1,
    as_json: AsJson = False,
) -> None:
    """Print what happens to keys that start with PREFIX, until Ctrl-C."""

    async def follow(client: KvClient) -> None:
        shown = 0
        async for found in client.watch([prefix.encode()], since):
            for record in found.events:
                _print(_event(record) if as_json else _event_line(record), as_json)
                shown += 1
                if shown == count:
                    return

    _run(cluster, group, 10.0, follow)


def _run(
    cluster: str, group: int, timeout: float, call: Callable[[KvClient], Awaitable[_Answer]]
) -> _Answer:
    """Run one call of a client, and turn what goes wrong into one line and an exit code."""
    try:
        address = parse_address(cluster)
        tls = credentials_for(address, chosen()).context()
    except ValueError as error:
        fail(str(error), Exit.USAGE)
    except CredentialsUnusable as error:
        fail(str(error), Exit.CERTIFICATE)

    async def connected() -> _Answer:
        async with KvClient([address], partition=group, timeout_seconds=timeout, tls=tls) as client:
            return await call(client)

    try:
        return asyncio.run(connected())
    except KvUnavailable as error:
        shut = why_shut(address)
        if shut is not None:
            fail(shut, Exit.CERTIFICATE)
        doubt = "; the write may have happened" if error.maybe_applied else ""
        fail(f"{error}{doubt}", Exit.UNREACHABLE)
    except (KvRejected, WatchCompacted) as error:
        fail(str(error), Exit.FAILED)
    except KeyboardInterrupt:
        raise typer.Exit(0) from None


def _print_written(reply: Reply, as_json: bool) -> None:
    assert isinstance(reply, KvWritten)
    plain = f"revision {reply.revision}"
    _print({"revision": reply.revision} if as_json else plain, as_json)


def _print(content: str | dict[str, Any], as_json: bool) -> None:
    typer.echo(json.dumps(content) if as_json else content)


def _text(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")


def _of_record(record: KvRecord) -> dict[str, Any]:
    members: dict[str, Any] = _bytes("key", record.key) | _bytes("value", record.value)
    members |= {"create_revision": record.create_revision, "mod_revision": record.mod_revision}
    return members | {"version": record.version, "expires_ms": record.expires_ms}


def _bytes(name: str, data: bytes) -> dict[str, str]:
    """Bytes as text where they are text, in base64 where they are not."""
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}


def _event(record: KvRecord) -> dict[str, Any]:
    return {"event": "delete" if record.is_delete else "put", **_of_record(record)}


def _event_line(record: KvRecord) -> str:
    if record.is_delete:
        return f"{record.mod_revision}\tdelete\t{_text(record.key)}"
    return f"{record.mod_revision}\tput\t{_text(record.key)}\t{_text(record.value)}"
