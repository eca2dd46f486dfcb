"""What an attach to a topic leads to: a sender, a subscription, or a refusal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from hashlib import blake2b
from typing import Final

from quantum.protocols.amqp.engine import (
    AmqpLink,
    Condition,
    DeliveryReceived,
    DeliveryState,
    OutgoingDelivery,
    SourceTerminus,
    TargetTerminus,
)
from quantum.protocols.amqp.engine.types import TerminusDurability
from quantum.protocols.amqp.selectors import SelectorError, parse_selector
from quantum.protocols.amqp.session.addresses import LinkAddress, NodeKind
from quantum.protocols.amqp.session.client_port import AttachingClient
from quantum.protocols.amqp.session.durable_ends import is_durable
from quantum.protocols.amqp.session.filters import read_filters
from quantum.protocols.amqp.session.refusal_table import LinkRefused
from quantum.protocols.amqp.session.topic_incoming import TopicIncomingLink
from quantum.protocols.amqp.session.topic_outgoing import TopicOutgoingLink
from quantum.protocols.amqp.session.topic_port import (
    TopicPerson,
    TopicPort,
    TopicPublisher,
    TopicWish,
)
from quantum.topics import TopicError, check_topic_filter, check_topic_name

SHARED: Final = "shared"
GLOBAL: Final = "global"
KEPT_SECONDS: Final = 604_800
"""A durable subscription that is not heard of for so long is forgotten, as ends at queues are."""
_OUTCOMES: Final = tuple(
    f"amqp:{each}:list" for each in ("accepted", "rejected", "released", "modified")
)
_WILD: Final = ("+", "#")
_NAME_END: Final = "|"
"""Receivers of one shared subscription are told apart by what follows it in their links' names."""
_SHARE_PREFIX: Final = "$share/"


