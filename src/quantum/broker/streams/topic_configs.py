"""What a topic can be told: each key that is taken has an effect, any other is refused by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Final

RETENTION_MS: Final = "retention.ms"
RETENTION_BYTES: Final = "retention.bytes"
MESSAGE_BYTES_MAX: Final = "max.message.bytes"
TIMESTAMP_TYPE: Final = "message.timestamp.type"
CLEANUP_POLICY: Final = "cleanup.policy"
COMPRESSION: Final = "compression.type"
DELETE_RETENTION_MS: Final = "delete.retention.ms"
COMPACTION_LAG_MS: Final = "min.compaction.lag.ms"
DIRTY_RATIO: Final = "min.cleanable.dirty.ratio"

_NUMBER_MAX: Final = (1 << 63) - 1


def _is_number(first: int, last: int) -> Callable[[str], bool]:
    def check(value: str) -> bool:
        digits = value.removeprefix("-")
        return (
            digits.isascii()
            and digits.isdigit()
            and len(digits) <= 19
            and first <= int(value) <= last
        )

    return check


def _is_ratio(value: str) -> bool:
    whole, _, part = value.partition(".")
    is_decimal = (
        value.isascii() and len(value) <= 20 and whole.isdigit() and (part or "0").isdigit()
    )
    return is_decimal and 0.0 <= float(value) <= 1.0


def _is_one_of(*values: str) -> Callable[[str], bool]:
    return lambda value: value in values


DEFAULTS: Final[Mapping[str, str]] = MappingProxyType(
    {
        RETENTION_MS: "604800000",
        RETENTION_BYTES: "-1",
        MESSAGE_BYTES_MAX: "1048588",
        TIMESTAMP_TYPE: "CreateTime",
        CLEANUP_POLICY: "delete",
        COMPRESSION: "producer",
        DELETE_RETENTION_MS: "86400000",
        COMPACTION_LAG_MS: "0",
        DIRTY_RATIO: "0.5",
    }
)
"""What holds where a topic says nothing; the values are Apache Kafka's own."""

_CHECKS: Final[Mapping[str, Callable[[str], bool]]] = {
    RETENTION_MS: _is_number(-1, _NUMBER_MAX),
    RETENTION_BYTES: _is_number(-1, _NUMBER_MAX),
    MESSAGE_BYTES_MAX: _is_number(0, 16 << 20),
    TIMESTAMP_TYPE: _is_one_of("CreateTime", "LogAppendTime"),
    CLEANUP_POLICY: _is_one_of("delete", "compact", "compact,delete", "delete,compact"),
    COMPRESSION: _is_one_of("producer"),
    DELETE_RETENTION_MS: _is_number(0, _NUMBER_MAX),
    COMPACTION_LAG_MS: _is_number(0, _NUMBER_MAX),
    DIRTY_RATIO: _is_ratio,
}
_OF_COMPACTION: Final = frozenset((DELETE_RETENTION_MS, COMPACTION_LAG_MS, DIRTY_RATIO))


def is_compacted(configs: Mapping[str, str]) -> bool:
    """Say whether a topic keeps only the last record of each key."""
    return "compact" in configs.get(CLEANUP_POLICY, "").split(",")


def is_trimmed(configs: Mapping[str, str]) -> bool:
    """Say whether a topic lets go of what is too old, or too much."""
    return "delete" in configs.get(CLEANUP_POLICY, DEFAULTS[CLEANUP_POLICY]).split(",")


def speak_of_compaction(configs: Iterable[tuple[str, str]]) -> bool:
    """Say whether configs have a word that the builds before compaction refuse."""
    return any(
        key in _OF_COMPACTION or (key == CLEANUP_POLICY and value != DEFAULTS[CLEANUP_POLICY])
        for key, value in configs
    )


def refuse_configs(configs: Iterable[tuple[str, str]]) -> str:
    """Say in one sentence why configs cannot be in force; empty where they can."""
    seen = set()
    for key, value in configs:
        check = _CHECKS.get(key)
        if check is None:
            return f"no such config of a topic here: {key[:64]}"
        if key in seen:
            return f"said twice: {key}"
        if not check(value):
            return f"not a value that {key} can have: {value[:64]}"
        seen.add(key)
    return ""
