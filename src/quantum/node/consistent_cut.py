"""One place in several partitions: what one of them was told of another is true there.

A partition keeps what it has for another until that one's log has it. Their logs are archived one
by one, and stamped by several clocks, so an archive may have the word that something arrived and
not yet, or not before the moment that is asked for, its arrival. Restored so, it would be lost
between the two. Such a receiver is taken further, to the entry by which it has what it was sent:
that entry came before the word about it, so there is an end to this, and what is added was
acknowledged by somebody who is in the cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from quantum.broker import Broker


@dataclass(frozen=True, slots=True)
class ChannelMarks:
    """How far a partition's channels are: what others are said to have, and what it has."""

    acked: Mapping[int, int]
    counted: Mapping[int, int]


def marks_of(broker: Broker) -> ChannelMarks:
    """Read the marks of a partition's state."""
    channels = broker.state.channels
    acked = {number: int(box.acked_through) for number, box in channels.outboxes().items()}
    return ChannelMarks(acked, dict(channels.counted))


def lacking(marks: Mapping[int, ChannelMarks]) -> dict[int, dict[int, int]]:
    """Say which partitions have to go further, each with what of whom must have counted."""
    found: dict[int, dict[int, int]] = {}
    for sender, sent in marks.items():
        for receiver, through in sent.acked.items():
            if receiver in marks and marks[receiver].counted.get(sender, 0) < through:
                found.setdefault(receiver, {})[sender] = through
    return found


def settle(
    numbers: Iterable[int],
    marks_at: Callable[[int], ChannelMarks],
    further: Callable[[int, Mapping[int, int]], ChannelMarks],
) -> None:
    """Take partitions further until nobody was told of what is not there."""
    marks = {number: marks_at(number) for number in numbers}
    while wanted := lacking(marks):
        for number, counted in wanted.items():
            marks[number] = further(number, counted)
