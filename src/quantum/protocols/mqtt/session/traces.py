"""The spans of messages on one node: connect, publish, authorise, forward, fsync, apply, deliver.

A trace begins with its client's `traceparent` (a user property of CONNECT or PUBLISH that says
'sampled'), or here, for a share of the publishes without one: those get a `traceparent` that
travels with them to their subscribers. The property is in the message's record, so every node
that the message passes has it, and names its spans' parents by it (`TraceContext.derive`):

    client's span ─ publish ─┬ authorise
                             ├ forward ─┬ fsync      where another partition owns the topic;
                             │          └ apply      else both hang on `publish`
                             └ deliver               one for each subscriber
    client's span ─ connect

A node that traces nothing has no `Traces`, and its hot path one question whether it has. Where it
has, at most so many spans are made in a second: a client that says 'sampled' of every message
costs no more than that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from clustor.printable import printable
from clustor.runtime.telemetry.spans import SpanSink
from clustor.telemetry.tracing import (
    NO_PARENT,
    SPAN_ID_BYTES,
    TRACE_ID_BYTES,
    TRACEPARENT_CHARACTERS,
    Attribute,
    Span,
    TraceContext,
    read_traceparent,
)
from quantum.broker.message import HEAD_BYTES, Message, decode_record, unpack_head
from quantum.partition.batches import BatchOwner, PublishBatch, Token
from quantum.partition.leader import PartitionLeader
from quantum.partition.ports import Completion, LeaderPort
from quantum.protocols.mqtt.codec import Connect, Properties, Publish
from quantum.protocols.mqtt.codec.hot import SLOW, Row

KEY: Final = "traceparent"
SPANS_PER_SECOND_MAX: Final = 2_000
ALERT_SECONDS: Final = 60
"""For so long after an incident everything is sampled, as far as the bound lets (§16)."""
_MARK: Final = b"\x26\x00\x0b" + KEY.encode() + b"\x00" + bytes((TRACEPARENT_CHARACTERS,))
"""How the property begins in a block of properties."""
_PUBLISH: Final = 3
_NS_PER_SECOND: Final = 1_000_000_000


class TracedMessage:
    """A message that belongs to a trace: the ids of its spans, the same on every node."""

    __slots__ = ("_about", "context")

    def __init__(self, context: TraceContext, about: bytes) -> None:
        self.context = context
        self._about = about

    @classmethod
    def of(cls, message: Message) -> TracedMessage | None:
        """Find the context in a message; None: it is not traced."""
        context = context_in(message.properties)
        if context is None:
            return None
        about = about_publish(message.client_id, message.epoch, message.packet_id, message.topic)
        return cls(context, about)

    def span_id(self, name: str, more: bytes = b"") -> bytes:
        return self.context.derive(name.encode(), self._about + more)


def about_publish(client_id: bytes, epoch: int, packet_id: int, topic: bytes) -> bytes:
    """Tell the publishes of one client's span apart."""
    return b"%d %d %d " % (epoch, packet_id, len(topic)) + topic + client_id


def context_in(properties: bytes) -> TraceContext | None:
    """Find a sampled context in an encoded block of properties."""
    at = properties.find(_MARK)
    if at < 0:
        return None
    at += len(_MARK)
    text = properties[at : at + TRACEPARENT_CHARACTERS].decode("latin-1")
    return read_traceparent(text)


def context_among(properties: Properties) -> TraceContext | None:
    """Find a sampled context among decoded properties."""
    for key, value in properties.user_properties:
        if key == KEY:
            return read_traceparent(value)
    return None


