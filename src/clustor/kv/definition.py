"""A store's definition as a document: the limits that all its replicas share (clustor §9.7).

    {"machine": "kv", "value_bytes_max": 65536}

What a document does not name is the default, so that equal documents give equal limits whatever
was in force before. Limits decide replies: they change at one entry of the log, never beside it.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from clustor.kv.errors import KvMisuse
from clustor.kv.snapshot import require_storable
from clustor.kv.types import KvLimits

DEFINITION_BYTES_MAX: Final = 64 * 1024
_PLAIN: Final = KvLimits()
_Few = Annotated[int, msgspec.Meta(ge=1, le=1 << 20)]
_Many = Annotated[int, msgspec.Meta(ge=1, le=1 << 40)]


class _Document(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    machine: Literal["kv"]
    key_bytes_max: _Few = _PLAIN.key_bytes_max
    value_bytes_max: _Many = _PLAIN.value_bytes_max
    txn_operations_max: _Few = _PLAIN.txn_operations_max
    reply_bytes_max: _Many = _PLAIN.reply_bytes_max
    events_max: _Many = _PLAIN.events_max
    events_bytes_max: _Many = _PLAIN.events_bytes_max
    clients_max: _Many = _PLAIN.clients_max
    client_replies_bytes_max: _Many = _PLAIN.client_replies_bytes_max


_decoder = msgspec.json.Decoder(_Document)


def decode_definition(encoded: bytes) -> KvLimits | None:
    """Read a definition; None: it is none of a key-value store that this version could keep."""
    if len(encoded) > DEFINITION_BYTES_MAX:
        return None
    try:
        document = _decoder.decode(encoded)
        limits = KvLimits(*(getattr(document, name) for name in KvLimits.__struct_fields__))
        require_storable(limits)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, KvMisuse):
        return None
    return limits
