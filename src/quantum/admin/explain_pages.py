"""Pages about one message: would it come to a client, where has it been, who had it on disk."""

from __future__ import annotations

from clustor.security.receipts import DurabilityReceipt
from quantum.admin.broker_pages import tenant_of
from quantum.admin.errors import ApiError, malformed, not_found
from quantum.admin.page_context import PageContext
from quantum.admin.routes import AdminRequest
from quantum.mesh.tenant import Tenant
from quantum.model.records import RecordProtocol
from quantum.node.delivery import DeliveryQuestion
from quantum.node.delivery_rows import DeliveryView, MessageTrail
from quantum.node.message_trail import MessageUnknown, TrailBusy
from quantum.node.receipts import MessageId, parse_message_id
from quantum.node.served import ServedBroker
from quantum.node.streams import NoSuchStream, OffsetGone
from quantum.protocols.mqtt.codec import PeerFault, check_topic_name

_BUSY = "repeat it in a moment: one such question at a time reads the logs of a node"


async def delivery(api: PageContext, asked: AdminRequest) -> DeliveryView:
    """Say whether a message to a topic would come to a client now, and by which rule."""
    broker, tenant = tenant_of(api, asked)
    values = asked.values
    try:
        check_topic_name(values["topic"].encode())
    except PeerFault as fault:
        raise malformed(fault.reason, parameter="topic") from None
    question = DeliveryQuestion(
        tenant=tenant.name,
        topic=values["topic"],
        client_id=values["client_id"],
        qos=values["qos"],
        publisher=values["publisher"],
        principal=values["principal"],
        publisher_principal=values["publisher_principal"],
    )
    return await broker.deliveries.explain(tenant, question)


async def trail(api: PageContext, asked: AdminRequest) -> MessageTrail:
    """Tell a past message's way through logs, partitions and sessions."""
    broker, tenant = tenant_of(api, asked)
    values = asked.values
    client = values["client_id"].encode()
    if (values["message"] is None) == (values["stream"] is None):
        raise malformed("say either a message's id, or a stream with partition and offset")
    try:
        if values["message"] is not None:
            return await broker.trails.of_id(tenant, _message_id(values["message"]), client)
        return await _of_offset(broker, tenant, asked, client)
    except MessageUnknown as unknown:
        raise not_found(str(unknown)) from None
    except TrailBusy:
        raise ApiError(429, "Busy", "the logs are being read for somebody", next=_BUSY) from None


async def _of_offset(
    broker: ServedBroker, tenant: Tenant, asked: AdminRequest, client: bytes
) -> MessageTrail:
    values = asked.values
    name, partition, offset = values["stream"], values["partition"], values["offset"] or 0
    try:
        found = await broker.streams.read(tenant, name, partition, offset, bytes_max=1)
    except NoSuchStream:
        raise not_found("no such partition of a stream", stream=name, partition=partition) from None
    except OffsetGone as gone:
        raise not_found(str(gone), first=gone.start, next=gone.next) from None
    record = next((each for each in found.records if each.offset == offset), None)
    if record is None:
        raise not_found("there is no message at this offset yet", stream=name, offset=offset)
    if record.protocol is not RecordProtocol.MQTT:
        raise malformed("only messages that MQTT brought can be followed", parameter="stream")
    return await broker.trails.of_record(tenant, record, partition, client)


async def receipt(api: PageContext, asked: AdminRequest) -> DurabilityReceipt:
    """Let every replica sign what its own disk has of a message."""
    broker, tenant = tenant_of(api, asked)
    wanted = _message_id(asked.values["message"])
    prg = broker.receipts.partition_of(tenant, wanted)
    if prg is None:
        raise not_found("no partition of this tenant has that group", group=wanted.group)
    found = await broker.receipts.gather(tenant, prg, wanted)
    if not found.statements:
        raise not_found("no replica signs for this message", missing=found.missing)
    return found


def _message_id(text: str) -> MessageId:
    found = parse_message_id(text)
    if found is None:
        raise malformed("an id is GROUP-INDEX-DIGEST, as an acknowledgement names it")
    return found
