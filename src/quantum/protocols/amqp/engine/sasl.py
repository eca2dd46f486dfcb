"""The SASL layer (§5.3): mechanisms out, init and responses in as events, an outcome out.

Which mechanism means what is the driver's: this keeps the order, the sizes and the number of steps.
"""

from __future__ import annotations

from quantum.protocols.amqp.engine import hot
from quantum.protocols.amqp.engine.composites import (
    Composite,
    SaslChallenge,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    SaslResponse,
)
from quantum.protocols.amqp.engine.errors import (
    AmqpMisuse,
    AmqpPeerFault,
    Condition,
    FramingFault,
    MalformedData,
    ProtocolFault,
)
from quantum.protocols.amqp.engine.events import SaslInitReceived, SaslResponseReceived
from quantum.protocols.amqp.engine.fields import decode_composite
from quantum.protocols.amqp.engine.framing import SASL_FRAME, SASL_HEADER, encode_frame
from quantum.protocols.amqp.engine.settings import FRAME_BYTES_MIN
from quantum.protocols.amqp.engine.types import SaslCode
from quantum.protocols.amqp.engine.wire import FrameWriter


class AmqpSaslExchange:
    """One exchange, from the mechanisms to the outcome."""

    __slots__ = ("_is_begun", "_steps", "_wire", "is_drivers_turn")

    def __init__(self, wire: FrameWriter) -> None:
        self._wire = wire
        self._is_begun = False
        self._steps = 0
        self.is_drivers_turn = False
        """Whether an answer is awaited from the driver; what the peer pipelined waits for it."""
        wire.out.append(SASL_HEADER)
        self._send(SaslMechanisms(wire.settings.mechanisms))

    def on_frame(self, row: hot.Row, buffer: bytes) -> AmqpPeerFault | None:
        """Take the peer's frame; return the fault that ends the exchange, an outcome queued."""
        if row[0] != hot.SLOW or row[2] != SASL_FRAME:
            raise FramingFault("a frame that SASL does not have", type=row[2])
        if row[10] == row[11]:
            raise FramingFault("an empty frame in SASL")
        body, end = decode_composite(buffer, row[10], row[11], self._wire.settings.limits)
        if end != row[11]:
            raise MalformedData("bytes behind a SASL frame")
        if isinstance(body, SaslInit) and not self._is_begun:
            return self._on_init(body)
        if isinstance(body, SaslResponse) and self._is_begun:
            self.is_drivers_turn = True
            self._wire.events.append(SaslResponseReceived(body.response))
            return None
        raise ProtocolFault(Condition.ILLEGAL_STATE, "a SASL frame out of its turn")

    def _on_init(self, body: SaslInit) -> AmqpPeerFault | None:
        self._is_begun = True
        self.is_drivers_turn = True
        if body.mechanism not in self._wire.settings.mechanisms:
            self.outcome(SaslCode.AUTH, None)
            return ProtocolFault(
                Condition.UNAUTHORIZED_ACCESS, "a SASL mechanism that is not offered"
            )
        self._wire.events.append(
            SaslInitReceived(body.mechanism, body.initial_response, body.hostname)
        )
        return None

    def challenge(self, challenge: bytes) -> AmqpPeerFault | None:
        self._take_turn()
        self._steps += 1
        if self._steps > self._wire.settings.sasl_steps_max:
            self._send(SaslOutcome(SaslCode.AUTH))
            return ProtocolFault(Condition.UNAUTHORIZED_ACCESS, "a SASL exchange without an end")
        self._send(SaslChallenge(challenge))
        return None

    def outcome(self, code: SaslCode, additional_data: bytes | None) -> None:
        self._take_turn()
        self._send(SaslOutcome(code, additional_data))

    def _take_turn(self) -> None:
        if not self.is_drivers_turn:
            raise AmqpMisuse("it is the peer's turn in the SASL exchange")
        self.is_drivers_turn = False

    def _send(self, body: Composite) -> None:
        frame = encode_frame(0, body, SASL_FRAME)
        if len(frame) > FRAME_BYTES_MIN:
            raise AmqpMisuse("a SASL frame has 512 bytes at most", size=len(frame))
        self._wire.out.append(frame)