class TopicLinks:
    """The links to topics of one connection."""

    def __init__(self, client: AttachingClient) -> None:
        self._client = client
        self._publisher: TopicPublisher | None = None
        """The way of all its senders; None: none has sent anything."""
        self._senders: set[AmqpLink] = set()
        self._leaving: dict[AmqpLink, Callable[[bool], None]] = {}
        """How receivers' sessions are left; told whether their ends are closed for good."""

    def attach_sender(self, link: AmqpLink, target: TargetTerminus, address: LinkAddress) -> None:
        """Let a client publish to a topic that it may publish to. Raises LinkRefused."""
        self._port()
        name = address.name
        _check(check_topic_name, name)
        if name.startswith("$"):
            raise LinkRefused(Condition.NOT_ALLOWED, "nothing is sent to the broker's own topics")
        link.attach(target=replace(target, durable=TerminusDurability.NONE))
        end = TopicIncomingLink(self._client, link, name.encode(), self._way)
        self._client.links[link] = end
        self._senders.add(link)
        end.begin()

    def _way(self) -> TopicPublisher:
        if self._publisher is None:
            self._publisher = self._port().publisher(self._person())
        return self._publisher

    def attach_receiver(self, link: AmqpLink, source: SourceTerminus, address: LinkAddress) -> None:
        """Let a client have what is published to a filter; answered when the log has that.

        Raises LinkRefused.
        """
        port, client = self._port(), self._client
        _check(check_topic_filter, address.name)
        if address.name.startswith(_SHARE_PREFIX):
            why = "a shared subscription is asked for by the capability `shared`"
            raise LinkRefused(Condition.INVALID_FIELD, why)
        try:
            filters = read_filters(source.filter)
        except SelectorError as error:
            raise LinkRefused(Condition.INVALID_FIELD, f"no selector: {error}") from None
        wish = self._wish(link, source, address)
        told = replace(
            source,
            filter=filters.told,
            outcomes=_OUTCOMES,
            distribution_mode="move" if wish.share else "copy",
            durable=source.durable if wish.keep_seconds else TerminusDurability.NONE,
            capabilities=tuple(
                each for each in source.capabilities if each in ("topic", SHARED, GLOBAL)
            ),
        )
        end = TopicOutgoingLink(
            client,
            link,
            parse_selector(filters.selector) if filters.selector else None,
            client.mark if filters.is_no_local else b"",
            lambda: link.attach(source=told),
        )
        client.links[link] = end
        end.subscription = subscription = port.subscribe(self._person(), wish, end)
        keeps = wish.keep_seconds > 0
        self._leaving[link] = lambda is_ended: subscription.close(ends=is_ended or not keeps)

    def look_up(self, link: AmqpLink) -> None:
        """Tell a client of its durable subscription by the link's name, so that it can be ended.

        Raises LinkRefused where there is none.
        """
        port, person, session = self._port(), self._person(), self._session_of(link)
        found = port.filters_of(person, session)
        if not found:
            raise LinkRefused(Condition.NOT_FOUND, "there is no subscription of this name")
        name = found[0].decode(errors="replace")
        is_shared = name.startswith(_SHARE_PREFIX)
        if is_shared:
            name = name.split("/", 2)[2]
        source = SourceTerminus(
            address=str(LinkAddress(NodeKind.TOPIC, name)),
            durable=TerminusDurability.UNSETTLED_STATE,
            expiry_policy="never",
            distribution_mode="copy",
            capabilities=("topic", SHARED) if is_shared else ("topic",),
        )
        link.attach(source=source)
        self._client.links[link] = _LookedUp()
        self._leaving[link] = lambda is_ended: port.forget(person, session) if is_ended else None

    def closed(self, link: AmqpLink, *, is_ended: bool) -> None:
        """Let go of what was made for a link that is gone."""
        leave = self._leaving.pop(link, None)
        if leave is not None:
            leave(is_ended)
        self._senders.discard(link)
        if not self._senders and self._publisher is not None:
            self._publisher.close()
            self._publisher = None

    def _wish(self, link: AmqpLink, source: SourceTerminus, address: LinkAddress) -> TopicWish:
        keep_seconds = KEPT_SECONDS if is_durable(source) else min(source.timeout, KEPT_SECONDS)
        share = b""
        if SHARED in source.capabilities:
            share = self._share_of(link, is_global=GLOBAL in source.capabilities)
        return TopicWish(address.name.encode(), self._session_of(link), share, keep_seconds)

    def _share_of(self, link: AmqpLink, *, is_global: bool) -> bytes:
        """Name the group of a shared subscription: a container's own, or everybody's."""
        name = link.name.partition(_NAME_END)[0]
        whole = name if is_global else f"{self._client.container}:{name}"
        if not name or not whole.isprintable() or any(each in whole for each in ("/", *_WILD)):
            whole = blake2b(whole.encode(errors="replace"), digest_size=16).hexdigest()
        return whole.encode()

    def _session_of(self, link: AmqpLink) -> str:
        """Name the session of a receiver: who comes back under its name has what waited."""
        parts = (self._client.identity or "", self._client.container, link.name)
        words = b"".join(len(each.encode()).to_bytes(4, "big") + each.encode() for each in parts)
        return blake2b(words, digest_size=16).hexdigest()

    def _person(self) -> TopicPerson:
        client, peer = self._client, self._client.peer
        assert peer is not None, "who attaches is connected"
        named = peer.named_tenant or (None if client.identity is None else client.home.name)
        known = replace(peer, identity=client.identity, named_tenant=named)
        return TopicPerson(known, client.container)

    def _port(self) -> TopicPort:
        port = self._client.home.topics()
        if port is None:
            raise LinkRefused(Condition.NOT_IMPLEMENTED, "this node serves no topics")
        return port


def _check(check: Callable[[bytes], None], name: str) -> None:
    """Raise LinkRefused for what is no name of a topic, or no filter."""
    try:
        check(name.encode())
    except (TopicError, UnicodeEncodeError) as error:
        raise LinkRefused(Condition.INVALID_FIELD, f"{error}") from None
    if not name.isprintable():
        raise LinkRefused(Condition.INVALID_FIELD, "a topic has no control characters")


class _LookedUp:
    """Our end of a link that only asks what there is (`LinkEnd`)."""

    def on_delivery(self, event: DeliveryReceived) -> None:
        """Nothing is received on this link."""

    def on_disposition(
        self, deliveries: list[OutgoingDelivery], state: DeliveryState | None, *, settled: bool
    ) -> None:
        """Nothing is sent on this link."""

    def on_flow(self) -> None:
        """Nothing is sent on this link."""

    def pump(self) -> None:
        """Nothing is sent on this link."""

    def on_tick(self) -> None:
        """Nothing is due."""

    def closed(self, *, failed: bool) -> None:
        """Nothing is held."""
