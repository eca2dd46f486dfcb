"""Pages of streams: make one, look at it, read it, end it."""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

import msgspec

from clustor.control.types import Count
from clustor.runtime.stream_reads import ReaderBusy
from quantum.admin.broker_pages import led_by_another, tenant_of
from quantum.admin.errors import ApiError, conflict, malformed, not_found
from quantum.admin.page_context import PageContext
from quantum.admin.routes import AdminRequest
from quantum.broker.stream_table import Stream
from quantum.mesh.tenant import Tenant
from quantum.model.records import Record
from quantum.node.orders import LedByAnother, OrderRefused
from quantum.node.rows import (
    StreamGone,
    StreamInfo,
    StreamPage,
    StreamPartitionRow,
    StreamRecord,
    StreamRecords,
    StreamRow,
)
from quantum.node.served import ServedBroker
from quantum.node.streams import (
    NoSuchStream,
    OffsetGone,
    OrderLost,
    StreamOrder,
    TooManyReaders,
)
from quantum.node.views import payload_of

BYTES_MAX: Final = 1 << 20
WAIT_MS_MAX: Final = 8_000
RETENTION_MS_MAX: Final = 1 << 50
StreamName: TypeAlias = Annotated[str, msgspec.Meta(min_length=1, max_length=249)]
"""What it may be made of the broker says: with a sentence, not with a pattern."""
Filter: TypeAlias = Annotated[str, msgspec.Meta(min_length=1, max_length=65_535)]
_BUSY: Final = "repeat it after a second"


class CreateBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a stream captures, and how much of it is kept; 0 is 'without a bound'."""

    name: StreamName
    filters: Annotated[tuple[Filter, ...], msgspec.Meta(min_length=1, max_length=64)]
    retention_ms: Annotated[int, msgspec.Meta(ge=0, le=RETENTION_MS_MAX)] = 0
    retention_bytes: Count = 0


class DeleteBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Nothing has to be said."""


def streams(api: PageContext, asked: AdminRequest) -> StreamPage:
    """List the streams of a tenant, by name."""
    broker, tenant = tenant_of(api, asked)
    after, limit = (asked.values["after"] or "").encode(), asked.values["limit"]
    found = [each for each in broker.streams.all(tenant) if each.spec.name > after]
    rows = [_row(each) for each in found[:limit]]
    return StreamPage(items=rows, after=rows[-1].name if len(found) > limit else None)


def stream(api: PageContext, asked: AdminRequest) -> StreamInfo:
    broker, tenant = tenant_of(api, asked)
    return _info(broker, tenant, asked.values["stream"])


async def create(api: PageContext, asked: AdminRequest) -> StreamInfo:
    """Make a stream; answered when every partition captures."""
    broker, tenant = tenant_of(api, asked)
    body: CreateBody = asked.body
    order = StreamOrder(body.name, body.filters, body.retention_ms, body.retention_bytes)
    try:
        await broker.streams.create(tenant, order, asked.caller.identity)
    except (OrderRefused, LedByAnother, OrderLost) as refusal:
        raise _refused(broker, refusal) from None
    return _info(broker, tenant, body.name)


async def delete(api: PageContext, asked: AdminRequest) -> StreamGone:
    """End a stream, and delete what it holds."""
    broker, tenant = tenant_of(api, asked)
    name = asked.values["stream"]
    try:
        await broker.streams.delete(tenant, name, asked.caller.identity)
    except NoSuchStream:
        raise not_found("no such stream", stream=name) from None
    except (OrderRefused, LedByAnother, OrderLost) as refusal:
        raise _refused(broker, refusal) from None
    return StreamGone(name=name)


def _refused(broker: ServedBroker, refusal: Exception) -> ApiError:
    if isinstance(refusal, LedByAnother):
        return led_by_another(broker, refusal.leader)
    if isinstance(refusal, OrderRefused):
        return conflict(str(refusal))
    return ApiError(503, "NoAnswer", str(refusal), next="repeat it: the same order changes nothing")


async def records(api: PageContext, asked: AdminRequest) -> StreamRecords:
    """Read messages of one partition, from an offset or a time on."""
    broker, tenant = tenant_of(api, asked)
    values = asked.values
    name, partition = values["stream"], values["partition"]
    if values["offset"] is not None and values["time_ms"] is not None:
        raise malformed("an offset or a time, not both", parameter="time_ms")
    try:
        offset = values["offset"]
        if values["time_ms"] is not None:
            offset = await broker.streams.offset_of_time(tenant, name, partition, values["time_ms"])
        if offset is None:
            offset = _start(broker, tenant, name, partition)
        found = await broker.streams.read(
            tenant,
            name,
            partition,
            offset,
            bytes_max=values["bytes_max"],
            wait_ms=values["wait_ms"],
        )
    except NoSuchStream:
        raise not_found("no such partition of a stream", stream=name, partition=partition) from None
    except OffsetGone as gone:
        raise ApiError(
            410,
            "OffsetOutOfRange",
            str(gone),
            next=f"read from {gone.start} on, or wait for {gone.next}",
            facts={"first": gone.start, "next": gone.next},
        ) from None
    except (TooManyReaders, ReaderBusy):
        raise ApiError(429, "Busy", "too many requests read streams here", next=_BUSY) from None
    items = [_record(partition, each) for each in found.records]
    return StreamRecords(items=items, start=found.start, next=found.next)


def _start(broker: ServedBroker, tenant: Tenant, name: str, partition: int) -> int:
    for prg, found in broker.streams.named(tenant, name):
        if prg.number == partition:
            return found.start_offset
    raise NoSuchStream(name)


def _row(found: Stream) -> StreamRow:
    spec = found.spec
    return StreamRow(
        name=spec.name.decode(),
        number=spec.number,
        filters=[each.decode() for each in spec.filters],
        retention_ms=spec.retention_ms,
        retention_bytes=spec.retention_bytes,
        created_ms=spec.created_ms,
    )


def _info(broker: ServedBroker, tenant: Tenant, name: str) -> StreamInfo:
    found = broker.streams.named(tenant, name)
    if not found:
        raise not_found("no such stream", stream=name)
    partitions = [
        StreamPartitionRow(
            partition=prg.number,
            leader=prg.leader_node,
            start=each.start_offset,
            next=each.next_offset,
            file_bytes=broker.streams.size_bytes(prg, each),
        )
        for prg, each in found
    ]
    return StreamInfo(**msgspec.structs.asdict(_row(found[0][1])), partitions=partitions)


def _record(partition: int, record: Record) -> StreamRecord:
    return StreamRecord(
        partition=partition,
        offset=record.offset,
        timestamp_ms=record.timestamp_ms,
        protocol=record.protocol.name.lower(),
        address=_text(record.address),
        sender=_text(record.origin.sender),
        payload=None if record.body is None else payload_of(record.body),
        key=None if record.key is None else _text(record.key),
        headers=[(_text(name), _text(value or b"")) for name, value in record.headers],
        content_type=None if record.content_type is None else _text(record.content_type),
        expires_at_ms=record.expires_at_ms,
    )


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")
