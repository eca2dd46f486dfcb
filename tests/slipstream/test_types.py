"""The words: tokens, cursors, scopes, and when a cursor moves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import slipstream
from slipstream.applied import advance, needs_resync
from slipstream.errors import InvalidFormat, Misuse
from slipstream.types import (
    NO_CURSOR,
    UNKNOWN_VERSION,
    BatchConfig,
    VersionToken,
    WatchCursor,
    WatchScope,
)

positions = st.one_of(st.binary(min_size=8, max_size=8), st.binary(min_size=10, max_size=10))
identities = st.sampled_from([b"", b"AAAAAAAA", b"\x00BBBBBB\x00"])
cursors = st.builds(WatchCursor, positions, identities, identities, st.integers(0, 2**64 - 1))


@given(cursors)
def test_a_cursor_is_what_its_bytes_say(cursor: WatchCursor) -> None:
    assert WatchCursor.decode(cursor.encode()) == cursor
    assert len(cursor.encode()) <= 255, "the log's format has one byte for the length"


def test_no_cursor_is_no_bytes() -> None:
    assert NO_CURSOR.encode() == b""
    assert WatchCursor.decode(b"") == NO_CURSOR
    assert NO_CURSOR.is_none


@pytest.mark.parametrize("size", [1, 7, 9, 11, 24, 31, 33, 35])
def test_bytes_of_another_length_are_no_cursor(size: int) -> None:
    with pytest.raises(InvalidFormat):
        WatchCursor.decode(bytes(size))


def test_tokens_have_three_widths() -> None:
    assert VersionToken.from_u64(7).as_u64() == 7
    assert VersionToken.from_u64(7).raw == b"\0\0\0\0\0\0\0\x07"
    assert VersionToken(b"0123456789").as_u64() is None
    assert UNKNOWN_VERSION.as_u64() is None
    assert UNKNOWN_VERSION.is_unknown
    with pytest.raises(Misuse):
        VersionToken(b"123")


def test_what_cannot_be_meant_is_refused() -> None:
    for build in (
        lambda: WatchCursor(b"123"),
        lambda: WatchCursor(b"12345678", b"short"),
        WatchScope.of_prefixes,
        lambda: BatchConfig(updates_max=0),
    ):
        with pytest.raises(Misuse):
            build()


def at(revision: int, store: bytes = b"", scope: bytes = b"") -> WatchCursor:
    return WatchCursor(VersionToken.from_u64(revision).raw, store, scope)


ADVANCES = {
    "forward": (at(3), at(5), at(5)),
    "never back": (at(5), at(3), at(5)),
    "an unknown version": (at(5), NO_CURSOR, at(5)),
    "the first": (NO_CURSOR, at(1), at(1)),
    "another life": (at(9, b"AAAAAAAA"), at(1, b"BBBBBBBB"), at(1, b"BBBBBBBB")),
    "another scope": (at(9, b"", b"AAAAAAAA"), at(1, b"", b"BBBBBBBB"), at(1, b"", b"BBBBBBBB")),
}


@pytest.mark.parametrize(("current", "candidate", "wanted"), ADVANCES.values(), ids=ADVANCES.keys())
def test_a_cursor_moves_forward_in_one_life_and_anew_in_another(
    current: WatchCursor, candidate: WatchCursor, wanted: WatchCursor
) -> None:
    assert advance(current, candidate) == wanted


def test_scopes_are_told_apart_and_equal_ones_are_not() -> None:
    one = WatchScope.of_prefixes("b.", "a.", "a.")
    assert one == WatchScope.of_prefixes("a.", "b.")
    assert WatchScope.of_prefixes("", "a.").identity == WatchScope.all().identity
    identities = {one.identity, WatchScope.all().identity, WatchScope.prefix("a.").identity}
    assert len(identities) == 3
    assert one.covers("a.x")
    assert not one.covers("c.x")


def test_a_fold_resumes_only_in_its_scope_and_only_if_it_was_finished() -> None:
    scope = WatchScope.prefix("a.")
    own = at(5, b"", scope.identity)
    assert not needs_resync(own, scope, fold_is_empty=False)
    assert needs_resync(own, WatchScope.all(), fold_is_empty=False)
    assert not needs_resync(NO_CURSOR, scope, fold_is_empty=True)
    assert needs_resync(NO_CURSOR, scope, fold_is_empty=False)


def test_every_public_name_is_there() -> None:
    for name in slipstream.__all__:
        assert getattr(slipstream, name) is not None
    with pytest.raises(AttributeError):
        _ = slipstream.nothing_of_the_kind
