"""Messages between simulated nodes as bytes: what is sent is copied, never shared."""

from __future__ import annotations

from typing import Final, get_args

import msgspec

from clustor.raft.messages import Message
from clustor.replica.transfer import Transfer, decode_transfer, encode_transfer

_KINDS: Final = {kind.__name__: kind for kind in get_args(Message)}
_DECODERS: Final = {name: msgspec.msgpack.Decoder(kind) for name, kind in _KINDS.items()}
_TRANSFER: Final = "Transfer"


def encode_envelope(group: int, message: Message | Transfer) -> bytes:
    """Write the group's number, the kind and the message."""
    if isinstance(message, Transfer):
        return msgspec.msgpack.encode((group, _TRANSFER, encode_transfer(message)))
    body = msgspec.msgpack.encode(message)
    return msgspec.msgpack.encode((group, type(message).__name__, body))


def decode_envelope(data: bytes) -> tuple[int, Message | Transfer]:
    group, kind, body = msgspec.msgpack.decode(data, type=tuple[int, str, bytes])
    if kind == _TRANSFER:
        return group, decode_transfer(body)
    message: Message = _DECODERS[kind].decode(body)
    return group, message
