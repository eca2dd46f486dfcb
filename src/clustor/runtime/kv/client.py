"""A client of the key-value store: pipelined, follows the leader, never applies a write twice.

Each write in flight has a lane: a client id and a sequence that the store remembers. A write is
sent again under the same pair, so that the store answers it from memory if it was applied. A lane
carries one write at a time, because the store remembers only the last one of each client id.
"""

from __future__ import annotations

import asyncio
import os
import random
import ssl
from collections.abc import AsyncGenerator, Sequence
from typing import Final, Self

import msgspec

from clustor.kv import (
    CasRevision,
    CasValue,
    ClientId,
    Command,
    Delete,
    ErrorCode,
    Found,
    Get,
    Key,
    KvRecord,
    KvRefused,
    Put,
    ReadRange,
    RecordPage,
    Reply,
    decode_reply,
    encode_command,
)
from clustor.runtime.kv.link import KvLink, LinkLost, admin_addresses
from clustor.runtime.kv.stream import (
    NEVER_REACHED,
    KvOperation,
    Status,
    WatchEvents,
    WatchRequest,
)
from clustor.runtime.peers.transport import Address

TIMEOUT_SECONDS: Final = 10.0
_PAUSE_SECONDS: Final = 0.02
_PAUSE_SECONDS_MAX: Final = 0.25
_LANE_ID_BYTES: Final = 12
_POLL_SILENCE_SECONDS: Final = 5.0  # several times what a node lets a poll wait
_REVOKED: Final = "FollowerCapabilityRevoked"
_FINAL: Final = frozenset({Status.APPLIED, Status.EVENTS, Status.COMPACTED})

_events_decoder = msgspec.msgpack.Decoder(WatchEvents)


class Throttle(msgspec.Struct, frozen=True):
    """What a client needs of a ThrottleEnvelope."""

    reason: str
    retry_after_ms: str
    credit_hint: str

    @property
    def seconds(self) -> float:
        return int(self.retry_after_ms) / 1000


_throttle_decoder = msgspec.json.Decoder(Throttle)


class KvUnavailable(Exception):
    """No leader answered in time. `maybe_applied`: the write may have happened, or may yet."""

    def __init__(self, reason: str, *, maybe_applied: bool) -> None:
        super().__init__(reason)
        self.maybe_applied = maybe_applied


