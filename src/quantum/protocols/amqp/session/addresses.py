"""Addresses of AMQP clients: what each names."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Final
from urllib.parse import unquote

from quantum.broker.queues import NAME_BYTES_MAX

_QUEUES: Final = "/queues/"
_STREAMS: Final = "/streams/"
_TOPICS: Final = "/topics/"
_SCHEMES: Final = {"queue://": _QUEUES, "topic://": _TOPICS}
_DIGITS_MAX: Final = 9
DEAD_SUFFIXES: Final = ("/$dead-letters", "/$deadletterqueue")


class NodeKind(Enum):
    """What an address leads to."""

    QUEUE = "queue"
    STREAM = "stream"
    TOPIC = "topic"
    MANAGEMENT = "$management"
    CBS = "$cbs"


@dataclass(frozen=True, slots=True)
class LinkAddress:
    """One address, understood."""

    kind: NodeKind
    name: str
    is_dead: bool = False
    partition: int | None = None
    """The one partition of a stream that is meant; None: all of them."""

    def __str__(self) -> str:
        if self.kind in (NodeKind.MANAGEMENT, NodeKind.CBS):
            return str(self.kind.value)
        if self.partition is not None:
            return f"{_STREAMS}{self.name}/{self.partition}"
        return f"/{self.kind.value}s/{self.name}" + (DEAD_SUFFIXES[0] if self.is_dead else "")


def read_address(text: str, capabilities: tuple[str, ...] = ()) -> LinkAddress | None:
    """Understand an address; None: it is none that is served here.

    A bare name is a queue, unless a capability says `topic`.
    """
    for scheme, prefix in _SCHEMES.items():
        if text.startswith(scheme):
            text = prefix + text.removeprefix(scheme)
    if text in (NodeKind.MANAGEMENT.value, NodeKind.CBS.value):
        return LinkAddress(NodeKind(text), text)
    if text.startswith(_TOPICS):
        return _named(NodeKind.TOPIC, text.removeprefix(_TOPICS))
    if text.startswith(_STREAMS):
        return _stream(text.removeprefix(_STREAMS))
    if not text.startswith(_QUEUES) and "topic" in capabilities:
        return _named(NodeKind.TOPIC, text)
    if text.startswith("/") and not text.startswith(_QUEUES):
        return None
    name, is_dead = text.removeprefix(_QUEUES), False
    for suffix in DEAD_SUFFIXES:
        if name.lower().endswith(suffix):
            name, is_dead = name[: -len(suffix)], True
    name = unquote(name) if text.startswith(_QUEUES) else name
    return _named(NodeKind.QUEUE, name, is_dead=is_dead)


def _stream(text: str) -> LinkAddress | None:
    """Understand `NAME` and `NAME/PARTITION`; no name of a stream has a slash."""
    name, slash, number = text.partition("/")
    found = _named(NodeKind.STREAM, unquote(name))
    if found is None or not slash:
        return found
    is_number = number.isascii() and number.isdigit() and len(number) <= _DIGITS_MAX
    return replace(found, partition=int(number)) if is_number else None


def _named(kind: NodeKind, name: str, *, is_dead: bool = False) -> LinkAddress | None:
    size = len(name.encode(errors="replace"))
    if not 0 < size <= NAME_BYTES_MAX or "\0" in name:
        return None
    return LinkAddress(kind, name, is_dead)
