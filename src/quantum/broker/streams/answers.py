"""Replies of the section as bytes: what the one who asked is told, and what it has to wait for.

An answer may rest on items that other PRGs have to take first (a partition that joins a
transaction); the reply names their places in the channels, and the leader holds it until then.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Final

import msgspec

from quantum.broker.streams.group_commands import (
    HeartbeatAnswer,
    JoinedGeneration,
    MemberWaits,
    NewMemberId,
    SyncedAssignment,
)
from quantum.broker.streams.topics import TopicReply
from quantum.broker.streams.transaction_commands import ProducerGiven
from quantum.broker.streams.types import StreamRefusal

Awaited = list[tuple[int, int]]
"""(PRG, place in the channel to it) that must be taken before an answer leaves."""

_REFUSALS: Final = 0
_TOPIC: Final = 1
_KINDS: Final[tuple[type[Any], ...]] = (
    ProducerGiven,
    JoinedGeneration,
    MemberWaits,
    NewMemberId,
    SyncedAssignment,
    HeartbeatAnswer,
)
_FIRST_KIND: Final = 2
_NUMBER_OF: Final = {kind: number for number, kind in enumerate(_KINDS, _FIRST_KIND)}
_encode = msgspec.msgpack.Encoder().encode
_decoder: Final[msgspec.msgpack.Decoder[Any]] = msgspec.msgpack.Decoder(
    tuple[list[tuple[int, int]], Any]
)


def encode_reply(answer: Any, awaited: Awaited | None = None) -> bytes:
    """Encode an answer of topics, groups or transactions."""
    return _encode((awaited or [], _frozen(answer)))


def _frozen(answer: Any) -> Any:
    if answer is None:
        return None
    if isinstance(answer, StreamRefusal):
        return answer.name
    if isinstance(answer, TopicReply):
        name = None if answer.refusal is None else answer.refusal.name
        return [_TOPIC, answer.number, name, answer.reason]
    if isinstance(answer, tuple):
        return [_REFUSALS, [None if each is None else each.name for each in answer]]
    fields = [getattr(answer, each.name) for each in dataclasses.fields(answer)]
    return [_NUMBER_OF[type(answer)], *fields]


def decode_reply(reply: bytes) -> tuple[Awaited, Any] | None:
    """Decode an answer; None where the machine did not know what was asked."""
    try:
        awaited, frozen = _decoder.decode(reply)
        return awaited, _thawed(frozen)
    except (msgspec.DecodeError, msgspec.ValidationError, KeyError, IndexError, ValueError):
        return None


def _thawed(frozen: Any) -> Any:
    if frozen is None:
        return None
    if isinstance(frozen, str):
        return StreamRefusal[frozen]
    kind, *fields = frozen
    if kind == _REFUSALS:
        return tuple(None if each is None else StreamRefusal[each] for each in fields[0])
    if kind == _TOPIC:
        number, name, reason = fields
        return TopicReply(number, None if name is None else StreamRefusal[name], reason)
    made = _KINDS[kind - _FIRST_KIND]
    names = [each.name for each in dataclasses.fields(made)]
    return msgspec.convert(dict(zip(names, fields, strict=True)), made)
