"""The frequent frames without an object for any field: find transfers and dispositions, write them.

Flat and fully typed: mypyc compiles it as it stands. `scan` finds what is well formed and
frequent, and judges nothing: whatever looks otherwise is a SLOW row, which the decoders read or
refuse with the right condition.
"""

from __future__ import annotations

from typing import Final

# (kind, channel, handle, delivery id, tag start, tag end, message format, flags,
#  state start, state end, payload start, end): positions in the buffer, -1 where a field is unset.
# A DISPOSITION has its role as handle, `first` as delivery id and `last` as tag start. A SLOW row
# has the frame's type as handle, -1 there where its header is ill-formed.
Row = tuple[int, int, int, int, int, int, int, int, int, int, int, int]

SLOW: Final = 0
TRANSFER: Final = 0x14
DISPOSITION: Final = 0x15

SETTLED: Final = 1
SETTLED_SET: Final = 2
MORE: Final = 4
RESUME: Final = 8
ABORTED: Final = 16
BATCHABLE: Final = 32
RCV_FIRST: Final = 64
RCV_SECOND: Final = 128

_WIDTHS: Final = (-1, -1, -1, -1, 0, 1, 2, 4, 8, 16)


def skip_value(buffer: bytes, position: int, end: int) -> int:
    """Return where the value at `position` ends, or -1 if it has no end before `end`.

    Its content is not looked at. A descriptor that is itself described has no end here: nobody
    writes one, and whoever reads such a value reads it whole.
    """
    if position >= end:
        return -1
    code = buffer[position]
    position += 1
    if code == 0:
        position = _skip_plain(buffer, position, end)
        if position < 0 or position >= end:
            return -1
        code = buffer[position]
        position += 1
        if code == 0:
            return -1
    return _skip_body(buffer, code, position, end)


def _skip_plain(buffer: bytes, position: int, end: int) -> int:
    if position >= end or buffer[position] == 0:
        return -1
    return _skip_body(buffer, buffer[position], position + 1, end)


def _skip_body(buffer: bytes, code: int, position: int, end: int) -> int:
    family = code >> 4
    if family < 4:
        return -1
    if family < 10:
        position += _WIDTHS[family]
    elif family == 10 or family == 12 or family == 14:  # noqa: PLR1714  # hot: no set is made
        if position >= end:
            return -1
        position += 1 + buffer[position]
    else:
        if position + 4 > end:
            return -1
        position += 4 + (
            buffer[position] << 24
            | buffer[position + 1] << 16
            | buffer[position + 2] << 8
            | buffer[position + 3]
        )
    return position if position <= end else -1


def scan(buffer: bytes, start: int, frame_bytes_max: int, frames_max: int) -> tuple[list[Row], int]:
    """Find up to `frames_max` whole frames from `start` on: their rows, and where the last ends.

    The walk ends before a frame that is not whole or whose size cannot be: below 8 or above
    `frame_bytes_max`. Whoever asked tells which from the four bytes there.
    """
    rows: list[Row] = []
    position = start
    end = len(buffer)
    while frames_max > 0 and end - position >= 8:
        frames_max -= 1
        size = (
            buffer[position] << 24
            | buffer[position + 1] << 16
            | buffer[position + 2] << 8
            | buffer[position + 3]
        )
        stop = position + size
        if size < 8 or size > frame_bytes_max or stop > end:
            break
        channel = buffer[position + 6] << 8 | buffer[position + 7]
        body = position + (buffer[position + 4] << 2)
        kind = 0
        is_plain = body == position + 8 and buffer[position + 5] == 0 and stop - body > 4
        if is_plain and buffer[body] == 0 and buffer[body + 1] == 0x53:
            kind = buffer[body + 2]
        if kind == TRANSFER:
            rows.append(_transfer(buffer, channel, body, stop))
        elif kind == DISPOSITION:
            rows.append(_disposition(buffer, channel, body, stop))
        elif body < position + 8 or body > stop:
            rows.append((SLOW, channel, -1, -1, -1, -1, -1, 0, -1, -1, position, stop))
        else:
            rows.append(_slow(channel, buffer[position + 5], body, stop))
        position = stop
    return rows, position


def _slow(channel: int, frame_type: int, body: int, stop: int) -> Row:
    return (SLOW, channel, frame_type, -1, -1, -1, -1, 0, -1, -1, body, stop)