class KvRejected(Exception):
    """The store refused the command; nothing was changed."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class WatchCompacted(Exception):
    """The events that the watch asked for are gone; `oldest` is where one can start."""

    def __init__(self, oldest: int) -> None:
        super().__init__(f"the history begins at revision {oldest}")
        self.oldest = oldest


class _Closed(KvUnavailable):
    """The client was closed by its owner."""

    def __init__(self, *, maybe_applied: bool = False) -> None:
        super().__init__("the client is closed", maybe_applied=maybe_applied)


class _Lane:
    __slots__ = ("client_id", "sequence")

    def __init__(self) -> None:
        self.client_id = ClientId(os.urandom(_LANE_ID_BYTES))
        self.sequence = 0


class KvClient:
    """Requests may be made concurrently; each waits at most `timeout_seconds`."""

    def __init__(
        self,
        addresses: Sequence[Address],
        *,
        partition: int = 1,
        timeout_seconds: float = TIMEOUT_SECONDS,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        assert addresses, "no address to begin with"
        self._addresses = list(addresses)
        self._partition = partition
        self._timeout = timeout_seconds
        self._tls = tls
        self._lanes: list[_Lane] = []
        self._link: KvLink | None = None
        self._left: list[KvLink] = []  # connections that still answer what they were asked before
        self._linking = asyncio.Lock()
        self._random = random.Random(os.urandom(16))  # noqa: S311  # spreads retries
        self._next = 0
        self._closed = False
        self.throttled = 0
        """How often a node told this client to slow down."""
        self.redirects = 0
        self.links_opened = 0
        """Changes whenever another connection is made, perhaps to another life of the store."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()
        for link in self._links():
            await link.wait_closed()

    def close(self) -> None:
        """End all connections; open requests fail, and so do later ones."""
        self._closed = True
        for link in self._links():
            link.close()

    def _links(self) -> list[KvLink]:
        return [*self._left, *([] if self._link is None else [self._link])]

    @property
    def is_connected(self) -> bool:
        """Whether a connection stands now; the next request makes one where none does."""
        return self._link is not None and self._link.is_open

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called: no request will be answered any more."""
        return self._closed

    # Commands.

    async def get(self, key: bytes, *, snapshot_only: bool = False) -> KvRecord | None:
        """Return the newest record of a key, as of some moment during this call.

        With `snapshot_only` it may be older: what the node that is asked has applied, a follower
        too while the control plane lets followers read.
        """
        reply = await self._read(Get(Key(key)), snapshot_only=snapshot_only)
        assert isinstance(reply, Found)
        return reply.record

    async def put(self, key: bytes, value: bytes, *, ttl_ms: int = 0) -> Reply:
        """Write; the reply means: fsynced on a quorum."""
        return await self.execute(Put(Key(key), value, ttl_ms))

    async def delete(self, key: bytes) -> Reply:
        return await self.execute(Delete(Key(key)))

    async def cas_value(self, key: bytes, expected: bytes | None, value: bytes) -> Reply:
        """Put if the key holds `expected` (None: is absent)."""
        return await self.execute(CasValue(Key(key), expected, value))

    async def cas_revision(self, key: bytes, expected: int, value: bytes) -> Reply:
        """Put if the key was last changed at `expected` (0: is absent)."""
        return await self.execute(CasRevision(Key(key), expected, value))

    async def range(
        self, start: bytes, end: bytes | None, limit: int, *, snapshot_only: bool = False
    ) -> RecordPage:
        """Return keys in order, as of one moment during this call; see `get`."""
        reply = await self._read(ReadRange(start, end, limit), snapshot_only=snapshot_only)
        assert isinstance(reply, RecordPage)
        return reply

    async def _read(self, command: Get | ReadRange, *, snapshot_only: bool) -> Reply:
        operation = KvOperation.SNAPSHOT_READ if snapshot_only else KvOperation.COMMAND
        return await self._execute(encode_command(command), operation, writes=False)

    async def execute(self, command: Command) -> Reply:
        """Run a command once, however often it has to be sent.

        Raises KvUnavailable and KvRejected. A reply of the store, Conflict included, is returned.
        """
        if isinstance(command, Get | ReadRange):
            return await self._read(command, snapshot_only=False)
        while True:
            lane = self._lanes.pop() if self._lanes else _Lane()
            lane.sequence += 1
            command.client_id, command.sequence = lane.client_id, lane.sequence
            encoded = encode_command(command)
            reply = await self._execute(encoded, KvOperation.COMMAND, writes=True)
            if not _lane_forgotten(reply):
                self._lanes.append(lane)
                return reply

    async def _execute(self, body: bytes, operation: KvOperation, *, writes: bool) -> Reply:
        silence = self._timeout / 3
        _, answer, doubtful = await self._ask(operation, body, silence, writes=writes)
        return self._applied(decode_reply(answer), doubtful=doubtful)

    async def _ask(
        self, operation: KvOperation, body: bytes, silence_seconds: float, *, writes: bool
    ) -> tuple[int, bytes, bool]:
        """Send until a node answers for good; the last item: an earlier try may have counted.

        A node that says nothing for `silence_seconds` is given up, with its connection: it may be
        half-dead. A write that was sent and not answered is doubtful, whatever ends the wait.
        """
        doubtful = False
        throttle: Throttle | None = None
        refusal = ""
        pause = _PAUSE_SECONDS
        try:
            async with asyncio.timeout(self._timeout):
                while True:
                    link = await self._connected()
                    before, doubtful = doubtful, doubtful or writes
                    reply = await self._try(link, operation, body, silence_seconds)
                    if reply is None:
                        continue
                    status, answer = reply
                    if status in _FINAL:
                        return status, answer, before
                    if status != Status.UNKNOWN:
                        doubtful = before
                    if status == Status.REFUSED:
                        refusal = answer.decode()
                        _raise_final(refusal)
                        if refusal == _REVOKED:
                            await self._redirect(link, "")
                    elif status == Status.THROTTLED:
                        self.throttled += 1
                        throttle = _throttle_decoder.decode(answer)
                        await asyncio.sleep(throttle.seconds * (0.5 + self._random.random()))
                        continue
                    elif status == Status.NOT_LEADER and await self._redirect(
                        link, answer.decode()
                    ):
                        continue
                    await asyncio.sleep(pause * self._random.random())
                    pause = min(2 * pause, _PAUSE_SECONDS_MAX)
        except TimeoutError:
            raise KvUnavailable(_why(throttle, refusal), maybe_applied=doubtful) from None
        except _Closed:
            raise _Closed(maybe_applied=doubtful) from None

    async def _try(
        self, link: KvLink, operation: KvOperation, body: bytes, silence_seconds: float
    ) -> tuple[int, bytes] | None:
        """Send once; None where no answer will come."""
        try:
            async with asyncio.timeout(silence_seconds):
                return await link.request(self._partition, operation, body)
        except LinkLost:
            return None
        except TimeoutError:
            self._give_up(link)
            return None

    def _applied(self, reply: Reply, *, doubtful: bool) -> Reply:
        if doubtful and _lane_forgotten(reply):
            raise KvUnavailable("the store no longer knows this request", maybe_applied=True)
        if isinstance(reply, KvRefused) and not _lane_forgotten(reply):
            raise KvRejected(f"{reply.code.name} (actual={reply.actual}, limit={reply.limit})")
        return reply

    # Watching.

    async def watch(
        self, prefixes: Sequence[bytes], revision: int
    ) -> AsyncGenerator[WatchEvents, None]:
        """Give what happens after `revision`, without a gap, over reconnections.

        The leader serves it, and any follower while followers may read: what they show is
        committed. Who gives no sign of life is left for another. Raises WatchCompacted.
        """
        silence = min(_POLL_SILENCE_SECONDS, self._timeout)
        while True:
            link = await self._connected()
            wanted = msgspec.msgpack.encode(WatchRequest(revision, list(prefixes)))
            events = link.stream(self._partition, wanted)
            try:
                while True:
                    async with asyncio.timeout(silence):
                        status, body = await anext(events)
                    if status == Status.COMPACTED:
                        raise WatchCompacted(int.from_bytes(body, "little"))
                    if status != Status.EVENTS:
                        await self._on_watch_refused(link, status, body.decode())
                        break
                    found = _events_decoder.decode(body)
                    revision = found.through
                    if found.events:
                        yield found
            except TimeoutError:
                self._give_up(link)
            except LinkLost:
                await asyncio.sleep(_PAUSE_SECONDS * self._random.random())
            finally:
                await events.aclose()

    async def _on_watch_refused(self, link: KvLink, status: int, said: str) -> None:
        """Go where the watch can go on, or raise KvRejected."""
        if status == Status.REFUSED and said != _REVOKED:
            raise KvRejected(said)
        if not await self._redirect(link, said if status == Status.NOT_LEADER else ""):
            await asyncio.sleep(_PAUSE_SECONDS * self._random.random())

    async def poll(
        self,
        prefixes: Sequence[bytes],
        revision: int,
        *,
        events_max: int,
        reached: int = NEVER_REACHED,
    ) -> WatchEvents:
        """Give some of what happened after `revision`, as soon as there is any.

        Gives no events, and how far that holds, once a node has reached `reached`, and at least
        every second or so. It is served as a watch is. Raises WatchCompacted, and KvUnavailable if
        no node that may serve it answers in time.
        """
        wanted = WatchRequest(revision, list(prefixes), events_max, reached)
        body = msgspec.msgpack.encode(wanted)
        status, answer, _ = await self._ask(
            KvOperation.WATCH, body, _POLL_SILENCE_SECONDS, writes=False
        )
        if status == Status.COMPACTED:
            raise WatchCompacted(int.from_bytes(answer, "little"))
        return _events_decoder.decode(answer)

    # Connections.

    async def _connected(self) -> KvLink:
        if self._closed:
            raise _Closed
        if self._link is not None and self._link.is_open:
            return self._link
        async with self._linking:
            while self._link is None or not self._link.is_open:
                if self._closed:
                    raise _Closed
                address = self._addresses[self._next % len(self._addresses)]
                try:
                    self._link = await KvLink.open(address, self._tls)
                except OSError:
                    self._next += 1
                    await asyncio.sleep(_PAUSE_SECONDS * self._random.random())
                else:
                    self.links_opened += 1
                    await self._learn(address)
            return self._link

    def _give_up(self, link: KvLink) -> None:
        """Leave a node that says nothing; what else waits there is asked elsewhere, too."""
        link.abort()
        if link is self._link:
            self._link = None
            self._next += 1

    async def _learn(self, address: Address) -> None:
        """Ask the node where the others are, once."""
        if len(self._addresses) == 1:
            self._addresses += [
                each for each in await admin_addresses(address, self._tls) if each != address
            ]

    async def _redirect(self, link: KvLink, leader: str) -> bool:
        """Go where the leader is said to be, or to the next node; say whether that was news."""
        if link is not self._link:
            return True  # somebody else already moved on
        host, _, port = leader.rpartition(":")
        self._link = None
        link.drain()
        self._left = [each for each in (*self._left, link) if not each.is_gone]
        if not host:
            self._next += 1
            return False
        target = Address(host, int(port))
        if target not in self._addresses:
            self._addresses.append(target)
        self._next = self._addresses.index(target)
        self.redirects += 1
        return target != link.address


def _lane_forgotten(reply: Reply) -> bool:
    return isinstance(reply, KvRefused) and reply.code is ErrorCode.CLIENT_UNKNOWN


def _why(throttle: Throttle | None, refusal: str) -> str:
    """Say what a request waited for in vain, by the last word that a node gave."""
    if throttle is not None:
        return f"throttled: {throttle.reason}"
    return f"refused: {refusal}" if refusal else "no leader answered in time"


def _raise_final(reason: str) -> None:
    """Raise for what waiting does not mend; Overloaded and Transferring pass."""
    if reason in ("TooLarge", "NoSuchGroup", "TooManyWatches"):
        raise KvRejected(reason)
