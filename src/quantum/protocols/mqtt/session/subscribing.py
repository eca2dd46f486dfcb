"""SUBSCRIBE and UNSUBSCRIBE between the wire and the log: what is asked, what is answered."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

from quantum.broker import Subscribe as SubscribeCommand
from quantum.broker import SubscriptionSpec, encode_command
from quantum.broker import Unsubscribe as UnsubscribeCommand
from quantum.protocols.mqtt.codec import (
    PacketId,
    ProtocolVersion,
    ReasonCode,
    RetainHandling,
    Suback,
    SubscribePacket,
    Subscription,
    Unsuback,
    UnsubscribePacket,
    has_too_many_levels,
    parse_shared,
)
from quantum.protocols.mqtt.codec.topics import LEVELS_MAX
from quantum.protocols.mqtt.session.system_topics import Numbers, answers

if TYPE_CHECKING:
    from quantum.tenancy import ClientAccess


FILTERS_AT_ONCE: Final = 256
"""How many filters one command has: it is applied in one go, and nobody is served meanwhile."""
MakeCommand: TypeAlias = Callable[[int, int], bytes]
"""Makes a command from the time and the session's epoch, which the first one may bring about."""
_PartT = TypeVar("_PartT")


def _parts(lines: list[_PartT]) -> list[list[_PartT]]:
    return [lines[at : at + FILTERS_AT_ONCE] for at in range(0, len(lines), FILTERS_AT_ONCE)]


@dataclass(frozen=True, slots=True)
class SubscribePlan:
    """What goes into the log, and the lines that are refused before."""

    packet_id: PacketId
    specs: list[SubscriptionSpec]
    refused: list[ReasonCode | None]  # one for each line; None: the log decides

    def commands(self, client_id: bytes, window: int) -> list[MakeCommand]:
        """Return what makes the commands of it, which go into the log one behind the other."""

        def make(specs: list[SubscriptionSpec]) -> MakeCommand:
            return lambda now_ms, epoch: encode_command(
                SubscribeCommand(now_ms, client_id, epoch, specs, window)
            )

        return [make(part) for part in _parts(self.specs)]

    def answer(self, reasons: list[int]) -> Suback:
        """Make the SUBACK from what the log decided ([MQTT-3.8.4-5])."""
        decided = iter(reasons)
        codes = (
            ReasonCode(next(decided) & 0xFF) if code is None else code for code in self.refused
        )
        return Suback(self.packet_id, tuple(codes))

    def system_answers(
        self, suback: Suback, numbers: Numbers
    ) -> Iterator[tuple[bytes, bytes, tuple[int, ...]]]:
        """Give topic, payload and identifiers of what `$SYS` has for the granted lines."""
        specs = iter(self.specs)
        granted = zip(suback.reason_codes, self.refused, strict=True)
        for spec in (next(specs) for _, refused in granted if refused is None):
            if not spec.share and spec.retain_handling != RetainHandling.DO_NOT_SEND:
                identifiers = (spec.identifier,) if spec.identifier else ()
                for topic, payload in answers(spec.filter, numbers):
                    yield topic, payload, identifiers


def plan_subscribe(
    packet: SubscribePacket,
    version: ProtocolVersion,
    access: ClientAccess | None,
    room: bool,
    *,
    levels_max: int = LEVELS_MAX,
    for_bridge: bool = False,
) -> SubscribePlan:
    """Read a SUBSCRIBE. Raises MalformedPacket for a shared filter that is none.

    `access` is what the client may do, None for everything; `room` says whether its tenant may
    have more subscriptions. A bridge (of MQTT 3.1.1, which has no words for it) gets nothing back
    that it brought, and the retain flag as it was set.
    """
    identifiers = packet.properties.subscription_identifiers
    identifier = identifiers[0] if identifiers else 0
    plan = SubscribePlan(packet.packet_id, [], [])
    for line in packet.subscriptions:
        if has_too_many_levels(line.topic_filter, levels_max):
            plan.refused.append(ReasonCode.TOPIC_FILTER_INVALID)
        elif access is not None and not access.subscribe(line.topic_filter).allowed:
            plan.refused.append(ReasonCode.NOT_AUTHORIZED)
        elif not room:
            plan.refused.append(ReasonCode.QUOTA_EXCEEDED)
        else:
            plan.refused.append(None)
            plan.specs.append(_spec(line, identifier, version, for_bridge=for_bridge))
    return plan


def _spec(
    line: Subscription, identifier: int, version: ProtocolVersion, *, for_bridge: bool
) -> SubscriptionSpec:
    shared = None if version is ProtocolVersion.V31 else parse_shared(line.topic_filter)
    return SubscriptionSpec(
        shared.topic_filter if shared else line.topic_filter,
        line.qos,
        line.no_local or (for_bridge and not shared),
        line.retain_as_published or for_bridge,
        int(line.retain_handling),
        identifier,
        shared.share_name if shared else b"",
    )


@dataclass(frozen=True, slots=True)
class UnsubscribePlan:
    """What goes into the log for an UNSUBSCRIBE."""

    packet_id: PacketId
    filters: list[bytes]

    def commands(self, client_id: bytes) -> list[MakeCommand]:
        """Return what makes the commands of it, which go into the log one behind the other."""

        def make(filters: list[bytes]) -> MakeCommand:
            return lambda now_ms, epoch: encode_command(
                UnsubscribeCommand(now_ms, client_id, epoch, filters)
            )

        return [make(part) for part in _parts(self.filters)]

    def answer(self, reasons: list[int]) -> Unsuback:
        return Unsuback(self.packet_id, tuple(ReasonCode(reason) for reason in reasons))

    def answer_refused(self) -> Unsuback:
        """Answer a client that is too fast; of what UNSUBACK may say this is the nearest."""
        return self.answer([ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR] * len(self.filters))

    def answer_unknown(self) -> Unsuback:
        """Answer a client that never subscribed to anything."""
        return self.answer([ReasonCode.NO_SUBSCRIPTION_EXISTED] * len(self.filters))


def plan_unsubscribe(packet: UnsubscribePacket) -> UnsubscribePlan:
    return UnsubscribePlan(packet.packet_id, list(packet.topic_filters))
