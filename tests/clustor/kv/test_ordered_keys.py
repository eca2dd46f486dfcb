"""Lazily ordered keys against a plain sorted set."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from clustor.kv.ordered_keys import OrderedKeys
from clustor.kv.types import Key

_steps = st.lists(
    st.one_of(
        # Toggle a run of keys: add those that are absent, remove those that are present.
        st.tuples(st.integers(0, 300), st.integers(1, 120)),
        st.none(),  # list them
    ),
    max_size=25,
)


@settings(max_examples=200, deadline=None)
@given(_steps, st.binary(max_size=3), st.none() | st.binary(max_size=3))
def test_keys_come_in_order_whatever_was_added_and_removed(
    steps: list[tuple[int, int] | None], start: bytes, end: bytes | None
) -> None:
    keys, plain = OrderedKeys(), set[Key]()
    for step in [*steps, None]:
        if step is None:
            expected = sorted(k for k in plain if k >= start and (end is None or k < end))
            assert list(keys.between(start, end)) == expected
            assert list(keys.between(b"", None)) == sorted(plain)
            continue
        first, count = step
        for number in range(first, first + count):
            key = Key(b"%d" % (number * 7919 % 431))
            if key in plain:
                keys.remove(key)
            else:
                keys.add(key)
            plain ^= {key}


def test_removed_keys_do_not_pile_up() -> None:
    keys = OrderedKeys()
    for number in range(10_000):
        keys.add(Key(b"%d" % number))
        keys.remove(Key(b"%d" % number))
    assert len(keys._sorted) + len(keys._fresh) + len(keys._dead) < 500
