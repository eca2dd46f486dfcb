"""The connection: headers, SASL, open and close, channels, and the clock that others read (§2.4).

Two halves, what was sent and what was received, make every state of §2.4.6; nothing else is
stored. `next_event` takes one frame at a time, so what was valid before a bad frame is told
before the fault is.
"""

from __future__ import annotations

from quantum.protocols.amqp.engine import hot
from quantum.protocols.amqp.engine.composites import (
    PERFORMATIVES,
    AttachFrame,
    BeginFrame,
    CloseFrame,
    DetachFrame,
    DispositionFrame,
    EndFrame,
    ErrorValue,
    FlowFrame,
    OpenFrame,
    TransferFrame,
)
from quantum.protocols.amqp.engine.ends import AmqpSession
from quantum.protocols.amqp.engine.errors import (
    AmqpMisuse,
    AmqpPeerFault,
    Condition,
    FaultScope,
    FramingFault,
    MalformedData,
    ProtocolFault,
)
from quantum.protocols.amqp.engine.events import (
    AmqpConnectionFailed,
    BeginReceived,
    CloseReceived,
    Event,
    OpenReceived,
)
from quantum.protocols.amqp.engine.fields import decode_composite, decode_state
from quantum.protocols.amqp.engine.framing import (
    AMQP_FRAME,
    AMQP_HEADER,
    HEARTBEAT,
    SASL_HEADER,
    FrameReader,
    encode_frame,
)
from quantum.protocols.amqp.engine.idle import IdleClock
from quantum.protocols.amqp.engine.phases import (
    STATES,
    AmqpPhase,
    ConnectionState,
    Half,
    SessionState,
)
from quantum.protocols.amqp.engine.receiving import row_of
from quantum.protocols.amqp.engine.sasl import AmqpSaslExchange
from quantum.protocols.amqp.engine.session import EngineSession
from quantum.protocols.amqp.engine.settings import FRAME_BYTES_MIN, EngineSettings
from quantum.protocols.amqp.engine.types import SaslCode
from quantum.protocols.amqp.engine.wire import FrameWriter, error_of


