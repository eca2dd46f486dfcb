"""What a connection never sent waits again, and nothing that came later overtakes it."""

from __future__ import annotations

import pytest

from quantum.broker import Delivery, Message, Outbound


def outbound_of(count: int) -> Outbound:
    """Have so many messages in flight, with the packet ids 1, 2, …"""
    outbound = Outbound(count, 1, 100)
    for number in range(1, count + 1):
        message = Message(b"t", b"%d" % number, 1, False, b"", 0, b"c", 1, 0)  # noqa: FBT003
        assert outbound.push(Delivery(message, 1, False, ()))  # noqa: FBT003
    return outbound


@pytest.mark.parametrize("first", [1, 3, 5])
def test_all_behind_an_unsent_message_wait_with_it(first: int) -> None:
    outbound = outbound_of(5)
    weight = outbound.weight
    outbound.unsend(first)
    assert list(outbound.in_flight) == list(range(1, first))
    assert outbound.weight == weight and len(outbound) == 5
    again = [int(each.message.payload) for each in outbound.take_ready(0)]
    assert again == list(range(first, 6))


@pytest.mark.parametrize("first", [0, 9, -1])
def test_an_unknown_packet_id_changes_nothing(first: int) -> None:
    outbound = outbound_of(5)
    outbound.unsend(first)
    assert list(outbound.in_flight) == [1, 2, 3, 4, 5] and not outbound.queue
