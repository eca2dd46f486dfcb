"""One event of the journal as one line of canonical JSON, or as text for people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

MESSAGE_CHARACTERS_MAX: Final = 8_192
FIELDS: Final = ("ts", "level", "logger", "node_id", "event", "message")
"""What every line has; some have `facts` and `error` too. Members ascend by name."""

_encode = msgspec.json.Encoder(order="deterministic").encode


@dataclass(frozen=True, slots=True)
class Event:
    """One event. `event` is its words before the facts were put in: the same for all its kind."""

    at_ms: int
    level: str
    logger: str
    node_id: int
    event: str
    message: str
    facts: Mapping[str, object]
    error: str | None = None


def encode_line(event: Event) -> bytes:
    """Write an event as one line; what is too long is cut, and says so."""
    row: dict[str, object] = {
        "ts": event.at_ms,
        "level": event.level,
        "logger": event.logger,
        "node_id": event.node_id,
        "event": _cut(event.event),
        "message": _cut(event.message),
    }
    if event.facts:
        row["facts"] = {name: _plain(value) for name, value in sorted(event.facts.items())}
    if event.error is not None:
        row["error"] = _cut(event.error)
    return _encode(row)


def _cut(text: str) -> str:
    if len(text) <= MESSAGE_CHARACTERS_MAX:
        return text
    return text[:MESSAGE_CHARACTERS_MAX] + f"… and {len(text) - MESSAGE_CHARACTERS_MAX} more"


def _plain(value: object) -> object:
    """Keep what JSON knows, and write the rest as text."""
    if value is None or isinstance(value, bool | int | float):
        return value
    return _cut(value.decode(errors="replace") if isinstance(value, bytes) else str(value))