class AmqpConnection:
    """The server's side of one AMQP 1.0 connection, without a socket and without a clock."""

    def __init__(self, settings: EngineSettings) -> None:
        self.settings = settings
        self._wire = FrameWriter(settings)
        self._reader = FrameReader()
        self._phase = AmqpPhase.HEADER
        self._sent = Half.NOTHING
        self._received = Half.NOTHING
        self._is_discarding = False
        self._sasl: AmqpSaslExchange | None = None
        self._sessions: dict[int, EngineSession] = {}
        self._ending: list[EngineSession] = []
        """Sessions that the peer ended and we did not: their channel is still ours."""
        self._idle = IdleClock(settings.idle_time_out_ms)
        self.remote_open: OpenFrame | None = None

    @property
    def state(self) -> ConnectionState:
        """The state of §2.4.6 that the two halves make."""
        if self._is_discarding and self._received is not Half.CLOSE:
            return ConnectionState.DISCARDING
        return STATES[self._sent, self._received]

    @property
    def is_over(self) -> bool:
        """Whether nothing more will come of it: send what is left, then close the transport."""
        return self._phase is AmqpPhase.OVER

    @property
    def held_bytes(self) -> int:
        """What was received and not pulled yet."""
        return self._reader.held_bytes

    @property
    def sessions(self) -> list[AmqpSession]:
        return list(self._sessions.values())

    # Bytes in, events out, bytes out.

    def receive_data(self, data: bytes) -> None:
        """Take bytes from the transport; nothing is judged before it is pulled."""
        self._idle.on_heard()
        if self._phase is not AmqpPhase.OVER:
            self._reader.feed(data)

    def receive_eof(self) -> None:
        """The transport ended: what was not closed in order has failed."""
        if self._phase is not AmqpPhase.OVER:
            self._phase = AmqpPhase.OVER
            if self.state is not ConnectionState.END:
                fault = FramingFault("the transport ended without a close")
                self._wire.events.append(AmqpConnectionFailed(fault))

    def next_event(self) -> Event | None:
        """Pull the next event, or None where more bytes or an answer of the driver are needed."""
        events = self._wire.events
        while not events:
            try:
                if not self._step():
                    return None
            except AmqpPeerFault as fault:
                self._fail(fault)
        return events.popleft()

    def data_to_send(self) -> bytes:
        """Take the bytes that are to be sent, in one piece."""
        out = self._wire.out
        if not out:
            return b""
        data = b"".join(out)
        out.clear()
        if data:
            self._idle.on_spoke()
        return data

    # Time.

    def next_deadline(self, now: float) -> float | None:
        """Say when `on_time` is to be called next, in the driver's seconds; None for never."""
        if self._phase is not AmqpPhase.AMQP:
            return None
        return self._idle.next_deadline(now)

    def on_time(self, now: float) -> None:
        """Send a heartbeat if one is due; give up a peer that was silent for too long (§2.4.5)."""
        if self._phase is not AmqpPhase.AMQP:
            return
        if self._idle.is_peer_gone(now):
            fault = ProtocolFault(
                Condition.RESOURCE_LIMIT_EXCEEDED, "the peer was silent for too long"
            )
            if self._sent is not Half.CLOSE:
                self.close(error_of(fault))
            self._end(fault)
        elif self._idle.must_speak(now) and self._wire.is_writable and not self._wire.out:
            self._wire.out.append(HEARTBEAT)

    # What the driver does.

    def sasl_challenge(self, challenge: bytes) -> None:
        """Ask the peer for a response; more steps than are allowed end the exchange."""
        fault = self._exchange().challenge(challenge)
        if fault is not None:
            self._end(fault)

    def sasl_outcome(self, code: SaslCode, additional_data: bytes | None = None) -> None:
        """End the exchange: OK goes on to AMQP's header, all else ends the connection."""
        self._exchange().outcome(code, additional_data)
        self._phase = AmqpPhase.HEADER if code is SaslCode.OK else AmqpPhase.OVER

    def open(
        self,
        *,
        hostname: str | None = None,
        offered_capabilities: tuple[str, ...] = (),
        properties: dict[object, object] | None = None,
    ) -> None:
        """Open our side; before the peer's header too, where no SASL is offered (pipelined)."""
        if self._sent in (Half.OPEN, Half.CLOSE):
            raise AmqpMisuse("a connection is opened once", state=self.state.value)
        if self._sent is Half.NOTHING:
            if self.settings.mechanisms:
                raise AmqpMisuse("the peer may want SASL first: wait for OpenReceived")
            self._wire.out.append(AMQP_HEADER)
        settings = self.settings
        body = OpenFrame(
            settings.container_id,
            hostname,
            settings.frame_bytes_max,
            settings.channel_max,
            settings.idle_time_out_ms,
            offered_capabilities=offered_capabilities,
            properties=properties,
        )
        frame = encode_frame(0, body)
        if len(frame) > FRAME_BYTES_MIN and self.remote_open is None:
            raise AmqpMisuse("an open has 512 bytes at most", size=len(frame))
        self._wire.is_writable = True
        self._wire.out.append(frame)
        self._sent = Half.OPEN

    def close(self, error: ErrorValue | None = None) -> None:
        """Close our side, or answer the peer's close; nothing is written behind it."""
        if self._sent is Half.CLOSE:
            raise AmqpMisuse("a connection is closed once", state=self.state.value)
        if self._sent is not Half.OPEN:
            self.open()
        self._wire.send(0, CloseFrame(error))
        self._wire.is_writable = False
        self._sent = Half.CLOSE
        self._is_discarding = error is not None
        if self._received is Half.CLOSE:
            self._phase = AmqpPhase.OVER

    def _exchange(self) -> AmqpSaslExchange:
        if self._phase is not AmqpPhase.SASL or self._sasl is None:
            raise AmqpMisuse("no SASL exchange is under way")
        return self._sasl

    # Inside: one step, one frame.

    def _step(self) -> bool:
        """Take a header or a frame; False where there is none to take now."""
        if self._phase is AmqpPhase.AMQP:
            if self._received is Half.OPEN and self._sent is Half.HEADER:
                return False  # The driver owes an open or a close; nothing can be said before.
            row = self._reader.take_row(self.settings.frame_bytes_max)
            if row is None:
                return False
            self._on_row(row)
            return True
        if self._phase is AmqpPhase.SASL:
            return self._step_sasl()
        if self._phase is AmqpPhase.HEADER:
            header = self._reader.take_header()
            if header is None:
                return False
            self._on_header(header)
            return True
        return False

    def _step_sasl(self) -> bool:
        exchange = self._exchange()
        if exchange.is_drivers_turn:
            return False
        row = self._reader.take_row(self.settings.sasl_frame_bytes_max, 1)
        if row is None:
            return False
        fault = exchange.on_frame(row, self._reader.buffer)
        if fault is not None:
            self._end(fault)
        return True

    def _on_header(self, header: bytes) -> None:
        settings = self.settings
        is_proved = self._sasl is not None
        if header == AMQP_HEADER and (is_proved or not self._is_sasl_required):
            self._received = Half.HEADER
            if self._sent is Half.NOTHING:
                self._wire.out.append(AMQP_HEADER)
                self._sent = Half.HEADER
            self._phase = AmqpPhase.AMQP
            return
        if header == SASL_HEADER and settings.mechanisms and not is_proved:
            self._sasl = AmqpSaslExchange(self._wire)
            self._phase = AmqpPhase.SASL
            return
        if self._sent is Half.NOTHING:
            needs_sasl = self._is_sasl_required and not is_proved
            self._wire.out.append(SASL_HEADER if needs_sasl else AMQP_HEADER)
        self._end(FramingFault("a protocol header that is not served"))

    @property
    def _is_sasl_required(self) -> bool:
        return bool(self.settings.mechanisms) and self.settings.sasl_required

    def _on_row(self, row: hot.Row) -> None:
        if self._received is Half.CLOSE:
            return  # Nothing may follow a close; what does is nobody's.
        if row[0] == hot.SLOW:
            self._on_slow_row(row)
            return
        session = self._sessions.get(row[1])
        if self._is_live and session is not None:
            if session.state is SessionState.MAPPED or not session.is_deaf:
                self._on_hot_row(session, row)
        elif not self._is_closing:
            self._check_channel(row[1])
            raise ProtocolFault(Condition.ILLEGAL_STATE, "a channel has no session", channel=row[1])

    def _on_hot_row(self, session: EngineSession, row: hot.Row) -> None:
        buffer = self._reader.buffer
        try:
            if row[0] == hot.TRANSFER:
                session.on_transfer(row, buffer)
                return
            state = None
            if row[8] >= 0:
                state = decode_state(buffer[row[8] : row[9]], self.settings.limits)
            session.on_disposition(row[2], row[3], row[4], bool(row[7] & hot.SETTLED), state)
        except AmqpPeerFault as fault:
            self._contain(session, fault)

    def _contain(self, session: EngineSession, fault: AmqpPeerFault) -> None:
        if fault.scope is FaultScope.CONNECTION:
            raise fault
        session.fail(fault)

    def _on_slow_row(self, row: hot.Row) -> None:
        channel, frame_type, start, stop = row[1], row[2], row[10], row[11]
        if frame_type != AMQP_FRAME:
            raise FramingFault("a frame's header or its type cannot be", type=frame_type)
        self._check_channel(channel)
        if start == stop:
            return  # A heartbeat: it was heard, and that is all.
        buffer = self._reader.buffer
        body, end = decode_composite(buffer, start, stop, self.settings.limits)
        if not isinstance(body, PERFORMATIVES):
            raise ProtocolFault(Condition.NOT_IMPLEMENTED, "a frame is no performative")
        if end != stop and not isinstance(body, TransferFrame):
            raise MalformedData("bytes behind a performative that has no payload")
        self._on_performative(channel, body, buffer[end:stop])

    def _check_channel(self, channel: int) -> None:
        if channel > self.settings.channel_max or (self._received is Half.HEADER and channel):
            raise FramingFault("a channel is out of range", channel=channel)

    def _on_performative(self, channel: int, body: object, payload: bytes) -> None:
        if isinstance(body, CloseFrame) and self._received is Half.OPEN:
            self._on_close(body)
        elif self._is_closing:
            self._on_frame_while_closing(body)
        elif isinstance(body, OpenFrame) and self._received is Half.HEADER:
            self._on_open(body)
        elif self._received is not Half.OPEN or isinstance(body, OpenFrame):
            raise ProtocolFault(Condition.ILLEGAL_STATE, "a frame that this state does not have")
        elif isinstance(body, BeginFrame):
            self._on_begin(channel, body)
        else:
            self._on_session_frame(channel, body, payload)

    @property
    def _is_closing(self) -> bool:
        return self._sent is Half.CLOSE

    @property
    def _is_live(self) -> bool:
        return self._sent is Half.OPEN and self._received is Half.OPEN

    def _on_frame_while_closing(self, body: object) -> None:
        """Discard whatever still comes; an open is noted, since only then a close can come."""
        if isinstance(body, OpenFrame) and self._received is Half.HEADER:
            self._received = Half.OPEN

    def _on_open(self, body: OpenFrame) -> None:
        if body.max_frame_size < FRAME_BYTES_MIN:
            raise ProtocolFault(Condition.INVALID_FIELD, "max-frame-size is below 512")
        self._received = Half.OPEN
        self.remote_open = body
        self._wire.peer_frame_bytes_max = body.max_frame_size
        self._wire.peer_channel_max = body.channel_max
        self._idle.peer_time_out_ms = body.idle_time_out
        self._wire.events.append(OpenReceived(body))

    def _on_close(self, body: CloseFrame) -> None:
        self._received = Half.CLOSE
        for session in self._sessions.values():
            session.drop()
        self._sessions.clear()
        if self._sent is Half.CLOSE:
            self._phase = AmqpPhase.OVER
        self._wire.events.append(CloseReceived(body.error))

    def _on_begin(self, channel: int, begin: BeginFrame) -> None:
        if channel in self._sessions:
            raise ProtocolFault(Condition.ILLEGAL_STATE, "a channel has a session", channel=channel)
        if begin.remote_channel is not None:
            raise ProtocolFault(Condition.INVALID_FIELD, "an answer to a begin that was not sent")
        session = EngineSession(self._wire, begin, channel, self._free_channel())
        self._sessions[channel] = session
        self._wire.events.append(BeginReceived(session, begin))

    def _free_channel(self) -> int:
        """Return our lowest number that no session has, nor one whose end we still owe."""
        self._ending = [each for each in self._ending if each.state is SessionState.END_RECEIVED]
        taken = {each.channel for each in (*self._sessions.values(), *self._ending)}
        channel = next(each for each in range(len(taken) + 1) if each not in taken)
        if channel > self._wire.peer_channel_max:
            raise ProtocolFault(
                Condition.RESOURCE_LIMIT_EXCEEDED, "more sessions than the peer's channels"
            )
        return channel

    def _on_session_frame(self, channel: int, body: object, payload: bytes) -> None:
        session = self._sessions.get(channel)
        if session is None:
            raise ProtocolFault(
                Condition.ILLEGAL_STATE, "a channel has no session", channel=channel
            )
        if isinstance(body, EndFrame):
            del self._sessions[channel]
            session.on_end(body)
            self._ending.append(session)
        elif not session.is_deaf:
            try:
                self._dispatch(session, body, payload)
            except AmqpPeerFault as fault:
                self._contain(session, fault)

    def _dispatch(self, session: EngineSession, body: object, payload: bytes) -> None:
        if isinstance(body, AttachFrame):
            session.on_attach(body)
        elif isinstance(body, DetachFrame):
            session.on_detach(body)
        elif isinstance(body, FlowFrame):
            session.on_flow(body)
        elif isinstance(body, DispositionFrame):
            session.on_disposition_frame(body)
        else:
            assert isinstance(body, TransferFrame)
            row, buffer = row_of(session.remote_channel, body, payload)
            session.on_transfer(row, buffer)

    def _fail(self, fault: AmqpPeerFault) -> None:
        """Say why and close; where AMQP does not speak yet, only close (§2.4.6, §5.3).

        Behind a frame that cannot be one nothing can be read: there the partner's close is not
        waited for.
        """
        if self._phase is not AmqpPhase.AMQP:
            self._end(fault)
        elif self._sent is not Half.CLOSE:
            self.close(error_of(fault))
            self._wire.events.append(AmqpConnectionFailed(fault))
        if isinstance(fault, FramingFault) or self._received is Half.HEADER:
            self._phase = AmqpPhase.OVER

    def _end(self, fault: AmqpPeerFault) -> None:
        self._phase = AmqpPhase.OVER
        self._wire.events.append(AmqpConnectionFailed(fault))