def _list_at(buffer: bytes, body: int, stop: int) -> tuple[int, int, int]:
    """Return the count, the first item and the end of the list behind a three-byte descriptor."""
    code = buffer[body + 3]
    if code == 0xC0 and body + 6 <= stop:
        size = buffer[body + 4]
        after = body + 5 + size
        if size >= 1 and after <= stop:
            return buffer[body + 5], body + 6, after
    elif code == 0xD0 and body + 12 <= stop:
        size = (
            buffer[body + 4] << 24
            | buffer[body + 5] << 16
            | buffer[body + 6] << 8
            | buffer[body + 7]
        )
        after = body + 8 + size
        if size >= 4 and after <= stop and not buffer[body + 8] and not buffer[body + 9]:
            return buffer[body + 10] << 8 | buffer[body + 11], body + 12, after
    return -1, 0, 0


def _uint_at(buffer: bytes, position: int, end: int) -> tuple[int, int]:
    """Return the uint at `position` and where it ends; -1 for null, -2 for anything else."""
    code = buffer[position]
    if code == 0x43:
        return 0, position + 1
    if code == 0x52 and position + 1 < end:
        return buffer[position + 1], position + 2
    if code == 0x70 and position + 4 < end:
        return (
            buffer[position + 1] << 24
            | buffer[position + 2] << 16
            | buffer[position + 3] << 8
            | buffer[position + 4]
        ), position + 5
    if code == 0x40:
        return -1, position + 1
    return -2, position


def _boolean_at(buffer: bytes, position: int, end: int) -> tuple[int, int]:
    """Return 1, 0 or -1 (null) for the boolean at `position`, and where it ends; -2 otherwise."""
    code = buffer[position]
    if code == 0x41:
        return 1, position + 1
    if code == 0x42:
        return 0, position + 1
    if code == 0x40:
        return -1, position + 1
    if code == 0x56 and position + 1 < end and buffer[position + 1] < 2:
        return buffer[position + 1], position + 2
    return -2, position


def _transfer(buffer: bytes, channel: int, body: int, stop: int) -> Row:
    count, position, after = _list_at(buffer, body, stop)
    if count < 1 or count > 11:
        return _slow(channel, 0, body, stop)
    handle = -1
    delivery_id = -1
    tag_start = -1
    tag_end = -1
    message_format = -1
    flags = 0
    state_start = -1
    state_end = -1
    field = 0
    while field < count:
        if position >= after:
            return _slow(channel, 0, body, stop)
        if field == 0 or field == 1 or field == 3:  # noqa: PLR1714  # hot: no set is made
            number, position = _uint_at(buffer, position, after)
            if number == -2:
                return _slow(channel, 0, body, stop)
            if field == 0:
                handle = number
            elif field == 1:
                delivery_id = number
            else:
                message_format = number
        elif field == 2:
            if buffer[position] == 0xA0 and position + 1 < after:
                tag_start = position + 2
                tag_end = tag_start + buffer[position + 1]
                position = tag_end
            elif buffer[position] == 0x40:
                position += 1
            else:
                return _slow(channel, 0, body, stop)
        elif field == 6:
            if buffer[position] == 0x50 and position + 1 < after and buffer[position + 1] < 2:
                flags |= RCV_SECOND if buffer[position + 1] else RCV_FIRST
                position += 2
            elif buffer[position] == 0x40:
                position += 1
            else:
                return _slow(channel, 0, body, stop)
        elif field == 7:
            if buffer[position] == 0x40:
                position += 1
            else:
                state_start = position
                position = skip_value(buffer, position, after)
                state_end = position
                if position < 0:
                    return _slow(channel, 0, body, stop)
        else:
            number, position = _boolean_at(buffer, position, after)
            if number == -2:
                return _slow(channel, 0, body, stop)
            if field == 4:
                if number >= 0:
                    flags |= SETTLED_SET | number
            elif number == 1:
                if field == 5:
                    flags |= MORE
                elif field == 8:
                    flags |= RESUME
                elif field == 9:
                    flags |= ABORTED
                else:
                    flags |= BATCHABLE
        field += 1
    if position != after or handle < 0:
        return _slow(channel, 0, body, stop)
    return (
        TRANSFER,
        channel,
        handle,
        delivery_id,
        tag_start,
        tag_end,
        message_format,
        flags,
        state_start,
        state_end,
        after,
        stop,
    )