class Traces:
    """What one node tells of its messages."""

    def __init__(
        self,
        sink: SpanSink,
        now_ns: Callable[[], int],
        entropy: Callable[[int], bytes],
        *,
        share: float = 0.01,
        spans_per_second_max: int = SPANS_PER_SECOND_MAX,
    ) -> None:
        """`share` is how many of the publishes without a context get one; 0: none, 1: all.

        `now_ns` is the time of day.
        """
        self._sink = sink
        self._every = round(1 / share) if share > 0 else 0
        self._spans_per_second_max = spans_per_second_max
        self.now_ns = now_ns
        self._entropy = entropy
        self._alert_until_ns = 0
        self._passed_by = 0  # packets since a publish was chosen
        self._chosen = 0  # publishes of the rows at hand that get a context
        self._second = 0
        self._spans = 0  # of this second
        self.withheld = 0
        """Spans that were not made because of the bound."""

    def alerted(self) -> None:
        """Sample everything for a while: something is wrong."""
        self._alert_until_ns = self.now_ns() + ALERT_SECONDS * _NS_PER_SECOND

    def has_room(self) -> bool:
        """Say whether one more span may be made in this second."""
        second = self.now_ns() // _NS_PER_SECOND
        if second != self._second:
            self._second, self._spans = second, 0
        if self._spans >= self._spans_per_second_max:
            self.withheld += 1
            return False
        return True

    def add(  # noqa: PLR0917  # as they stand in a span
        self,
        context: TraceContext,
        span_id: bytes,
        parent_id: bytes,
        name: str,
        began_ns: int,
        ended_ns: int,
        attributes: dict[str, Attribute],
        error: str = "",
    ) -> None:
        """Tell of something that is over."""
        self._spans += 1
        self._sink.add(
            Span(
                trace_id=context.trace_id,
                span_id=span_id,
                parent_id=parent_id,
                name=name,
                began_ns=began_ns,
                ended_ns=ended_ns,
                attributes=attributes,
                error=error,
            )
        )

    # Which publishes.

    def choose(self, buffer: bytes, rows: list[Row]) -> list[Row]:
        """Choose publishes that get a context: their rows become slow ones, all others stay.

        `begin_publish` follows at once, and takes as many as were chosen here.
        """
        is_alerted = bool(self._alert_until_ns) and self.now_ns() < self._alert_until_ns
        self._passed_by += len(rows)
        self._chosen = 0
        if not is_alerted and (not self._every or self._passed_by < self._every):
            return rows
        chosen: list[Row] = []
        for row in rows:
            first, _, start, topic_at, _, _, end = row
            if (is_alerted or not self._chosen) and buffer[start] >> 4 == _PUBLISH:
                self._chosen += 1
                if first != SLOW:
                    body = topic_at - 2
                    row = (SLOW, 0, start, body, body, body, end)  # noqa: PLW2901
            chosen.append(row)
        if self._chosen:
            self._passed_by = 0
        return chosen

    def begin_publish(
        self, packet: Publish, topic: bytes, client_id: bytes, epoch: int, tenant: str
    ) -> PublishTrace | None:
        """Begin the span of a publish that is sampled; None: it is not, or there is no room."""
        is_chosen, self._chosen = self._chosen > 0, max(0, self._chosen - 1)
        properties = packet.properties
        context, is_root = context_among(properties), False
        if context is None:
            if not is_chosen or any(key == KEY for key, _ in properties.user_properties):
                return None  # its client decided that it is not sampled
            context, is_root = self._new_context(), True
            user = (*properties.user_properties, (KEY, context.traceparent))
            properties = replace(properties, user_properties=user)
        if not self.has_room():
            return None
        about = about_publish(client_id, epoch, packet.packet_id, topic)
        message = TracedMessage(context, about)
        attributes: dict[str, Attribute] = {
            "messaging.destination.name": printable(topic.decode(errors="replace")),
            "messaging.client.id": printable(client_id.decode(errors="replace")),
            "quantum.tenant": tenant,
            "quantum.qos": packet.qos,
        }
        return PublishTrace(self, message, properties, attributes, is_root=is_root)

    def _new_context(self) -> TraceContext:
        return TraceContext(self._entropy(TRACE_ID_BYTES), self._entropy(SPAN_ID_BYTES))

    def begin_connect(self, connect: Connect) -> ConnectTrace | None:
        """Begin the span of a CONNECT whose client wants one."""
        context = context_among(connect.properties)
        if context is None or not self.has_room():
            return None
        return ConnectTrace(self, context, connect.client_id.encode())

    # In the log, and out of it.

    def watch_log(
        self, leader: LeaderPort, records: list[bytes], completion: Completion, *, passed: bool
    ) -> Completion:
        """Time how records become durable on a quorum and are applied; most are not traced.

        `passed`: another partition's leader passed them on.
        """
        found = [message for record in records if (message := _traced(record)) is not None]
        if not found:
            return completion
        began_ns = self.now_ns()

        def completed(reply: bytes | None) -> None:
            if reply is not None:
                self._logged(leader, found, began_ns, "forward" if passed else "publish")
            completion(reply)

        return completed

    def _logged(
        self, prg: LeaderPort, found: list[TracedMessage], began_ns: int, parent: str
    ) -> None:
        """Tell of both parts: the group answers when a quorum has fsynced and it has applied."""
        ended_ns = self.now_ns()
        seconds = prg.group.replica.applying.seconds
        applying_ns = round(seconds[-1] * _NS_PER_SECOND) if seconds else 0
        applied_from_ns = max(began_ns, ended_ns - applying_ns)
        number = b"%d" % prg.number
        attributes: dict[str, Attribute] = {
            "quantum.tenant": prg.tenant.name,
            "quantum.partition": prg.number,
            "quantum.term": prg.term,
        }
        for message in found:
            parent_id = message.span_id(parent)
            for name, begin, end in (
                ("fsync", began_ns, applied_from_ns),
                ("apply", applied_from_ns, ended_ns),
            ):
                if self.has_room():
                    span_id = message.span_id(name, number)
                    self.add(message.context, span_id, parent_id, name, begin, end, attributes)

    def delivered(self, message: Message, client_id: bytes, tenant: str) -> None:
        """Tell of a message that left for a client, if it is traced."""
        traced = TracedMessage.of(message)
        if traced is None or not self.has_room():
            return
        now_ns = self.now_ns()
        attributes: dict[str, Attribute] = {
            "messaging.client.id": printable(client_id.decode(errors="replace")),
            "quantum.tenant": tenant,
        }
        span_id = traced.span_id("deliver", client_id)
        parent_id = traced.span_id("publish")
        self.add(traced.context, span_id, parent_id, "deliver", now_ns, now_ns, attributes)


