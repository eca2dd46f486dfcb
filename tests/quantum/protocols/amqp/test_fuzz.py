"""Mutated frames at every stage of a connection: never an untyped error, bounded time and memory.

Each trial is a live engine with sessions, links, unsettled deliveries and a half-sent message,
then frames of a valid conversation with some of their bytes changed, dropped, doubled or moved.
"""

from __future__ import annotations

import contextlib
import random
import tracemalloc

import pytest

from quantum.protocols.amqp.engine import (
    AcceptedOutcome,
    AmqpConnectionFailed,
    Array,
    AttachFrame,
    AttachReceived,
    BeginFrame,
    BeginReceived,
    CloseFrame,
    CloseReceived,
    Coordinator,
    Declare,
    DeliveryReceived,
    Described,
    DetachFrame,
    DetachReceived,
    DispositionFrame,
    EndFrame,
    EndReceived,
    FlowFrame,
    LinkRole,
    LinkState,
    ModifiedOutcome,
    OpenFrame,
    OpenReceived,
    RejectedOutcome,
    SaslCode,
    SaslInit,
    SaslInitReceived,
    SaslResponse,
    SaslResponseReceived,
    SessionState,
    SourceTerminus,
    Symbol,
    TargetTerminus,
    encode_composite,
    locate_sections,
)
from quantum.protocols.amqp.engine.composites import Composite
from quantum.protocols.amqp.engine.errors import AmqpPeerFault
from quantum.protocols.amqp.engine.framing import AMQP_HEADER, SASL_HEADER, encode_frame
from tests.quantum.protocols.amqp.peer import Peer, framed, transfer

CALM: list[Composite] = [
    AttachFrame("new", 5, LinkRole.SENDER, source=SourceTerminus("q"), initial_delivery_count=0),
    AttachFrame(
        "old",
        6,
        LinkRole.RECEIVER,
        source=SourceTerminus("q", filter={Symbol("f"): Described(Symbol("s"), "a > 1")}),
        unsettled={b"tag": AcceptedOutcome(), b"gat": None},
    ),
    AttachFrame("txn", 7, LinkRole.SENDER, target=Coordinator(), initial_delivery_count=0),
    FlowFrame(0, 100, 0, 100, 1, 0, 50),
    FlowFrame(1, 100, 3, 100, echo=True),
    FlowFrame(0, 100, 0, 100, 0, 3, 5, 9, drain=True),
    DispositionFrame(LinkRole.RECEIVER, 0, 3, True, RejectedOutcome()),  # noqa: FBT003
    DispositionFrame(LinkRole.SENDER, 0, None, None, ModifiedOutcome(delivery_failed=True)),
    DetachFrame(0, True),  # noqa: FBT003
    DetachFrame(1),
    BeginFrame(None, 0, 10, 10, properties={Symbol("p"): Array(0xA3, (Symbol("x"),))}),
    EndFrame(),
    CloseFrame(),
    OpenFrame("again", "host", 1024, 5, 1000, ("en-US",)),
    TargetTerminus("stray"),
]
TRANSFERS = [
    framed(transfer(0, 9, b"t"), b"\0\x53\x75\xa0\x04body"),
    framed(transfer(0, 10, b"u", more=True), b"\0\x53\x75\xa0\x04bo"),
    framed(transfer(0, None, None, aborted=True), b""),
    framed(transfer(2, 11, b"v"), b"\0\x53\x77" + encode_composite(Declare())),
]
SASL = [encode_frame(0, SaslInit("PLAIN", b"\0a\0b"), 1), encode_frame(0, SaslResponse(b"r"), 1)]


def answer(peer: Peer) -> None:
    """Pull everything and answer as a driver would; only typed faults may come of it."""
    for _ in range(1_000):
        event = peer.engine.next_event()
        match event:
            case None:
                break
            case SaslInitReceived():
                peer.engine.sasl_challenge(b"c")
            case SaslResponseReceived():
                peer.engine.sasl_outcome(SaslCode.OK)
            case OpenReceived():
                peer.engine.open()
            case CloseReceived():
                if not peer.engine.is_over:
                    peer.engine.close()
            case BeginReceived():
                event.session.begin()
            case EndReceived():
                if event.session.state is SessionState.END_RECEIVED:
                    event.session.end()
            case AttachReceived():
                if event.link.role is LinkRole.RECEIVER and event.attach.target is None:
                    event.link.attach(target=TargetTerminus("made"))
                else:
                    event.link.detach()
            case DetachReceived():
                if event.link.state is LinkState.DETACH_RECEIVED:
                    event.link.detach(closed=event.closed)
            case DeliveryReceived():
                with contextlib.suppress(AmqpPeerFault):
                    locate_sections(event.payload).header()
            case AmqpConnectionFailed():
                assert event.fault.condition.startswith("amqp:")
            case _:
                pass
    else:
        raise AssertionError("events without an end")
    peer.engine.data_to_send()


