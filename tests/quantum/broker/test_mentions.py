"""A message is found in an entry whatever brought it there, and nothing else is taken for it."""

from __future__ import annotations

import pytest

from quantum.broker import encode_command, encode_publishes
from quantum.broker.commands import OWN_ORIGIN, ChannelItems, Elapse, PublishOnce
from quantum.broker.items import Deliver, Forward, Item, Returned, Targeted, encode_item
from quantum.broker.mentions import MentionKind, MessageIdentity, mentions_in, stamp_of
from quantum.broker.message import FROM_V5, decode_record, encode_record

RECORD = encode_record(b"lamp/7", b"on", 1, b"", 0, b"publisher", 4, 9)
OTHER = encode_record(b"lamp/8", b"off", 1, b"", 0, b"publisher", 4, 10)
MESSAGE = decode_record(RECORD)[0]


def items(*given: Item) -> bytes:
    encoded = [encode_item(each) for each in given]
    return encode_command(ChannelItems(77, 2, list(range(1, len(given) + 1)), encoded))


FOUND = {
    "published": (encode_publishes(77, OWN_ORIGIN, 0, 0, [OTHER, RECORD]), None),
    "passed on": (encode_publishes(77, 2, 5, 1, [RECORD, OTHER]), 2),
    "taken": (encode_command(PublishOnce(77, [OTHER, RECORD])), None),
    "forwarded": (items(Deliver(OTHER), Forward(RECORD)), 2),
    "delivered": (items(Deliver(RECORD)), 2),
    "targeted": (items(Targeted(b"screen", 1, RECORD, 1, retain=False, identifier=0)), 2),
    "returned": (items(Returned(b"group", b"lamp/+", RECORD)), 2),
}


@pytest.mark.parametrize(("command", "origin"), FOUND.values(), ids=FOUND.keys())
def test_a_message_is_found_with_its_time_and_origin(command: bytes, origin: int | None) -> None:
    wanted = MessageIdentity.of(MESSAGE)
    found = [each for each in mentions_in([command]) if MessageIdentity.of(each.message) == wanted]
    assert [(each.at_ms, each.origin) for each in found] == [(77, origin)]
    assert wanted.needle in command and stamp_of(command) == 77


def test_flags_of_its_way_make_no_other_message() -> None:
    marked = encode_publishes(1, OWN_ORIGIN, 0, 0, [MESSAGE.record_with(FROM_V5)])
    (found,) = mentions_in([marked])
    assert MessageIdentity.of(found.message) == MessageIdentity.of(MESSAGE)
    assert found.kind is MentionKind.PUBLISHED


def test_bytes_that_are_no_command_are_passed_over() -> None:
    broken = [
        b"",
        b"\0short",
        encode_publishes(1, 0, 0, 0, [RECORD[:-1]]),
        b"\xff\xff",
        b"\x93\x63",
    ]
    good = encode_publishes(2, OWN_ORIGIN, 0, 0, [RECORD])
    assert [each.at_ms for each in mentions_in([*broken, good])] == [2]
    assert stamp_of(encode_command(Elapse(5))) == 5 and stamp_of(b"\xff\xff") == 0
