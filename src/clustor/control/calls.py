"""A call as it stands in the log, and the answer to it.

The proposing leader stamps the time and the caller's identity, as its certificate proved it.
What the caller may do is decided by the machine, from the RBAC manifest in the same log.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import msgspec

from clustor.control.objects import canonical
from clustor.control.types import Identity, Name, RefusalCode, Stamp


class Command(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    gc=False,
    tag_field="kind",
    tag=True,
):
    """The root of all commands; `kind` in their JSON is the name of the class."""

    def essence(self) -> object:
        """Return what a repeated request must have in common with the first one."""
        return self


class Caller(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """Who calls: a SPIFFE identity, and the break-glass token that is presented, if any."""

    identity: Identity
    break_glass: Name | None = None


class Call(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """One call. Its bytes are a JSON object; those of a key-value command are a msgpack array."""

    caller: Caller
    request_id: Name
    now_ms: Stamp
    command: msgspec.Raw


class Done(msgspec.Struct, frozen=True, tag_field="outcome", gc=False):
    """The call stands, at `revision`."""

    revision: int
    result: dict[str, Any]


class Refused(msgspec.Struct, frozen=True, tag_field="outcome", gc=False):
    """Nothing was changed but the audit trail; `reason` says what to do about it."""

    code: RefusalCode
    reason: str
    facts: dict[str, Any]


Answer: TypeAlias = Done | Refused

_DEPTH_MAX: Final = 32  # rounds; each takes away at least the innermost level
_NO_BRACKETS: Final = bytes(set(range(256)) - set(b"{}[]"))

_call_decoder = msgspec.json.Decoder(Call)
_answer_decoder: msgspec.json.Decoder[Answer] = msgspec.json.Decoder(Answer)


def is_call(encoded: bytes) -> bool:
    """Tell a call from a key-value command by its first byte."""
    return encoded[:1] == b"{"


def decode_call(encoded: bytes) -> Call:
    """Read a call, its command still as bytes; raises msgspec.DecodeError, UnicodeDecodeError."""
    if not _is_shallow(encoded):
        raise msgspec.DecodeError("nested too deep, or not closed")
    return _call_decoder.decode(encoded)


def _is_shallow(encoded: bytes) -> bool:
    """Say whether nothing is nested deeper than a command can be.

    How deep a decoder gets before it gives up depends on the caller's stack. Replicas must not:
    what is too deep is refused before anything is decoded.
    """
    if encoded.count(b"{") + encoded.count(b"[") <= _DEPTH_MAX:
        return True
    without_escapes = encoded.replace(b"\\\\", b"").replace(b'\\"', b"")
    outside_strings = b"".join(without_escapes.split(b'"')[::2])
    brackets = outside_strings.translate(None, _NO_BRACKETS)
    for _ in range(_DEPTH_MAX):
        if not brackets:
            return True
        brackets = brackets.replace(b"{}", b"").replace(b"[]", b"")
    return not brackets


def encode_call(caller: Caller, request_id: str, now_ms: int, command: Command) -> bytes:
    """Give the bytes of a call, as the leader proposes it."""
    return encode_passed_call(caller, request_id, now_ms, canonical(command))


def encode_passed_call(caller: Caller, request_id: str, now_ms: int, command: bytes) -> bytes:
    """Give the bytes of a call whose command another node has encoded."""
    return canonical(
        Call(caller=caller, request_id=request_id, now_ms=now_ms, command=msgspec.Raw(command))
    )


def decode_answer(encoded: bytes) -> Answer:
    """Read an answer back; raises msgspec.DecodeError."""
    return _answer_decoder.decode(encoded)
