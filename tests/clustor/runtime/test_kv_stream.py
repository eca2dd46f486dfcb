"""Frames of the KV stream, however their bytes arrive."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clustor.runtime.kv.stream import (
    REPLY_BYTES_MAX,
    REQUEST_BYTES_MAX,
    StreamViolation,
    encode_replies,
    encode_reply,
    encode_request,
    take_replies,
    take_requests,
)

ids = st.integers(0, 2**32 - 1)
bodies = st.binary(max_size=50)
requests = st.lists(st.tuples(ids, st.integers(0, 2**64 - 1), st.integers(0, 255), bodies))
replies = st.lists(st.tuples(ids, st.integers(0, 255), bodies))


@given(sent=requests, step=st.integers(1, 64))
def test_requests_come_out_as_they_went_in(
    sent: list[tuple[int, int, int, bytes]], step: int
) -> None:
    stream = b"".join(encode_request(*request) for request in sent)
    buffer, found = bytearray(), []
    for start in range(0, len(stream), step):
        buffer += stream[start : start + step]
        found += take_requests(buffer)
    assert found == sent
    assert not buffer


@given(sent=replies, step=st.integers(1, 64))
def test_replies_come_out_as_they_went_in(sent: list[tuple[int, int, bytes]], step: int) -> None:
    stream = b"".join(encode_reply(*reply) for reply in sent)
    buffer, found = bytearray(), []
    for start in range(0, len(stream), step):
        buffer += stream[start : start + step]
        found += take_replies(buffer)
    assert found == sent
    assert not buffer


@given(sent=st.lists(st.tuples(ids, bodies)), status=st.integers(0, 255))
def test_replies_together_are_the_replies_one_by_one(
    sent: list[tuple[int, bytes]], status: int
) -> None:
    together = encode_replies([each for each, _ in sent], status, [body for _, body in sent])
    assert together == b"".join(encode_reply(each, status, body) for each, body in sent)


@pytest.mark.parametrize("length", [0, 12, REQUEST_BYTES_MAX + 1, 2**32 - 1])
def test_a_request_of_an_impossible_length_is_refused_at_its_head(length: int) -> None:
    with pytest.raises(StreamViolation):
        take_requests(bytearray(length.to_bytes(4, "little") + bytes(13)))


@pytest.mark.parametrize("length", [0, 4, REPLY_BYTES_MAX + 1])
def test_a_reply_of_an_impossible_length_is_refused_at_its_head(length: int) -> None:
    with pytest.raises(StreamViolation):
        take_replies(bytearray(length.to_bytes(4, "little") + bytes(5)))
