"""One request of a connection: where it came from, and its one answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from quantum.broker.streams import StreamRefusal
from quantum.edge.ports import ConnectionPeer
from quantum.protocols.kafka.codec import (
    ApiKey,
    Facts,
    KafkaCode,
    KafkaError,
    RequestHead,
    answer,
)
from quantum.protocols.kafka.requests import code_of
from quantum.protocols.kafka.session.kafka_node import KafkaNode
from quantum.protocols.kafka.session.kafka_tenant import TenantKafka
from quantum.tenancy import Operation, ResourceKind

Piece = bytes | memoryview
_WORDS_MAX = 128  # of an answer's error_message


class RequestOwner(Protocol):
    """A connection, as those see it who answer its requests."""

    node: KafkaNode
    tenant: TenantKafka | None
    peer: ConnectionPeer | None
    principal: str | None
    client_id: str

    @property
    def needs_list(self) -> bool: ...
    def answered(self) -> None: ...
    def hold_behind(self, request: KafkaRequest) -> None: ...
    def begun(self, request: KafkaRequest) -> None: ...
    def fail(self, fault: KafkaError) -> None: ...
    def close_soon(self) -> None: ...
    def on_sasl_handshake(self, request: KafkaRequest) -> None: ...
    def on_sasl_message(self, request: KafkaRequest) -> None: ...


class KafkaRequest:
    """Answered exactly once, at any later time; answers leave in the order of the requests."""

    __slots__ = ("body", "connection", "data", "head", "pieces", "size", "throttle_ms")

    def __init__(self, connection: RequestOwner, head: RequestHead, data: bytes) -> None:
        self.connection = connection
        self.head = head
        self.data = data
        self.size = len(data)
        self.body: Any = None
        """The request as its schema says; None for those that are read as bytes."""
        self.pieces: Sequence[Piece] | None = None
        """What is written; None until it is answered, empty where nothing is said."""
        self.throttle_ms = 0

    @property
    def node(self) -> KafkaNode:
        return self.connection.node

    @property
    def tenant(self) -> TenantKafka:
        assert self.connection.tenant is not None
        return self.connection.tenant

    @property
    def peer(self) -> ConnectionPeer | None:
        """Who asks; None where the connection has gone meanwhile."""
        return self.connection.peer

    @property
    def version(self) -> int:
        return self.head.api_version

    @property
    def api_key(self) -> ApiKey:
        return ApiKey(self.head.api_key)

    @property
    def is_over(self) -> bool:
        """Whether nobody waits for the answer any more."""
        return self.pieces is not None or self.connection.peer is None

    @property
    def now_ms(self) -> int:
        """The time of day: what is stamped into commands."""
        return self.connection.node.host.now_ms()

    def may(self, operation: Operation, kind: ResourceKind, name: str) -> bool:
        """Say whether the rules of the tenant let this client do something."""
        connection = self.connection
        decision = self.tenant.tenant.guard.may(
            connection.principal,
            operation,
            kind,
            name.encode(),
            client_id=connection.client_id.encode(),
            needs_list=connection.needs_list,
        )
        return decision.allowed

    def code(self, refusal: StreamRefusal | None) -> KafkaCode:
        """Return what this client is told for a refusal; `none` where nothing was refused."""
        return code_of(refusal, self.head.api_key, self.head.api_version)

    def answer(self, facts: Facts) -> None:
        """Answer by facts that suit all versions; what a version does not have is left out."""
        if not self.is_over:
            self.finish((answer(self.head, {"throttle_time": self.throttle_ms, **facts}),))

    def finish(self, pieces: Sequence[Piece]) -> None:
        """Answer by bytes; none at all is for who wants no answer."""
        if self.pieces is None:
            self.pieces = pieces
            self.body, self.data = None, b""  # an answer may wait: what asked for it need not
            self.connection.answered()
