"""The commands."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, TextIO

import typer

from slipstream.cli.artifacts import export_command, import_command, lease_command
from slipstream.cli.session import NotFound, Speaker, as_text, run, session
from slipstream.cli.watching import watch_command
from slipstream.errors import Misuse
from slipstream.ports import KvWriter
from slipstream.types import VersionToken

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Watchable config: fold a bucket, resume where you were, pass folds on.",
)

Backend = Annotated[str, typer.Option(envvar="SLIPSTREAM_BACKEND", help="nats://… or clustor://…")]
Bucket = Annotated[str, typer.Option(envvar="SLIPSTREAM_BUCKET", help="The bucket's name.")]
Json = Annotated[bool, typer.Option("--json", help="Speak JSON, one object per line.")]
FoldPath = Annotated[Path, typer.Option("--fold", help="Where the fold is.")]
FoldKind = Annotated[str, typer.Option("--store", help="log, sqlite or rocksdb.")]
Key = Annotated[str, typer.Argument(help="The key.")]

DEFAULT_BACKEND = "nats://127.0.0.1:4222"
PUTS_AT_ONCE = 64


def _say_version(asked: bool) -> None:
    if asked:
        from clustor.runtime.build import build

        typer.echo(f"slipstream {build()}")
        raise typer.Exit


@app.callback()
def _tree(
    *,
    version: Annotated[
        bool,
        typer.Option("--version", help="Say what runs here.", callback=_say_version, is_eager=True),
    ] = False,
) -> None:
    """Watchable config: fold a bucket, resume where you were, pass folds on."""


@app.command()
def get(
    key: Key, bucket: Bucket, backend: Backend = DEFAULT_BACKEND, as_json: Json = False
) -> None:
    """Print the value of a key."""
    speaker = Speaker(as_json)

    async def command() -> None:
        async with session(backend, bucket) as opened:
            entry = await opened.reader.get(key)
        if entry is None:
            raise NotFound("there is no such key", key=key)
        if not as_json:
            sys.stdout.buffer.write(entry.value + b"\n")
            return
        speaker.say("", key=key, **as_text(entry.value), revision=entry.version.as_u64())

    run(speaker, command)


@app.command()
def put(
    *,
    bucket: Bucket,
    key: Annotated[str | None, typer.Argument(help="The key.")] = None,
    value: Annotated[str | None, typer.Argument(help="The value.")] = None,
    from_tsv: Annotated[
        str | None, typer.Option(help="A file of KEY<tab>VALUE lines; - is the standard input.")
    ] = None,
    backend: Backend = DEFAULT_BACKEND,
    as_json: Json = False,
) -> None:
    """Write one key, or every line of a file."""
    speaker = Speaker(as_json)

    async def command() -> None:
        if (from_tsv is None) == (key is None or value is None):
            raise Misuse("give KEY and VALUE, or --from-tsv FILE")
        async with session(backend, bucket) as opened:
            if from_tsv is None:
                assert key is not None
                assert value is not None
                version = await opened.writer.put(key, value.encode())
                revision = version.as_u64()
                speaker.say(f"{key} is at revision {revision}", key=key, revision=revision)
                return
            with _lines(from_tsv) as lines:
                written, last = await _put_lines(opened.writer, lines)
        speaker.say(f"{written} keys written", written=written, revision=last.as_u64())

    run(speaker, command)


async def _put_lines(writer: KvWriter, lines: TextIO) -> tuple[int, VersionToken]:
    """Write many lines, some at once, but the lines of one key in their order."""
    import asyncio

    written, last = 0, VersionToken()
    waiting: dict[str, bytes] = {}

    async def flush() -> None:
        nonlocal written, last
        versions = await asyncio.gather(*(writer.put(*item) for item in waiting.items()))
        written += len(versions)
        last = max([last, *versions], key=lambda version: version.as_u64() or 0)
        waiting.clear()

    for number, line in enumerate(lines, start=1):
        key, tab, value = line.rstrip("\r\n").partition("\t")
        if not tab:
            raise Misuse("a line is KEY<tab>VALUE", line=number)
        if key in waiting or len(waiting) == PUTS_AT_ONCE:
            await flush()
        waiting[key] = value.encode()
    await flush()
    return written, last


@contextmanager
def _lines(path: str) -> Iterator[TextIO]:
    if path == "-":
        yield sys.stdin
        return
    with Path(path).open(encoding="utf-8", newline="\n") as file:
        yield file


@app.command()
def scan(
    *,
    bucket: Bucket,
    prefix: Annotated[str, typer.Argument(help="Only keys that start with this.")] = "",
    backend: Backend = DEFAULT_BACKEND,
    as_json: Json = False,
) -> None:
    """Print every key under a prefix with its value, a line each."""
    speaker = Speaker(as_json)

    async def command() -> None:
        async with session(backend, bucket) as opened:
            entries = await opened.reader.scan(prefix)
        for entry in entries:
            facts = as_text(entry.value)
            sentence = f"{entry.key}\t{facts['value']}"
            speaker.say(sentence, key=entry.key, **facts, revision=entry.version.as_u64())

    run(speaker, command)


@app.command()
def watch(
    *,
    bucket: Bucket,
    fold: FoldPath,
    prefixes: Annotated[list[str] | None, typer.Argument(help="Only these prefixes.")] = None,
    store: FoldKind = "log",
    until_caught_up: Annotated[
        bool, typer.Option("--until-caught-up", help="Stop once the fold has everything.")
    ] = False,
    backend: Backend = DEFAULT_BACKEND,
    as_json: Json = False,
) -> None:
    """Keep a fold in step with the bucket, and show what changes."""
    speaker = Speaker(as_json)
    run(
        speaker,
        lambda: watch_command(
            speaker, backend, bucket,
            prefixes=tuple(prefixes or ()), path=fold, store=store, until_caught_up=until_caught_up,
        ),
    )  # fmt: skip


@app.command()
def export(
    *,
    bucket: Bucket,
    fold: FoldPath,
    to: Annotated[Path | None, typer.Option(help="A directory for the artifact.")] = None,
    publish: Annotated[str | None, typer.Option(help="An object store: s3://…, file://…")] = None,
    key: Annotated[str, typer.Option(help="The name to publish under.")] = "fold",
    lease_key: Annotated[str, typer.Option(help="The lease of the round.")] = "export.lease",
    holder: Annotated[str, typer.Option(help="Who we are.")] = "slipstream-cli",
    ttl: Annotated[float, typer.Option(help="How long the round is ours, in seconds.")] = 300,
    allow_non_atomic_pointer: Annotated[
        bool, typer.Option("--allow-non-atomic-pointer", help="For file:// in development.")
    ] = False,
    store: FoldKind = "log",
    backend: Backend = DEFAULT_BACKEND,
    as_json: Json = False,
) -> None:
    """Bring the fold up to date and export it, to a directory or as a round of the fleet."""
    speaker = Speaker(as_json)
    run(
        speaker,
        lambda: export_command(
            speaker, backend, bucket,
            path=fold, store=store, to=to, publish=publish, key=key, lease_key=lease_key,
            holder=holder, ttl_seconds=ttl, non_atomic=allow_non_atomic_pointer,
        ),
    )  # fmt: skip


@app.command("import")
def import_(
    *,
    fold: FoldPath,
    bucket: Annotated[
        str | None,
        typer.Option(envvar="SLIPSTREAM_BUCKET", help="Ask whether this bucket can be resumed."),
    ] = None,
    source: Annotated[Path | None, typer.Option("--from", help="An artifact directory.")] = None,
    published: Annotated[str | None, typer.Option(help="An object store: s3://…")] = None,
    key: Annotated[str, typer.Option(help="The name it is published under.")] = "fold",
    store: FoldKind = "log",
    backend: Backend = DEFAULT_BACKEND,
    as_json: Json = False,
) -> None:
    """Make a fold of an artifact; nothing of it is kept unless all of it is verified."""
    speaker = Speaker(as_json)
    run(
        speaker,
        lambda: import_command(
            speaker, backend, bucket,
            path=fold, store=store, source=source, published=published, key=key,
        ),
    )  # fmt: skip


@app.command()
def lease(
    *,
    bucket: Bucket,
    key: Annotated[str, typer.Option(help="The lease's key.")] = "export.lease",
    acquire: Annotated[bool, typer.Option("--acquire", help="Try to win it.")] = False,
    holder: Annotated[str, typer.Option(help="Who we are.")] = "slipstream-cli",
    ttl: Annotated[float, typer.Option(help="For how long, in seconds.")] = 300,
    backend: Backend = DEFAULT_BACKEND,
    as_json: Json = False,
) -> None:
    """Show who exports, or try to win the next round."""
    speaker = Speaker(as_json)
    run(
        speaker,
        lambda: lease_command(
            speaker, backend, bucket, key=key, acquire=acquire, holder=holder, ttl_seconds=ttl
        ),
    )


def main() -> None:
    """Run the command line."""
    logging.basicConfig(level=logging.ERROR, format="slipstream: %(message)s")
    app()
