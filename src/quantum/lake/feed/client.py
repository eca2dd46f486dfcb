"""A running cluster's logs, read over its feed: from the first of its nodes that may answer."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final, TypeVar
from urllib.parse import urlencode

from clustor.log.types import Entry, PartitionId
from clustor.runtime.admin_caller import CredentialsUnusable, DoorRefused, open_http
from clustor.runtime.transport import Address
from quantum.archive.types import Bounds, IndexRange, Piece, PrgId, SnapshotRef
from quantum.lake.archive.keys import KeyProvider
from quantum.lake.archive.translating import in_readers_words
from quantum.lake.errors import (
    BadAddress,
    LakeError,
    LogGone,
    NotPermitted,
    SourceUnreachable,
    while_reading,
)
from quantum.serving.broker_file import Ring, TenantEntry
from quantum.serving.feed_page import PAGE_BYTES_DEFAULT, FeedRequest, PageHead, decode_page, prove

_TIMEOUT_SECONDS: Final = 10.0
_PIECE_BYTES: Final = 8 << 20
_PAUSE_SECONDS: Final = 0.1

Found = TypeVar("Found")


class _Later(SourceUnreachable):
    """This node may answer later, or another one now."""

    pause_seconds = _PAUSE_SECONDS


@dataclass
class ClusterSource:
    """`LogSource` over the feed of a cluster. It waits up to `patience_seconds` for an answer."""

    addresses: tuple[str, ...]
    keys: KeyProvider
    patience_seconds: float = 30.0
    _partitions: dict[PrgId, int] = field(default_factory=dict, repr=False)

    @classmethod
    def at(cls, text: str, keys: KeyProvider) -> ClusterSource:
        """Take `HOST:PORT`, or several with commas between them."""
        addresses = tuple(text.split(","))
        for each in addresses:
            _parse(each)
        return cls(addresses, keys)

    def prgs(self) -> list[PrgId]:
        return sorted(PrgId(row["tenant"], row["number"]) for row in self._directory())

    def bounds(self, prg: PrgId) -> Bounds:
        row = self._row(prg)
        first, last = int(row["first"]), int(row["last"])
        return Bounds(prg, first, last, tuple(_pieces(first, last, int(row["bytes"]))))

    def entries(self, span: IndexRange) -> Iterator[Entry]:
        index = span.first
        while index <= span.last:
            for entry in self._page(span, index):
                if entry.index > span.last:
                    return
                yield entry
                index = entry.index + 1

    def snapshots(self, prg: PrgId) -> list[SnapshotRef]:
        """Return none: a feed tells of the log alone. An archive has snapshots."""
        self._row(prg)
        return []

    def open_snapshot(self, ref: SnapshotRef) -> Iterator[bytes]:
        raise BadAddress("a running cluster gives no snapshots; its archive does", prg=ref.prg)

    def tenant_entry(self, tenant: str) -> TenantEntry | None:
        """Say under which numbers a tenant's logs are applied; None where nobody tells."""
        for row in self._directory():
            if row["tenant"] == tenant and "prgs" in row:
                queue = (int(row["queue_messages_max"]), int(row["queue_bytes_max"]))
                rings = tuple(Ring(int(count)) for count in row.get("rings", ()))
                horizon = int(row["dedupe_horizon_seconds"])
                return TenantEntry(tenant, int(row["prgs"]), *queue, rings, horizon)
        return None

    # Asking.

    def _row(self, prg: PrgId) -> dict[str, Any]:
        def asked(address: Address) -> dict[str, Any]:
            rows = _rows(address)
            for row in rows:
                if (row["tenant"], row["number"]) == (prg.tenant, prg.number):
                    if row["refusal"]:
                        raise _Later(row["refusal"], prg=prg, address=address)
                    return row
            raise BadAddress("no such partition", prg=prg, address=address)

        return self._until_answered(asked, prg)

    def _directory(self) -> list[dict[str, Any]]:
        return self._until_answered(_rows)

    def _partition(self, prg: PrgId) -> PartitionId:
        """Return the number that the keys of a partition are derived with."""
        if prg not in self._partitions:
            self._partitions[prg] = int(self._row(prg)["partition"])
        return PartitionId(self._partitions[prg])

    def _page(self, span: IndexRange, index: int) -> list[Entry]:
        ring, partition = self.keys.keyring(span.prg), self._partition(span.prg)

        def asked(address: Address) -> list[Entry]:
            request = FeedRequest(
                span.prg.tenant,
                span.prg.number,
                index,
                PAGE_BYTES_DEFAULT,
                time.time_ns() // 1_000_000,
            )
            query = {
                "from": index,
                "bytes": request.bytes_max,
                "at": request.at_ms,
                "proof": prove(request, ring, partition),
            }
            code, body = _get(address, f"/broker/feed/{span.prg}?{urlencode(query)}")
            if code != 200:
                raise _refused(code, body, address, span, index)
            with in_readers_words(span.prg, index):
                head, entries = decode_page(body, ring, partition)
            _check(head, span.prg, index)
            if not entries:
                raise _Later(
                    "not committed yet, as far as this node knows", prg=span.prg, index=index
                )
            return entries

        with while_reading(span.prg, index):
            return self._until_answered(asked, span.prg)

    def _until_answered(self, ask: Callable[[Address], Found], about: PrgId | None = None) -> Found:
        """Ask one node after the other, and again after a pause, until patience ends."""
        deadline = time.monotonic() + self.patience_seconds
        while True:
            later = _Later("there is no address")
            for text in self.addresses:
                try:
                    return ask(_parse(text))
                except _Later as error:
                    later = error
            if time.monotonic() >= deadline:
                raise SourceUnreachable(
                    later.reason, prg=later.prg or about, index=later.index, **later.facts
                )
            time.sleep(later.pause_seconds)


