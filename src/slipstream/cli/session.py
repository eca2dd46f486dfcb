"""What every command shares: a bucket, a way to speak, and one sentence for every failure."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, TypeVar

import typer

from slipstream.backends import open_connection
from slipstream.errors import (
    AlreadyExists,
    ArtifactError,
    ArtifactMissing,
    BucketUnavailable,
    ConnectionFailed,
    DestinationExists,
    KvError,
    MissingExtra,
    Misuse,
    PointerContention,
    RevisionMismatch,
    SlipstreamError,
    SnapshotError,
    Timeout,
    WatchError,
)
from slipstream.ports import KvReader, KvStore, KvWatcher, KvWriter

Role = TypeVar("Role")


class NotFound(SlipstreamError):
    """The key is not there, or is deleted."""


class LeaseHeld(SlipstreamError):
    """Another node holds the lease."""


class MissingRole(Misuse):
    """The backend does not play a role that the command needs."""


# The first that fits counts; 2 is also what a wrong command line gives.
EXIT_CODES: Final[tuple[tuple[type[BaseException], int], ...]] = (
    (MissingExtra, 10),
    (DestinationExists, 5),
    (Misuse, 2),
    (ConnectionFailed, 3),
    (Timeout, 3),
    (BucketUnavailable, 3),
    (NotFound, 4),
    (ArtifactMissing, 4),
    (AlreadyExists, 5),
    (RevisionMismatch, 5),
    (PointerContention, 5),
    (LeaseHeld, 5),
    (SnapshotError, 6),
    (ArtifactError, 7),
    (WatchError, 8),
    (KvError, 8),
    (OSError, 11),
    (SlipstreamError, 1),
)


@dataclass(frozen=True, slots=True)
class Speaker:
    """Says things to a person, or as JSON lines to a program."""

    as_json: bool

    def say(self, sentence: str, **facts: object) -> None:
        """Say one thing: the sentence to a person, the facts to a program."""
        typer.echo(json.dumps(facts, ensure_ascii=False) if self.as_json else sentence)

    def complain(self, error: BaseException) -> None:
        """Say what went wrong in one sentence."""
        sentence = f"{error}".strip() or type(error).__name__
        if self.as_json:
            kind = type(error).__name__
            typer.echo(json.dumps({"error": kind, "message": sentence}), err=True)
        else:
            typer.echo(f"slipstream: {sentence}", err=True)


@dataclass(frozen=True, slots=True)
class OpenBucket:
    """An open bucket."""

    store: KvStore

    @property
    def reader(self) -> KvReader:
        """The reading role."""
        return _required(self.store.reader(), "read")

    @property
    def writer(self) -> KvWriter:
        """The writing role."""
        return _required(self.store.writer(), "write")

    @property
    def watcher(self) -> KvWatcher:
        """The watching role."""
        return _required(self.store.watcher(), "watch")


def _required(role: Role | None, name: str) -> Role:
    if role is None:
        raise MissingRole("this backend cannot do that", role=name)
    return role


@asynccontextmanager
async def session(backend: str, bucket: str) -> AsyncIterator[OpenBucket]:
    """Connect, open the bucket, and close again."""
    connection = open_connection(backend)
    await connection.connect()
    try:
        yield OpenBucket(await connection.store(bucket))
    finally:
        await connection.shutdown()


def run(speaker: Speaker, command: Callable[[], Awaitable[None]]) -> None:
    """Run a command; a failure is one sentence and its exit code, never a traceback."""

    async def awaited() -> None:
        await command()

    try:
        asyncio.run(awaited())
    except (SlipstreamError, OSError) as error:
        speaker.complain(error)
        raise typer.Exit(exit_code(error)) from None
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def exit_code(error: BaseException) -> int:
    """Give the exit code of an error."""
    return next(code for kind, code in EXIT_CODES if isinstance(error, kind))


def as_text(value: bytes) -> dict[str, str]:
    """Give a value for JSON: as text, or in base64 and saying so."""
    try:
        return {"value": value.decode()}
    except UnicodeDecodeError:
        return {"value": base64.b64encode(value).decode(), "encoding": "base64"}
