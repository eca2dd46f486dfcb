"""Messages and entries as words of a scenario, both ways."""

from __future__ import annotations

from dataclasses import fields
from enum import Enum
from typing import Any

from clustor.log.types import Entry, EntryKind, IoWriterMode, LogIndex, Term
from clustor.raft import messages
from clustor.raft.core import Core
from clustor.raft.membership import Membership
from clustor.raft.messages import Message
from clustor.raft.types import ReplicaId

SHORT = {
    "last_log_term": "last_term",
    "last_log_index": "last",
    "durability_mode_epoch": "epoch",
    "vote_granted": "granted",
    "prev_log_index": "prev",
    "prev_log_term": "prev_term",
    "commit_index": "commit",
    "match_index": "match",
    "last_fsynced_index": "index",
    "vote_annotation": "annotation",
}
LONG = {short: long for long, short in SHORT.items()}
DULL = {
    "sender",
    "partition_id",
    "read_seq",
    "sent_ms",
    "applied_index",
    "sm_durable_index",
    "io_writer_mode",
    "segment_seq",
    "lease_epoch",
    "wal_committed_index",
    "quorum_applied_index",
    "quorum_sm_durable_index",
    "rtt_ms",
    "routing_epoch",
}


def describe(message: Message) -> str:
    """Write a message in one line; what is zero, empty or dull is left out."""
    words = [type(message).__name__]
    for field in fields(message):
        value = getattr(message, field.name)
        name = SHORT.get(field.name, field.name)
        if isinstance(value, list):
            if value:
                words.append(describe_entries(value))
        elif isinstance(value, bool):
            if value or field.name in ("vote_granted", "ok"):
                words.append(f"{name}={'yes' if value else 'no'}")
        elif field.name not in DULL and value and value != "None":
            named = isinstance(value, Enum) and not isinstance(value, str)
            words.append(f"{name}={value.name if named else value}")
    return " ".join(words)


def describe_entries(entries: list[Entry]) -> str:
    """Write entries as `index:term`, with their kind where it is not data."""
    words = []
    for entry in entries:
        kind = "" if entry.kind is EntryKind.DATA else f"({entry.kind.name})"
        words.append(f"{entry.index}:{entry.term}{kind}")
    return "[" + " ".join(words) + "]"


def read_message(name: str, facts: dict[str, str], core: Core) -> Message:
    """Make the message of a `recv` line; what it does not say is zero, the term is ours."""
    kind: Any = getattr(messages, name)
    values: dict[str, Any] = {}
    for field in fields(kind):
        values[field.name] = _default(field.name, core)
    for word, text in facts.items():
        field_name = {"from": "sender"}.get(word, LONG.get(word, word))
        assert field_name in values, f"{name} has no {word}"
        values[field_name] = _value(field_name, text)
    if "entries" in values:
        first = values.get("prev_log_index", 0) + 1
        values["entries"] = [
            Entry(Term(int(term)), LogIndex(first + at), b"%d" % (first + at))
            for at, term in enumerate(values["entries"])
        ]
    message: Message = kind(**values)
    return message


def _default(name: str, core: Core) -> object:
    defaults: dict[str, object] = {
        "term": core.hard.term,
        "entries": [],
        "io_writer_mode": IoWriterMode.FIXED_URING,
        "configuration": Membership(voters=core.config.voters),
        "durability_mode": core.hard.durability_mode,
        "vote_annotation": "None",
        "durability_mode_epoch": core.hard.durability_mode_epoch,
        "high_rtt": None,
        "ok": True,
        "vote_granted": True,
        "transfer": False,
        "repairing": False,
        "installing": False,
        "sender": ReplicaId(2),
    }
    return defaults.get(name, 0)


def _value(name: str, text: str) -> object:
    if name == "entries":
        return text.split(",")
    if text in ("yes", "no"):
        return text == "yes"
    return int(text)
