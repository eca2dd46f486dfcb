"""What an attach to a stream leads to: a reader, a writer, or a refusal."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from quantum.mesh.topic_views import TopicKind
from quantum.protocols.amqp.engine import (
    AmqpLink,
    Condition,
    ErrorValue,
    SourceTerminus,
    TargetTerminus,
)
from quantum.protocols.amqp.engine.types import TerminusDurability
from quantum.protocols.amqp.selectors import SelectorError, parse_selector
from quantum.protocols.amqp.session.addresses import LinkAddress
from quantum.protocols.amqp.session.client_port import AttachingClient
from quantum.protocols.amqp.session.refusal_table import LinkRefused
from quantum.protocols.amqp.session.stream_feed import NO_STREAM, misfit
from quantum.protocols.amqp.session.stream_filters import (
    StreamFilters,
    StreamStart,
    read_stream_filters,
)
from quantum.protocols.amqp.session.stream_incoming import StreamIncomingLink
from quantum.protocols.amqp.session.stream_lanes import message_bytes_max
from quantum.protocols.amqp.session.stream_outgoing import StreamOutgoingLink

_OUTCOMES: Final = tuple(
    f"amqp:{each}:list" for each in ("accepted", "rejected", "released", "modified")
)


def attach_stream_reader(
    client: AttachingClient, link: AmqpLink, source: SourceTerminus, address: LinkAddress
) -> None:
    """Let a client read a stream that it may read. Raises LinkRefused."""
    filters = _filters_of(source)
    topics = client.home.tenant.topics
    topic = topics.topic(address.name)
    if topic is None and topics.is_ready():
        raise _refused(NO_STREAM)
    error = None if topic is None else misfit(topic, address.partition, filters.start)
    if error is not None:
        raise _refused(error)
    told = replace(
        source,
        filter=filters.told,
        outcomes=_OUTCOMES,
        distribution_mode="copy",
        durable=TerminusDurability.NONE,
    )
    link.attach(source=told)
    selector = parse_selector(filters.selector) if filters.selector else None
    end = StreamOutgoingLink(client, link, selector)
    client.links[link] = end
    end.begin(address.name, address.partition, filters.start)


def attach_stream_writer(
    client: AttachingClient, link: AmqpLink, target: TargetTerminus, address: LinkAddress
) -> None:
    """Let a client append to a stream that it may write. Raises LinkRefused."""
    tenant = client.home.tenant
    topic = tenant.topics.topic(address.name)
    if topic is None and not tenant.topics.was_ready():
        why = "this node does not know yet which streams there are: come again"
        raise LinkRefused(Condition.DETACH_FORCED, why)
    if topic is None:
        raise _refused(NO_STREAM)
    error = misfit(topic, address.partition, StreamStart())
    if error is not None:
        raise _refused(error)
    if topic.kind is TopicKind.CAPTURE:
        why = "this stream keeps what MQTT publishes: send to a topic that its filter matches"
        raise LinkRefused(Condition.NOT_ALLOWED, why)
    if not all(tenant.knows_topics(tenant.prgs[each]) for each in topic.prgs):
        why = "not every node knows topics of streams yet: upgrade them first"
        raise LinkRefused(Condition.NOT_IMPLEMENTED, why)
    link.attach(
        target=replace(target, durable=TerminusDurability.NONE),
        message_bytes_max=min(link.message_bytes_max, message_bytes_max(topic)),
    )
    end = StreamIncomingLink(client, link, topic, address.partition)
    client.links[link] = end
    end.begin()


def _filters_of(source: SourceTerminus) -> StreamFilters:
    try:
        return read_stream_filters(source.filter)
    except SelectorError as error:
        raise LinkRefused(Condition.INVALID_FIELD, f"no selector: {error}") from None
    except ValueError as error:
        raise LinkRefused(Condition.INVALID_FIELD, f"{error}") from None


def _refused(error: ErrorValue) -> LinkRefused:
    return LinkRefused(error.condition, error.description or "")