def live(rng: random.Random) -> Peer:
    """An engine somewhere in its life."""
    if rng.random() < 0.15:
        peer = Peer(mechanisms=("PLAIN",))
        peer.say(SASL_HEADER)
        if rng.random() < 0.5:
            peer.say(SASL[0])
            peer.engine.sasl_challenge(b"c")
        return peer
    peer = Peer(incoming_window=8, frame_bytes_max=4_096).opened(max_frame_size=512)
    session = peer.begun(window=3)
    peer.sender(handle=0, name="in")
    out = peer.receiver(handle=1, name="out")
    peer.sender(handle=2, name="control", target=Coordinator())
    peer.say(FlowFrame(0, 3, 0, 100, 1, 0, 10))
    for number in range(3):
        out.send(b"%d" % number, b"x" * 700)
    peer.say(framed(transfer(0, 0, b"a"), b"x"), framed(transfer(0, 1, b"b"), b"y"))
    if rng.random() < 0.3:
        session.settle([0], AcceptedOutcome())
    if rng.random() < 0.1:
        session.end()
    return peer


def mutated(rng: random.Random, data: bytes) -> bytes:
    frame = bytearray(data)
    for _ in range(rng.choice([1, 1, 1, 2, 4, 10])):
        if not frame:
            break
        at = rng.randrange(len(frame))
        match rng.randrange(6):
            case 0 | 1:
                frame[at] = rng.choice(
                    [0, 1, 0x40, 0x45, 0x53, 0x7F, 0x80, 0xFF, rng.randrange(256)]
                )
            case 2:
                frame[at] ^= 1 << rng.randrange(8)
            case 3:
                del frame[at]
            case 4:
                frame[at:at] = rng.randbytes(rng.choice([1, 4, 40]))
            case _:
                start = rng.randrange(len(frame))
                frame[at:at] = frame[start : start + rng.choice([1, 5, 20])]
    if rng.random() < 0.7 and len(frame) > 4:  # Keep most of them frames, so that bodies are read.
        frame[:4] = len(frame).to_bytes(4, "big")
        frame[4:8] = b"\2" + data[5:8]
    return bytes(frame)


def fuzz(seed: int, frames: int) -> None:
    rng = random.Random(seed)
    print(f"seed {seed}")
    done = 0
    while done < frames:
        peer = live(rng)
        is_sasl = bool(peer.engine.settings.mechanisms)
        for _ in range(rng.choice([1, 3, 8])):
            done += 1
            pool = SASL if is_sasl else [*TRANSFERS, encode_frame(0, rng.choice(CALM))]
            data = mutated(rng, rng.choice(pool))
            try:
                peer.engine.receive_data(data)
                if rng.random() < 0.1:
                    peer.engine.receive_data(AMQP_HEADER)
                answer(peer)
            except Exception as error:
                error.add_note(f"seed {seed}, frame {done}, bytes {data.hex()}")
                raise
        assert peer.engine.held_bytes < 100_000


@pytest.mark.parametrize("seed", range(5))
def test_a_thousand_mutated_frames_are_typed_faults_at_most(seed: int) -> None:
    fuzz(seed, 1_000)


@pytest.mark.soak
def test_half_a_million_mutated_frames_are_typed_faults_at_most() -> None:
    for seed in range(100, 600):
        fuzz(seed, 1_000)


def test_noise_costs_no_memory_that_stays() -> None:
    rng = random.Random(7)
    fuzz(8, 200)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for _ in range(300):
        peer = Peer()
        peer.engine.receive_data(AMQP_HEADER + rng.randbytes(500))
        answer(peer)
        del peer
    after = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert after - before < 1 << 20


def test_a_small_frame_cannot_ask_for_much() -> None:
    """Counts and sizes of four thousand million in a few bytes are refused before they are made."""
    for body in (
        b"\0\x53\x12\xd0\0\0\0\x04\xff\xff\xff\xff",
        b"\0\x53\x10\xf0\0\0\0\x05\xff\xff\xff\xff\x40",
        b"\0\x53\x12\xb1\xff\xff\xff\xff",
        b"\0" * 4_000,
        b"\xc0\xff\xff" * 1_000,
    ):
        peer = Peer().opened()
        frame = (len(body) + 8).to_bytes(4, "big") + b"\2\0\0\0" + body
        tracemalloc.start()
        events = peer.say(frame)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert [type(each) for each in events] == [AmqpConnectionFailed]
        assert peak < 1 << 20
