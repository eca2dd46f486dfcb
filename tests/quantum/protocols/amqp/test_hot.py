"""The scanner and the writers of transfers against their naive twin: the decoders."""

from __future__ import annotations

import random

import pytest

from quantum.protocols.amqp.engine import (
    AcceptedOutcome,
    AmqpPeerFault,
    AttachFrame,
    DispositionFrame,
    ErrorValue,
    FlowFrame,
    LinkRole,
    ReceiverSettleMode,
    RejectedOutcome,
    TransactionalState,
    TransferFrame,
    decode_composite,
    encode_composite,
    hot,
)
from quantum.protocols.amqp.engine.composites import Composite, DeliveryState
from quantum.protocols.amqp.engine.receiving import row_of
from tests.quantum.protocols.amqp.peer import framed

LIMIT = 1 << 20


def drawn_state(rng: random.Random) -> DeliveryState | None:
    error = ErrorValue("test:x", "y" * rng.choice([1, 300]))
    return rng.choice(
        [
            None,
            AcceptedOutcome(),
            RejectedOutcome(error),
            TransactionalState(b"txn", AcceptedOutcome()),
        ]
    )


def drawn_number(rng: random.Random) -> int:
    return rng.choice([0, 1, 255, 256, 0xFFFFFFFF])


def drawn_transfer(rng: random.Random) -> TransferFrame:
    flag = [None, True, False]
    return TransferFrame(
        drawn_number(rng),
        rng.choice([None, drawn_number(rng)]),
        rng.choice([None, b"", rng.randbytes(8), rng.randbytes(32)]),
        rng.choice([None, 0, 5]),
        rng.choice(flag),
        rng.choice(flag),
        rng.choice([None, *ReceiverSettleMode]),
        drawn_state(rng),
        rng.choice(flag),
        rng.choice(flag),
        rng.choice(flag),
    )


def drawn_disposition(rng: random.Random) -> DispositionFrame:
    flag = [None, True, False]
    last = rng.choice([None, drawn_number(rng)])
    return DispositionFrame(
        rng.choice(list(LinkRole)),
        drawn_number(rng),
        last,
        rng.choice(flag),
        drawn_state(rng),
        rng.choice(flag),
    )


def drawn_body(rng: random.Random) -> Composite:
    other: list[Composite] = [FlowFrame(0, 1, 0, 1), AttachFrame("x", 0, LinkRole.SENDER)]
    return rng.choice([drawn_transfer(rng), drawn_disposition(rng), rng.choice(other)])


def as_told(row: hot.Row, buffer: bytes) -> tuple[object, ...]:
    """What a row says, with its positions replaced by the bytes there."""
    tag = buffer[row[4] : row[5]] if row[4] >= 0 else None
    state = buffer[row[8] : row[9]] if row[8] >= 0 else None
    flags = row[7] if row[7] & hot.SETTLED_SET else row[7] & ~hot.SETTLED
    return (*row[:4], tag, row[6], flags, state, buffer[row[10] : row[11]])


@pytest.mark.parametrize("seed", range(200))
def test_rows_say_what_the_decoders_read(seed: int) -> None:
    rng = random.Random(seed)
    wanted: list[tuple[int, Composite, bytes]] = []
    for _ in range(20):
        body = drawn_body(rng)
        payload = rng.randbytes(rng.choice([0, 5, 300])) if isinstance(body, TransferFrame) else b""
        wanted.append((rng.choice([0, 1, 65_535]), body, payload))
    buffer = b"".join(framed(body, payload, channel) for channel, body, payload in wanted)
    rows, end = hot.scan(buffer, 0, LIMIT, 1000)
    assert end == len(buffer)
    for row, (channel, body, payload) in zip(rows, wanted, strict=True):
        assert row[1] == channel
        if isinstance(body, TransferFrame):
            assert as_told(row, buffer) == as_told(*row_of(channel, body, payload))
        elif isinstance(body, DispositionFrame):
            last = body.first if body.last is None else body.last
            assert row[:5] == (hot.DISPOSITION, channel, body.role, body.first, last)
            assert bool(row[7] & hot.SETTLED) is bool(body.settled)
            state = b"" if body.state is None else encode_composite(body.state)
            assert (buffer[row[8] : row[9]] if row[8] >= 0 else b"") == state
        else:
            assert (row[0], row[2]) == (hot.SLOW, 0)
            assert decode_composite(buffer, row[10], row[11]) == (body, row[11])


