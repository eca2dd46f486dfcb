"""Commands larger than an entry: whole on every replica, or not at all."""

from __future__ import annotations

import pytest

from quantum.broker import LeaderStarted, Part, SendVolatile, encode_command, encode_publishes
from quantum.broker.commands import OWN_ORIGIN
from quantum.broker.effects import FanOut
from quantum.broker.parts import PART_BYTES_MAX, Parts, is_part, split_command
from quantum.broker.refusals import NOT_COUNTED
from tests.quantum.broker.desk import Desk, record, spec

LARGE = b"x" * (3 * PART_BYTES_MAX + 7)


def large(desk: Desk) -> list[bytes]:
    command = encode_publishes(desk.now_ms, OWN_ORIGIN, 0, 0, [record(b"a", LARGE)])
    parts = split_command(command)
    assert len(parts) == 4 and all(len(part) <= PART_BYTES_MAX for part in parts)
    return parts


def subscribed() -> Desk:
    desk = Desk()
    desk.attach()
    desk.subscribe(spec(b"a"))
    return desk


def test_a_large_publish_is_one_publish_with_its_last_part() -> None:
    """The desk restores a replica from a snapshot before each part: it ends like the others."""
    desk = subscribed()
    *first, last = large(desk)
    for part in first:
        assert desk.apply(part) == [b""]
        assert not desk.effects
    assert desk.apply(last) == [b""]
    assert desk.payloads() == [LARGE]
    assert not desk.leader.state.parts.pieces


def test_other_commands_may_stand_between_parts() -> None:
    desk = subscribed()
    for part in large(desk):
        desk.publish(b"other")
        desk.apply(part)
    assert desk.payloads() == [LARGE]


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_without_one_part_nothing_of_it_counts(missing: int) -> None:
    desk = subscribed()
    parts = large(desk)
    del parts[missing]
    replies = [desk.apply(part)[0] for part in parts]
    assert replies[-1] == NOT_COUNTED and not desk.payloads()
    assert not desk.leader.state.parts.pieces
    for part in large(desk):
        desk.apply(part)
    assert desk.payloads() == [LARGE]


def test_a_new_leader_does_not_finish_what_its_predecessor_began() -> None:
    desk = Desk()
    *first, last = large(desk)
    for part in first:
        desk.apply(part)
    desk.do(LeaderStarted(desk.now_ms, 2))
    assert desk.apply(last) == [NOT_COUNTED]
    assert not any(isinstance(each, FanOut | SendVolatile) for each in desk.effects)


def test_parts_of_parts_and_too_much_are_no_commands() -> None:
    inner = encode_command(Part(0, 1, b"\0"))
    assert is_part(inner)
    desk = Desk()
    assert desk.do(Part(0, 1, inner)) == NOT_COUNTED
    parts = Parts()
    taken: bytes | None = b""
    for number in range(5):
        taken = parts.take(Part(number, 9, bytes(16 << 20)))
    assert taken is None and not parts.pieces


def test_a_command_that_fits_stays_what_it_is() -> None:
    assert split_command(b"small") == [b"small"]