def _traced(record: bytes) -> TracedMessage | None:
    """Find the context in a record; one without properties is not looked into."""
    if len(record) < HEAD_BYTES or not unpack_head(record)[4] or _MARK not in record:
        return None
    try:
        message, _ = decode_record(record)
    except ValueError:
        return None  # the log's replicas skip it
    return TracedMessage.of(message)


class PublishTrace:
    """The spans of one publish at the node that serves its client."""

    __slots__ = (
        "_attributes",
        "_authorised_ns",
        "_began_ns",
        "_is_forwarded",
        "_is_root",
        "_message",
        "_refused",
        "_traces",
        "properties",
    )

    def __init__(
        self,
        traces: Traces,
        message: TracedMessage,
        properties: Properties,
        attributes: dict[str, Attribute],
        *,
        is_root: bool,
    ) -> None:
        self._traces = traces
        self._message = message
        self.properties = properties
        """The publish's own, with a context."""
        self._attributes = attributes
        self._is_root = is_root
        self._began_ns = self._authorised_ns = traces.now_ns()
        self._is_forwarded = False
        self._refused = ""

    def authorised(self, owner: PartitionLeader | None, home: PartitionLeader | None) -> None:
        """Note that the rules have spoken, and where the publish goes from here."""
        self._authorised_ns = self._traces.now_ns()
        if owner is None:
            self._refused = "NotAuthorized"
            self.finish()
        elif owner is not home:
            self._is_forwarded = True
            self._attributes["quantum.owner"] = owner.number

    def finish(self, error: str = "") -> None:
        """The publish is answered, or was handed over where there is no answer.

        Its children are told now too: one that is never answered leaves none without a parent.
        """
        traces, message, refused = self._traces, self._message, self._refused
        now_ns, authorised_ns = traces.now_ns(), self._authorised_ns
        self._child("authorise", self._began_ns, authorised_ns, refused)
        if self._is_forwarded:
            self._child("forward", authorised_ns, now_ns, error)
        parent_id = NO_PARENT if self._is_root else message.context.span_id
        span_id, error = message.span_id("publish"), error or refused
        traces.add(
            message.context,
            *(span_id, parent_id, "publish", self._began_ns, now_ns, self._attributes, error),
        )

    def _child(self, name: str, began_ns: int, ended_ns: int, error: str) -> None:
        message = self._message
        self._traces.add(
            message.context,
            *(message.span_id(name), message.span_id("publish"), name, began_ns, ended_ns),
            attributes={},
            error=error,
        )


class ConnectTrace:
    """The span of a CONNECT, until its CONNACK."""

    __slots__ = ("_began_ns", "_client_id", "_context", "_traces")

    def __init__(self, traces: Traces, context: TraceContext, client_id: bytes) -> None:
        self._traces = traces
        self._context = context
        self._client_id = client_id
        self._began_ns = traces.now_ns()

    def finish(self, tenant: str, error: str = "") -> None:
        """The CONNECT is answered."""
        context = self._context
        attributes: dict[str, Attribute] = {
            "messaging.client.id": printable(self._client_id.decode(errors="replace")),
            "quantum.tenant": tenant,
        }
        span_id = context.derive(b"connect", self._client_id)
        now_ns = self._traces.now_ns()
        self._traces.add(
            context,
            *(span_id, context.span_id, "connect", self._began_ns, now_ns, attributes, error),
        )


class TracedBatch(PublishBatch):
    """A batch of one publish that is traced: its answer ends the span."""

    __slots__ = ("_trace",)

    def __init__(self, owner: BatchOwner, token: Token, trace: PublishTrace) -> None:
        super().__init__(owner, token, 1)
        self._trace = trace

    def finish(self, index: int = 0) -> None:
        refused = [reason for _, reason in self.refused or () if reason >= 0x80]
        self._trace.finish(f"0x{refused[0]:02x}" if refused else "")
        super().finish(index)