@pytest.mark.parametrize("seed", range(200))
def test_a_mutated_frame_is_never_a_row_that_the_decoders_refuse(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(50):
        frame = bytearray(framed(drawn_transfer(rng), b"payload"))
        for _ in range(rng.choice([1, 1, 2, 5])):
            frame[rng.randrange(8, len(frame))] = rng.randrange(256)
        data = bytes(frame)
        (row,), _ = hot.scan(data, 0, LIMIT, 10)
        if row[0] != hot.TRANSFER:
            continue
        try:
            body, end = decode_composite(data, 8, len(data))
        except AmqpPeerFault:
            # The scanner does not look inside a state: whoever reads it judges it.
            assert row[8] >= 0
            continue
        assert isinstance(body, TransferFrame)
        if body.state is None:
            assert as_told(row, data) == as_told(*row_of(row[1], body, data[end:]))


def test_a_walk_ends_before_what_is_not_whole_or_too_large_and_counts_its_frames() -> None:
    frame = framed(TransferFrame(0, 1, b"t", 0), b"x" * 50)
    rows, end = hot.scan(frame * 3 + frame[:-1], 0, LIMIT, 100)
    assert (len(rows), end) == (3, 3 * len(frame))
    assert hot.scan(frame * 3, 0, len(frame) - 1, 100) == ([], 0)
    assert hot.scan(frame * 3, 0, LIMIT, 2)[1] == 2 * len(frame)
    assert hot.scan(frame * 3, len(frame), LIMIT, 1)[0][0][3] == 1
    assert hot.scan(b"", 0, LIMIT, 10) == ([], 0)


@pytest.mark.parametrize("seed", range(100))
def test_what_is_written_is_what_the_decoders_read(seed: int) -> None:
    rng = random.Random(seed)
    number, tag, payload = drawn_number(rng), rng.randbytes(rng.randrange(33)), rng.randbytes(10)
    state = drawn_state(rng)
    raw = b"" if state is None else encode_composite(state)
    flags = rng.randrange(256) & ~(hot.RCV_FIRST | hot.SETTLED_SET)
    head = hot.transfer_head(3, 7, number, tag, 0, flags, raw, len(payload))
    frame = head + payload
    assert int.from_bytes(frame[:4], "big") == len(frame)
    body, end = decode_composite(frame, 8, len(frame))
    assert frame[end:] == payload
    assert isinstance(body, TransferFrame)
    assert (body.handle, body.delivery_id, body.delivery_tag) == (7, number, tag)
    assert body.state == state
    assert bool(body.settled) is bool(flags & hot.SETTLED)
    assert bool(body.more) is bool(flags & hot.MORE)
    assert bool(body.resume) is bool(flags & hot.RESUME)
    assert bool(body.aborted) is bool(flags & hot.ABORTED)
    assert bool(body.batchable) is bool(flags & hot.BATCHABLE)
    assert (body.rcv_settle_mode is ReceiverSettleMode.SECOND) is bool(flags & hot.RCV_SECOND)


@pytest.mark.parametrize(
    ("numbers", "runs"),
    [
        ([], []),
        ([5], [(5, 5)]),
        ([5, 6, 7], [(5, 7)]),
        ([1, 3, 4, 9], [(1, 1), (3, 4), (9, 9)]),
        ([0xFFFFFFFF, 0, 1], [(0xFFFFFFFF, 1)]),
        ([2, 1], [(2, 2), (1, 1)]),
    ],
)
def test_dispositions_are_one_frame_for_each_run(
    numbers: list[int], runs: list[tuple[int, int]]
) -> None:
    raw = encode_composite(AcceptedOutcome())
    data = hot.encode_dispositions(0, LinkRole.RECEIVER, numbers, True, raw)  # noqa: FBT003
    rows, end = hot.scan(data, 0, LIMIT, 100)
    assert end == len(data)
    assert [(row[3], row[4]) for row in rows] == runs
    assert all(row[7] & hot.SETTLED and row[2] == LinkRole.RECEIVER for row in rows)