def _disposition(buffer: bytes, channel: int, body: int, stop: int) -> Row:
    count, position, after = _list_at(buffer, body, stop)
    if count < 2 or count > 6 or after != stop:
        return _slow(channel, 0, body, stop)
    role = -1
    first = -1
    last = -1
    flags = 0
    state_start = -1
    state_end = -1
    field = 0
    while field < count:
        if position >= after:
            return _slow(channel, 0, body, stop)
        if field == 1 or field == 2:  # noqa: PLR1714  # hot: no set is made
            number, position = _uint_at(buffer, position, after)
            if field == 1:
                first = number
            else:
                last = number
        elif field == 4:
            number = 0
            if buffer[position] == 0x40:
                position += 1
            else:
                state_start = position
                position = skip_value(buffer, position, after)
                state_end = position
                if position < 0:
                    number = -2
        else:
            number, position = _boolean_at(buffer, position, after)
            if field == 0:
                role = number
            elif number == 1:
                flags |= SETTLED if field == 3 else BATCHABLE
        if number == -2:
            return _slow(channel, 0, body, stop)
        field += 1
    if position != after or role < 0 or first < 0:
        return _slow(channel, 0, body, stop)
    return (
        DISPOSITION,
        channel,
        role,
        first,
        last if last >= 0 else first,
        -1,
        -1,
        flags,
        state_start,
        state_end,
        after,
        stop,
    )


def _uint(number: int) -> bytes:
    if number == 0:
        return b"\x43"
    if number < 256:
        return bytes((0x52, number))
    return b"\x70" + number.to_bytes(4, "big")


def transfer_head(  # noqa: PLR0917  # hot: positional
    channel: int,
    handle: int,
    delivery_id: int,
    tag: bytes,
    message_format: int,
    flags: int,
    state: bytes,
    payload_bytes: int,
) -> bytes:
    """Write a transfer frame up to its payload of `payload_bytes`.

    `delivery_id` and `message_format` are -1 on a continuation; `state` is written already, or
    empty. The caller keeps frame, tag and numbers within their bounds.
    """
    fields = [
        _uint(handle),
        b"\x40" if delivery_id < 0 else _uint(delivery_id),
        b"\x40" if delivery_id < 0 else bytes((0xA0, len(tag))) + tag,
        b"\x40" if message_format < 0 else _uint(message_format),
        b"\x41" if flags & SETTLED else b"\x42",
        b"\x41" if flags & MORE else b"\x42",
    ]
    if state or flags & (RESUME | ABORTED | BATCHABLE | RCV_FIRST | RCV_SECOND):
        if flags & (RCV_FIRST | RCV_SECOND):
            fields.append(b"\x50\x01" if flags & RCV_SECOND else b"\x50\x00")
        else:
            fields.append(b"\x40")
        fields.append(state if state else b"\x40")
        if flags & (RESUME | ABORTED | BATCHABLE):
            fields.append(b"\x41" if flags & RESUME else b"\x42")
            fields.append(b"\x41" if flags & ABORTED else b"\x42")
            fields.append(b"\x41" if flags & BATCHABLE else b"\x42")
    return _frame(channel, TRANSFER, fields, payload_bytes)


def encode_disposition(  # noqa: PLR0917  # hot: positional
    channel: int, role: int, first: int, last: int, settled: bool, state: bytes
) -> bytes:
    """Write one disposition for the deliveries `first` to `last`, both included."""
    fields = [b"\x41" if role else b"\x42", _uint(first)]
    fields.append(b"\x40" if last == first else _uint(last))
    fields.append(b"\x41" if settled else b"\x42")
    if state:
        fields.append(state)
    return _frame(channel, DISPOSITION, fields, 0)


def encode_dispositions(
    channel: int, role: int, delivery_ids: list[int], settled: bool, state: bytes
) -> bytes:
    """Write dispositions of the same state for many deliveries, one for each run of numbers.

    The runs are those of `delivery_ids` as it stands: whoever settles in order has one frame.
    """
    frames: list[bytes] = []
    if not delivery_ids:
        return b""
    first = delivery_ids[0]
    last = first
    for number in delivery_ids[1:]:
        if number == (last + 1) & 0xFFFFFFFF:
            last = number
            continue
        frames.append(encode_disposition(channel, role, first, last, settled, state))
        first = number
        last = number
    frames.append(encode_disposition(channel, role, first, last, settled, state))
    return b"".join(frames)


def _frame(channel: int, code: int, fields: list[bytes], payload_bytes: int) -> bytes:
    content = b"".join(fields)
    size = len(content)
    if size < 255:
        head = bytes((2, 0, channel >> 8, channel & 255, 0, 0x53, code, 0xC0, size + 1))
        head += bytes((len(fields),))
    else:
        head = bytes((2, 0, channel >> 8, channel & 255, 0, 0x53, code, 0xD0))
        head += (size + 4).to_bytes(4, "big") + len(fields).to_bytes(4, "big")
    total = 4 + len(head) + size + payload_bytes
    return b"".join((total.to_bytes(4, "big"), head, content))
