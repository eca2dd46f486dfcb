"""One bucket's link to the server: timed requests, mapped errors, facts of the stream."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import nats.errors
import nats.js.errors
from nats.aio.client import Client
from nats.js import JetStreamContext

from slipstream.errors import (
    BucketUnavailable,
    ConnectionFailed,
    KvError,
    RevisionMismatch,
    StoreFailure,
    Timeout,
)

_Answer = TypeVar("_Answer")
_WRONG_LAST_SEQUENCE: Final = frozenset({10071, 10164})
_STREAM_NOT_FOUND: Final = 10059
_NOT_READY: Final = frozenset({None, 10008, 10039})


_ANSWER_SECONDS_MAX = 2.0
"""After this long without an answer, a question is asked again."""


@dataclass(frozen=True, slots=True)
class StreamFacts:
    """What a stream says of itself. `identity` names this life of it: name and time of birth."""

    identity: bytes
    first_sequence: int
    last_sequence: int


@asynccontextmanager
async def timed(operation: str, seconds: float) -> AsyncIterator[None]:
    """Bound a backend operation, and speak of its failures in our words.

    A half-dead connection answers nothing and fails nothing: without this bound the await would
    be parked for ever.
    """
    try:
        async with asyncio.timeout(seconds):
            yield
    except KvError:
        raise
    except (TimeoutError, nats.errors.TimeoutError) as error:
        raise Timeout("no answer in time", operation=operation, seconds=seconds) from error
    except nats.js.errors.APIError as error:
        raise _from_api_error(operation, error) from error
    except (nats.errors.ConnectionClosedError, nats.errors.NoServersError, OSError) as error:
        raise ConnectionFailed("the connection is gone", operation=operation) from error
    except nats.errors.Error as error:
        reason = str(error) or type(error).__name__
        raise StoreFailure("the server refused", operation=operation, cause=reason) from error


def _from_api_error(operation: str, error: nats.js.errors.APIError) -> KvError:
    """A stale conditional write is 10071 (10164 on some servers), whichever call raised it."""
    code = getattr(error, "err_code", None)
    stale = isinstance(error, nats.js.errors.KeyWrongLastSequenceError)
    if stale or code in _WRONG_LAST_SEQUENCE:
        return RevisionMismatch("the key has moved on", operation=operation)
    if code == _STREAM_NOT_FOUND or isinstance(error, nats.js.errors.BucketNotFoundError):
        return BucketUnavailable("there is no such bucket", operation=operation)
    unavailable = isinstance(error, nats.js.errors.ServiceUnavailableError)
    if unavailable and code in _NOT_READY:  # The server uses the same status for a full bucket.
        return ConnectionFailed("the server has no JetStream, or it is not ready")
    reason = getattr(error, "description", None) or type(error).__name__
    return StoreFailure("the server refused", operation=operation, cause=reason, code=code)


def _honour_cancellation() -> None:
    """Raise a cancellation that was swallowed on the way.

    The client waits with `asyncio.wait_for`, which before Python 3.12 forgets a cancellation that
    arrives together with the answer; a task that is told once would then never end.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


class NatsBucketLink:
    """What the roles of one bucket share."""

    def __init__(
        self,
        client: Client,
        bucket: str,
        *,
        operation_seconds: float,
        heartbeat_seconds: float,
        floor_probe_seconds: float,
        on_reconnect: Callable[[Callable[[], None]], Callable[[], None]],
    ) -> None:
        self.client = client
        self.jetstream: JetStreamContext = client.jetstream(timeout=operation_seconds)
        self._impatient: JetStreamContext = client.jetstream(
            timeout=min(operation_seconds, _ANSWER_SECONDS_MAX)
        )
        self.bucket = bucket
        self.stream = f"KV_{bucket}"
        self.subject_prefix = f"$KV.{bucket}."
        self.heartbeat_seconds = heartbeat_seconds
        self.floor_probe_seconds = floor_probe_seconds
        self.on_reconnect = on_reconnect
        self._operation_seconds = operation_seconds

    async def timed(self, operation: str, answer: Awaitable[_Answer]) -> _Answer:
        """Await one operation within the connection's bound."""
        async with timed(operation, self._operation_seconds):
            result = await answer
            _honour_cancellation()
            return result
        raise AssertionError("timed() never swallows an error")

    async def ask(
        self, operation: str, question: Callable[[JetStreamContext], Awaitable[_Answer]]
    ) -> _Answer:
        """Ask what may be asked twice, within the connection's bound.

        An answer can die with its server; after a reconnect nobody sends it again.
        """
        async with timed(operation, self._operation_seconds):
            while True:
                try:
                    result = await question(self._impatient)
                except nats.errors.TimeoutError:
                    _honour_cancellation()
                    continue
                _honour_cancellation()
                return result
        raise AssertionError("timed() never swallows an error")

    @property
    def operation_seconds(self) -> float:
        """The bound of every operation."""
        return self._operation_seconds

    async def facts(self) -> StreamFacts:
        """Ask the stream what it holds now."""
        info = await self.ask("stream info", lambda jetstream: jetstream.stream_info(self.stream))
        born = info.created.isoformat() if info.created is not None else ""
        digest = hashlib.blake2b(f"{self.stream}\n{born}".encode(), digest_size=8).digest()
        return StreamFacts(digest, info.state.first_seq, info.state.last_seq)

    async def witness_at(self, revision: int) -> int | None:
        """Give the server's stamp on a revision in microseconds, None when it is no longer held."""
        try:
            message = await self.ask(
                "read a revision",
                lambda jetstream: jetstream.get_msg(self.stream, seq=revision),
            )
        except StoreFailure as error:
            if isinstance(error.__cause__, nats.js.errors.NotFoundError):
                return None
            raise
        return None if message.time is None else round(message.time.timestamp() * 1_000_000)


def header(message: Any, name: str) -> str | None:
    """Give one header of a message, None when it has none."""
    headers = message.headers
    return None if not headers else headers.get(name)
