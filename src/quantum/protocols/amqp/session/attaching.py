"""What an attach leads to: a queue, a dynamic node, a coordinator, or a refusal."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from hashlib import blake2b
from typing import Final

from quantum.broker.queues import (
    RECEIVER,
    SENDER,
    CloseTerminus,
    DeleteQueue,
    OpenTerminus,
    QueueReply,
    QueueSpec,
)
from quantum.protocols.amqp.engine import (
    AcceptedOutcome,
    AmqpLink,
    AttachReceived,
    Condition,
    Coordinator,
    DeliveryState,
    ErrorValue,
    LinkRole,
    LinkState,
    SenderSettleMode,
    SourceTerminus,
    TargetTerminus,
)
from quantum.protocols.amqp.engine.composites import AttachFrame
from quantum.protocols.amqp.engine.types import TerminusDurability
from quantum.protocols.amqp.selectors import SelectorError
from quantum.protocols.amqp.session.addresses import LinkAddress, NodeKind, read_address
from quantum.protocols.amqp.session.client_port import AttachingClient
from quantum.protocols.amqp.session.coordinator import CoordinatorLink
from quantum.protocols.amqp.session.dispatch_words import ReceiverMode, ReceiverWish
from quantum.protocols.amqp.session.durable_ends import is_durable, settlements_of, tags_of
from quantum.protocols.amqp.session.filters import read_filters
from quantum.protocols.amqp.session.incoming import DurableSender, IncomingLink
from quantum.protocols.amqp.session.outgoing import OutgoingLink
from quantum.protocols.amqp.session.refusal_table import LinkRefused, refusal_error
from quantum.protocols.amqp.session.stream_attaching import (
    attach_stream_reader,
    attach_stream_writer,
)
from quantum.protocols.amqp.session.topic_attaching import TopicLinks
from quantum.tenancy import Operation, ResourceKind

OUTCOMES: Final = (
    "amqp:accepted:list",
    "amqp:rejected:list",
    "amqp:released:list",
    "amqp:modified:list",
)
DYNAMIC_PREFIX: Final = "dynamic."
_COPY: Final = "copy"
_EPOCH_BYTES: Final = 8


Ready = Callable[[ErrorValue | None], None]
"""Called when a link can go on, or with why it cannot."""


class LinkMaker:
    """Makes the ends of one connection's links."""

    def __init__(self, client: AttachingClient) -> None:
        self._client = client
        self._dynamic: dict[AmqpLink, bytes] = {}
        """Queues that were made for a link, and end with it."""
        self._durable: dict[AmqpLink, tuple[bytes, CloseTerminus]] = {}
        """Queues of links with a durable end, and how that is ended."""
        self._rights: dict[AmqpLink, tuple[Operation, ResourceKind, bytes]] = {}
        self._topics = TopicLinks(client)

    def on_attach(self, event: AttachReceived) -> None:
        link = event.link
        try:
            if isinstance(link.target, Coordinator):
                self._attach_coordinator(link)
            elif link.role is LinkRole.RECEIVER:
                self._attach_incoming(link, event.attach)
            else:
                self._attach_outgoing(link, event.attach)
        except LinkRefused as refused:
            link.refuse(refused.error)

    def judge_again(self) -> None:
        """Detach links that the rules do not allow any more."""
        for link, right in list(self._rights.items()):
            if not self._client.may(*right):
                end = self._client.links.pop(link, None)
                if end is not None:
                    end.closed(failed=False)
                self.closed([link])
                self._detach(link, ErrorValue(Condition.UNAUTHORIZED_ACCESS, "not any more"))

    def closed(self, links: Iterable[AmqpLink], *, is_ended: bool = False) -> None:
        """Let go of what was made for links that are gone; `is_ended`: durable ends as well."""
        for link in links:
            self._rights.pop(link, None)
            self._topics.closed(link, is_ended=is_ended)
            durable = self._durable.pop(link, None)
            if durable is not None and is_ended:
                self._client.home.order(*durable, lambda _reply: None)
            name = self._dynamic.pop(link, None)
            if name is not None:
                self._client.home.order(name, DeleteQueue(name), lambda _reply: None)

    def _attach_coordinator(self, link: AmqpLink) -> None:
        end = CoordinatorLink(link)
        link.attach(target=Coordinator(("amqp:local-transactions",)))
        self._client.links[link] = end
        end.begin()

    # Senders.

    def _attach_incoming(self, link: AmqpLink, asked: AttachFrame) -> None:
        target = link.target
        if not isinstance(target, TargetTerminus):
            raise LinkRefused(Condition.INVALID_FIELD, "a sender names a target")
        if target.dynamic:
            name = self._draw(link)
            told = replace(target, address=str(LinkAddress(NodeKind.QUEUE, name)))
            self._begin_incoming(link, told, name.encode())
        elif not target.address:
            link.attach(target=replace(target, durable=TerminusDurability.NONE))
            end = IncomingLink(self._client, link, None, self._ensure_named)
            self._client.links[link] = end
            end.begin()
        else:
            address = self._address(target.address, target.capabilities)
            if address.kind is NodeKind.STREAM:
                self._allowed(Operation.PRODUCE, ResourceKind.STREAM, address, link)
                attach_stream_writer(self._client, link, target, address)
                return
            if address.kind is NodeKind.TOPIC:
                self._allowed(Operation.PUBLISH, ResourceKind.TOPIC, address, link)
                self._topics.attach_sender(link, target, address)
                return
            if address.is_dead:
                raise LinkRefused(Condition.NOT_ALLOWED, "nothing is sent to dead letters")
            name = self._checked(Operation.PRODUCE, address, link)
            if is_durable(target):
                self._begin_durable_incoming(link, asked, target, name.encode())
            else:
                self._begin_incoming(link, target, name.encode())

    def _begin_incoming(self, link: AmqpLink, target: TargetTerminus, name: bytes) -> None:
        link.attach(target=replace(target, durable=TerminusDurability.NONE))
        end = IncomingLink(self._client, link, name)
        self._client.links[link] = end

        def ready(error: ErrorValue | None) -> None:
            if self._client.links.get(link) is end:
                if error is not None:
                    self._detach(link, error)
                else:
                    end.begin()
                self._client.touch()

        self._ensure(link, name, ready)

    def _begin_durable_incoming(
        self, link: AmqpLink, asked: AttachFrame, target: TargetTerminus, name: bytes
    ) -> None:
        """Let a sender come back: it hears which of its deliveries the log has."""
        terminus = self._terminus(SENDER, link)
        durable = DurableSender(terminus, self._client.draw(_EPOCH_BYTES))
        command = OpenTerminus(terminus, name, durable.epoch, tags_of(asked))

        def opened(reply: QueueReply) -> None:
            known: dict[bytes, DeliveryState | None]
            known = {tag: AcceptedOutcome() for tag in reply.tags}
            link.attach(target=target, unsettled=known if asked.unsettled is not None else None)
            end = IncomingLink(self._client, link, name, None, durable)
            self._client.links[link] = end
            end.begin()

        self._open_durable(link, name, command, opened)

    # Receivers.

    def _attach_outgoing(self, link: AmqpLink, asked: AttachFrame) -> None:
        source = link.source
        if source is None:
            self._topics.look_up(link)
            return
        is_copy = source.distribution_mode == _COPY
        if source.dynamic:
            address = LinkAddress(NodeKind.QUEUE, self._draw(link))
            source = replace(source, address=str(address))
        else:
            if not source.address:
                raise LinkRefused(Condition.INVALID_FIELD, "a receiver names a source")
            address = self._address(source.address, source.capabilities)
            if address.kind is NodeKind.STREAM:
                self._allowed(Operation.CONSUME, ResourceKind.STREAM, address, link)
                attach_stream_reader(self._client, link, source, address)
                return
            if address.kind is NodeKind.TOPIC:
                self._allowed(Operation.SUBSCRIBE, ResourceKind.TOPIC, address, link)
                self._topics.attach_receiver(link, source, address)
                return
            self._checked(Operation.CONSUME, address, link)
        mode = ReceiverMode((1 if is_copy else 0) | (2 if address.is_dead else 0))
        is_settled = link.snd_settle_mode is SenderSettleMode.SETTLED
        if is_durable(source) and mode is ReceiverMode.MOVE and not is_settled:
            self._begin_durable_outgoing(link, asked, source, address.name.encode())
        else:
            self._begin_outgoing(link, source, address.name.encode(), mode)

    def _begin_outgoing(
        self, link: AmqpLink, source: SourceTerminus, name: bytes, mode: ReceiverMode
    ) -> None:
        told, wish = self._wish(source, name, mode)
        link.attach(source=replace(told, durable=TerminusDurability.NONE))
        end = OutgoingLink(self._client, link, wish)
        self._client.links[link] = end

        def ready(error: ErrorValue | None) -> None:
            if self._client.links.get(link) is end:
                if error is not None:
                    self._detach(link, error)
                else:
                    end.begin()
                self._client.touch()

        self._ensure(link, name, ready)

    def _wish(
        self, source: SourceTerminus, name: bytes, mode: ReceiverMode, terminus: bytes = b""
    ) -> tuple[SourceTerminus, ReceiverWish]:
        """Return the source as it is in force, and what its queue's leader is asked for."""
        try:
            filters = read_filters(source.filter)
        except SelectorError as error:
            raise LinkRefused(Condition.INVALID_FIELD, f"no selector: {error}") from None
        told = replace(
            source,
            filter=filters.told,
            outcomes=OUTCOMES,
            distribution_mode=_COPY if mode.is_copy else "move",
        )
        not_from = self._client.mark if filters.is_no_local else b""
        return told, ReceiverWish(name, mode, filters.selector, not_from, terminus)

    def _begin_durable_outgoing(
        self, link: AmqpLink, asked: AttachFrame, source: SourceTerminus, name: bytes
    ) -> None:
        """Let a receiver come back: what it has decided counts before anything else is given.

        What it holds and has not decided is given again, as a delivery that failed; so our
        unsettled map is empty, and there is nothing to resume (§2.6.13).
        """
        terminus = self._terminus(RECEIVER, link)
        told, wish = self._wish(source, name, ReceiverMode.MOVE, terminus)
        said = settlements_of(asked)
        command = OpenTerminus(terminus, name, self._client.draw(_EPOCH_BYTES), [], said)

        def opened(_reply: QueueReply) -> None:
            link.attach(source=told, unsettled={} if asked.unsettled is not None else None)
            end = OutgoingLink(self._client, link, wish)
            self._client.links[link] = end
            end.begin()

        self._open_durable(link, name, command, opened)

    # Both.

    def _terminus(self, kind: bytes, link: AmqpLink) -> bytes:
        """Name the durable end of a link: nobody else's has the same (§2.6.1)."""
        parts = (self._client.identity or "", self._client.container, link.name)
        words = b"".join(len(each.encode()).to_bytes(4, "big") + each.encode() for each in parts)
        return kind + blake2b(words, digest_size=16).digest()

    def _open_durable(
        self,
        link: AmqpLink,
        name: bytes,
        command: OpenTerminus,
        opened: Callable[[QueueReply], None],
    ) -> None:
        """Open a durable end at its queue's leader; the attach is answered when the log has it."""
        client = self._client

        def answer(reply: QueueReply | None) -> None:
            if link.state is not LinkState.ATTACH_RECEIVED or not client.is_live:
                return
            if reply is None:
                link.refuse(ErrorValue(Condition.DETACH_FORCED, "no leader answered in time"))
            elif reply.refusal:
                link.refuse(refusal_error(reply.refusal))
            else:
                self._durable[link] = (name, CloseTerminus(command.link))
                opened(reply)
            client.touch()

        def ready(error: ErrorValue | None) -> None:
            if error is None:
                client.home.order(name, command, answer)
            elif link.state is LinkState.ATTACH_RECEIVED and client.is_live:
                link.refuse(error)
                client.touch()

        self._ensure(link, name, ready)

    def _detach(self, link: AmqpLink, error: ErrorValue) -> None:
        self._client.links.pop(link, None)
        if link.state is LinkState.ATTACH_RECEIVED:  # its answer waited for the log
            link.refuse(error)
        elif link.state is LinkState.ATTACHED:
            link.detach(error=error)
        self._client.touch()

    def _address(self, text: str, capabilities: tuple[str, ...]) -> LinkAddress:
        address = read_address(text, capabilities)
        if address is None:
            raise LinkRefused(Condition.NOT_FOUND, "no address that is served here")
        return address

    def _checked(self, operation: Operation, address: LinkAddress, link: AmqpLink) -> str:
        if address.kind is not NodeKind.QUEUE:
            why = f"this is not served by {address.kind.value}s yet"
            raise LinkRefused(Condition.NOT_IMPLEMENTED, why)
        self._allowed(operation, ResourceKind.QUEUE, address, link)
        if not self._client.home.knows_queues(address.name.encode()):
            why = "not every node knows queues yet: upgrade them first"
            raise LinkRefused(Condition.NOT_IMPLEMENTED, why)
        return address.name

    def _allowed(
        self, operation: Operation, kind: ResourceKind, address: LinkAddress, link: AmqpLink
    ) -> None:
        """Note what a link needs, so that it ends when the rules do not give it any more."""
        right = (operation, kind, address.name.encode())
        if not self._client.may(*right):
            raise LinkRefused(Condition.UNAUTHORIZED_ACCESS, "the tenant's rules do not allow it")
        self._rights[link] = right

    def _draw(self, link: AmqpLink) -> str:
        """Name a queue for a link alone."""
        if not self._client.may(Operation.MANAGE, ResourceKind.QUEUE, DYNAMIC_PREFIX.encode()):
            raise LinkRefused(Condition.UNAUTHORIZED_ACCESS, "the tenant's rules do not allow it")
        name = DYNAMIC_PREFIX + self._client.draw(12).hex()
        self._dynamic[link] = name.encode()
        return name

    def _ensure_named(self, name: bytes, ready: Ready) -> None:
        """Make the queue that a message of an anonymous sender names."""
        self._ensure(None, name, ready)

    def _ensure(self, link: AmqpLink | None, name: bytes, ready: Ready) -> None:
        """Make the queue where there is none and the client may; then the link can go on."""
        home = self._client.home
        if home.is_known(name):
            ready(None)
            return
        is_dynamic = link in self._dynamic
        if not is_dynamic and not self._client.may(Operation.MANAGE, ResourceKind.QUEUE, name):
            ready(ErrorValue(Condition.NOT_FOUND, "there is no queue of this name"))
            return

        def defined(reply: QueueReply | None) -> None:
            if reply is None:
                ready(ErrorValue(Condition.DETACH_FORCED, "no leader answered in time"))
            else:
                ready(refusal_error(reply.refusal) if reply.refusal else None)

        home.define(QueueSpec(name, is_dynamic=is_dynamic), defined)
