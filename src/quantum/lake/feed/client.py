"""A running cluster's logs, read over its feed: from the first of its nodes that may answer."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final, TypeVar
from urllib.parse import urlencode

from clustor.log.keys import KeyRing
from clustor.log.types import Entry, PartitionId
from clustor.runtime.admin.caller import CredentialsUnusable, DoorRefused, open_http
from clustor.runtime.peers.transport import Address
from clustor.wall_clock import wall_clock_ms
from quantum.archive.feed_page import PAGE_BYTES_DEFAULT, FeedRequest, PageHead, decode_page, prove
from quantum.archive.types import Bounds, IndexRange, LogPiece, PrgId, SnapshotRef
from quantum.lake.archive.keys import KeyProvider, given_by
from quantum.lake.archive.translating import in_readers_words
from quantum.lake.errors import (
    BadAddress,
    LakeError,
    LogGone,
    NotPermitted,
    SourceUnreachable,
    while_reading,
)
from quantum.tenants.broker_file import TenantEntry, TenantRing

_AWAY: Final = "a node does not answer"
_PIECE_BYTES: Final = 8 << 20
_PAUSE_SECONDS: Final = 0.1

Found = TypeVar("Found")


class _Later(SourceUnreachable):
    """This node may answer later, or another one now."""

    pause_seconds = _PAUSE_SECONDS


class _Lacking(_Later):
    """This node has none of it. One that just started may not yet: others are asked before it is
    believed."""


@dataclass
class ClusterSource:
    """`LogSource` over the feed of a cluster. It waits up to `patience_seconds` for an answer."""

    addresses: tuple[str, ...]
    keys: KeyProvider
    patience_seconds: float = 30.0
    timeout_seconds: float = 10.0
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
                rings = tuple(TenantRing(int(count)) for count in row.get("rings", ()))
                horizon = int(row["dedupe_horizon_seconds"])
                return TenantEntry(tenant, int(row["prgs"]), *queue, rings, horizon)
        return None

    def bytes_behind(self, through: Mapping[PrgId, int]) -> int:
        """Say about how much the feed has behind some indexes, by one question."""
        total = 0
        for row in self._directory():
            first, last = int(row["first"]), int(row["last"])
            done = min(last, max(first - 1, through.get(PrgId(row["tenant"], row["number"]), 0)))
            total += int(row["bytes"]) * (last - done) // max(1, last - first + 1)
        return total

    # Asking.

    def _row(self, prg: PrgId) -> dict[str, Any]:
        def asked(address: Address) -> dict[str, Any]:
            row = self._listed(address, prg)
            if row["refusal"]:
                raise _Later(row["refusal"], prg=prg, address=address)
            return row

        return self._until_answered(asked, prg)

    def _listed(self, address: Address, prg: PrgId) -> dict[str, Any]:
        for row in _rows(address, self.timeout_seconds):
            if (row["tenant"], row["number"]) == (prg.tenant, prg.number):
                return row
        raise _Lacking("no such partition", prg=prg, address=address)

    def _directory(self) -> list[dict[str, Any]]:
        """Return what the first node lists that lists anything."""

        def asked(address: Address) -> list[dict[str, Any]]:
            rows = _rows(address, self.timeout_seconds)
            if not rows and len(self.addresses) > 1:
                raise _Lacking("no node has a partition", address=address)
            return rows

        return self._until_answered(asked)

    def _partition(self, prg: PrgId) -> PartitionId:
        """Return the number that the keys of a partition are derived with."""
        if prg not in self._partitions:
            row = self._until_answered(lambda address: self._listed(address, prg), prg)
            self._partitions[prg] = int(row["partition"])
        return PartitionId(self._partitions[prg])

    def check_keys(self, prg: PrgId) -> None:
        """Ask for a page behind the end of a log, which is empty: only the proof matters.

        Raises NotPermitted, WrongKey, SourceUnreachable; a node that refuses for any other reason
        has believed the proof.
        """
        span = IndexRange(prg, 1 << 52, 1 << 52)
        ring, partition = self.keys.keyring(prg), self._partition(prg)

        def asked(address: Address) -> None:
            code, body = self._ask(address, span.prg, span.first, ring, partition, bytes_max=1)
            if code == 403:
                raise self._not_permitted(body, prg, 1)

        self._until_answered(asked, prg)

    def _ask(  # noqa: PLR0917  # what a question is made of
        self,
        address: Address,
        prg: PrgId,
        index: int,
        ring: KeyRing,
        partition: PartitionId,
        bytes_max: int = PAGE_BYTES_DEFAULT,
    ) -> tuple[int, bytes]:
        now_ms = wall_clock_ms()
        request = FeedRequest(prg.tenant, prg.number, index, bytes_max, now_ms)
        query = {
            "from": index,
            "bytes": request.bytes_max,
            "at": request.at_ms,
            "proof": prove(request, ring, partition),
        }
        path = f"/v1/feed/{prg}?{urlencode(query)}"
        return _get(address, path, self.timeout_seconds)

    def _page(self, span: IndexRange, index: int) -> list[Entry]:
        ring, partition = self.keys.keyring(span.prg), self._partition(span.prg)

        def asked(address: Address) -> list[Entry]:
            code, body = self._ask(address, span.prg, index, ring, partition)
            if code == 403:
                raise self._not_permitted(body, span.prg, index)
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

    def _not_permitted(self, body: bytes, prg: PrgId, index: int) -> NotPermitted:
        said = _said(body)
        reason = str(said.pop("error", "the node does not let us read"))
        wanted = {"wanted": said["wanted"]} if "wanted" in said else {}
        return NotPermitted(reason, prg=prg, index=index, **wanted, given=given_by(self.keys, prg))

    def _until_answered(self, ask: Callable[[Address], Found], about: PrgId | None = None) -> Found:
        """Ask one node after the other, and again after a pause, until patience ends.

        Raises BadAddress where every node answers and none has it.
        """
        deadline = time.monotonic() + self.patience_seconds
        while True:
            later, all_lack = _Later("there is no address"), bool(self.addresses)
            for text in self.addresses:
                try:
                    return ask(_parse(text))
                except _Later as error:
                    later = error
                    all_lack = all_lack and isinstance(error, _Lacking)
            if all_lack:
                raise BadAddress(
                    later.reason, prg=later.prg or about, index=later.index, **later.facts
                )
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


def _get(address: Address, path: str, seconds: float) -> tuple[int, bytes]:
    try:
        connection = open_http(address, seconds=seconds)
    except (DoorRefused, CredentialsUnusable) as error:
        raise BadAddress(str(error), address=address) from error
    except OSError as error:
        raise _Later(_AWAY, address=address, cause=error) from error
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read()
    except (OSError, http.client.HTTPException) as error:
        raise _Later(_AWAY, address=address, cause=error) from error
    finally:
        connection.close()


def _rows(address: Address, seconds: float) -> list[dict[str, Any]]:
    code, body = _get(address, "/v1/feed", seconds)
    if code in (429, 503):
        raise _Later(str(_said(body).get("error", _AWAY)), address=address)
    if code == 404:
        raise _Lacking("this node has no feed", address=address, code=code)
    if code != 200:
        raise BadAddress("this node has no feed", address=address, code=code)
    try:
        rows: list[dict[str, Any]] = json.loads(body)["partitions"]
    except (ValueError, KeyError, TypeError) as error:
        raise BadAddress("this is no node of ours", address=address) from error
    return rows


def _said(body: bytes) -> dict[str, Any]:
    """Return the facts of a refusal, and its sentence as `error`."""
    try:
        said = json.loads(body)
        return {**said.get("facts", {}), "error": said["message"]}
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}


def _refused(code: int, body: bytes, address: Address, span: IndexRange, index: int) -> LakeError:
    said = _said(body)
    reason = str(said.get("error", f"the node answered {code}"))
    if code == 410:
        first = int(said["first"])
        readable = first if int(said["last"]) >= first else None
        return LogGone(
            reason,
            prg=span.prg,
            first=index,
            last=min(span.last, first - 1),
            readable_from=readable,
        )
    if code in (429, 503):
        later = _Later(reason, prg=span.prg, index=index, address=address)
        later.pause_seconds = max(0.01, int(said.get("retry_ms", 100)) / 1000)
        return later
    kind = _Lacking if code == 404 else BadAddress
    return kind(reason, prg=span.prg, index=index, address=address)


def _check(head: PageHead, prg: PrgId, index: int) -> None:
    if (head.prg, head.first) != (str(prg), index):
        raise SourceUnreachable("a node answered another question", prg=prg, index=index)


def _pieces(first: int, last: int, size: int) -> Iterator[LogPiece]:
    """Cut a log into stretches of about equal size: a feed knows no better."""
    count = last - first + 1
    if count <= 0:
        return
    parts = max(1, min(count, size // _PIECE_BYTES))
    edges = [first + count * nth // parts for nth in range(parts + 1)]
    for start, end in pairwise(edges):
        yield LogPiece(start, end - 1, max(1, size // parts))
