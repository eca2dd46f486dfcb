"""Read a JetStream ACK subject: which revision a message is, and how many are still to come."""

from __future__ import annotations

from typing import Final, NamedTuple

_LEGACY_TOKENS: Final = 9
_MODERN_TOKENS: Final = (11, 12)


class AckFields(NamedTuple):
    """What the subject says; `stamp_ns` is the server's time of the message."""

    stream_sequence: int
    consumer_sequence: int
    stamp_ns: int
    pending: int


def parse_ack(reply: str) -> AckFields | None:
    """Parse `$JS.ACK.…` of either format, or give None for anything else.

    Legacy (9 tokens) has the stream sequence at 5; modern (11 or 12) has a domain and an account
    in front and it is at 7. Never from the end: the last token looks like a sequence and is the
    count of pending messages, or a random token.
    """
    tokens = reply.split(".")
    count = len(tokens)
    if count == _LEGACY_TOKENS:
        _, ack, _, _, _, stream, consumer, stamp, pending = tokens
    elif count in _MODERN_TOKENS:
        ack = tokens[1]
        stream, consumer, stamp, pending = tokens[7:11]
    else:
        return None
    try:
        return (
            AckFields(int(stream), int(consumer), int(stamp), int(pending))
            if ack == "ACK"
            else None
        )
    except ValueError:
        return None