def _parse(text: str) -> Address:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65_536:
        raise BadAddress("not an address like 127.0.0.1:9080", address=text)
    return Address(host.strip("[]"), int(port))


def _get(address: Address, path: str) -> tuple[int, bytes]:
    try:
        connection = open_http(address, seconds=_TIMEOUT_SECONDS)
    except (DoorRefused, CredentialsUnusable) as error:
        raise BadAddress(str(error), address=address) from error
    except OSError as error:
        raise _Later("a node does not answer", address=address, cause=error) from error
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read()
    except (OSError, http.client.HTTPException) as error:
        raise _Later("a node does not answer", address=address, cause=error) from error
    finally:
        connection.close()


def _rows(address: Address) -> list[dict[str, Any]]:
    code, body = _get(address, "/broker/feed")
    if code != 200:
        raise BadAddress("this node has no feed", address=address, code=code)
    try:
        rows: list[dict[str, Any]] = json.loads(body)["partitions"]
    except (ValueError, KeyError, TypeError) as error:
        raise BadAddress("this is no node of ours", address=address) from error
    return rows


def _refused(code: int, body: bytes, address: Address, span: IndexRange, index: int) -> LakeError:
    try:
        said: dict[str, Any] = json.loads(body)
    except ValueError:
        said = {}
    reason = str(said.get("error", f"the node answered {code}"))
    if code == 410:
        first = int(said["first"])
        readable = first if said["last"] >= first else None
        return LogGone(
            reason,
            prg=span.prg,
            first=index,
            last=min(span.last, first - 1),
            readable_from=readable,
        )
    if code == 403:
        return NotPermitted(reason, prg=span.prg, index=index)
    if code in (429, 503):
        later = _Later(reason, prg=span.prg, index=index, address=address)
        later.pause_seconds = max(0.01, int(said.get("retry_ms", 100)) / 1000)
        return later
    return BadAddress(reason, prg=span.prg, index=index, address=address)


def _check(head: PageHead, prg: PrgId, index: int) -> None:
    if (head.prg, head.first) != (str(prg), index):
        raise SourceUnreachable("a node answered another question", prg=prg, index=index)


def _pieces(first: int, last: int, size: int) -> Iterator[Piece]:
    """Cut a log into stretches of about equal size: a feed knows no better."""
    count = last - first + 1
    if count <= 0:
        return
    parts = max(1, min(count, size // _PIECE_BYTES))
    edges = [first + count * nth // parts for nth in range(parts + 1)]
    for start, end in pairwise(edges):
        yield Piece(start, end - 1, max(1, size // parts))
