"""The lines of an audit log: canonical JSON (RFC 8785), each with the digest of the one before.

event   somebody did something, and what became of it
file    the head of a file: which log, which file, and what a crash left at the end of older ones
seal    an Ed25519 signature over every line since the seal before it

A line's digest is SHA-256 of its bytes without the newline. The first line of a log has 64 zeros
for its `previous`. Numbers are integers and member names ASCII, so msgspec's sorted encoding is
the canonical one.
"""

from __future__ import annotations

import base64
import hashlib
import re
from typing import Annotated, Final, NewType, TypeAlias

import msgspec

LineDigest = NewType("LineDigest", str)
"""SHA-256 of a line, in hex."""
KeyId = NewType("KeyId", str)
"""Names a public key: the first 16 hex digits of its SHA-256."""

NOTHING: Final = LineDigest("0" * 64)
"""What the first line of a log has for its `previous`."""
LINE_BYTES_MAX: Final = 48 << 10
TEXT_CHARACTERS_MAX: Final = 512
FACT_CHARACTERS_MAX: Final = 128
FACTS_MAX: Final = 16
_DIGEST_PATTERN: Final = r"^[0-9a-f]{64}$(?!\n)"

Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**53 - 1)]
HexDigest: TypeAlias = Annotated[str, msgspec.Meta(pattern=_DIGEST_PATTERN)]
Text: TypeAlias = Annotated[str, msgspec.Meta(max_length=TEXT_CHARACTERS_MAX)]
FactName: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"^[a-z][a-z0-9_]{0,63}$(?!\n)")]
Fact: TypeAlias = Annotated[str, msgspec.Meta(max_length=FACT_CHARACTERS_MAX)]
Facts: TypeAlias = Annotated[dict[FactName, Fact], msgspec.Meta(max_length=FACTS_MAX)]


class AuditEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Who did what to which object, when, and what became of it. Never a secret, nor a payload."""

    who: Text
    what: Text
    outcome: Text
    """`Done`, or the name of the refusal."""
    at_ms: int
    object: Text = ""
    tenant: Text = ""
    trace_id: Text = ""
    facts: dict[str, str] = msgspec.field(default_factory=dict)


class EventLine(
    msgspec.Struct, frozen=True, kw_only=True, tag="event", tag_field="kind",
    forbid_unknown_fields=True,
):  # fmt: skip
    """An event at its place in the log."""

    sequence: Count
    previous: HexDigest
    who: Text
    what: Text
    outcome: Text
    at_ms: Count
    object: Text
    tenant: Text
    trace_id: Text
    facts: Facts

    def event(self) -> AuditEvent:
        """Return what was recorded."""
        return AuditEvent(
            who=self.who,
            what=self.what,
            outcome=self.outcome,
            at_ms=self.at_ms,
            object=self.object,
            tenant=self.tenant,
            trace_id=self.trace_id,
            facts=self.facts,
        )


class Leftover(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a crash left behind the last whole line of a file; it stays where it is."""

    file: Count
    offset: Count
    bytes: Count
    sha256: HexDigest


class FileLine(
    msgspec.Struct, frozen=True, kw_only=True, tag="file", tag_field="kind",
    forbid_unknown_fields=True,
):  # fmt: skip
    """The first line of each file."""

    sequence: Count
    previous: HexDigest
    log_id: Text
    file: Count
    at_ms: Count
    unsigned_lines: Count
    """How many lines before this one had no signature when the file was begun: after a crash."""
    leftovers: tuple[Leftover, ...]


class SealLine(
    msgspec.Struct, frozen=True, kw_only=True, tag="seal", tag_field="kind",
    forbid_unknown_fields=True,
):  # fmt: skip
    """A signature over all lines from `first` to this one; the seal before it is named too."""

    sequence: Count
    previous: HexDigest
    log_id: Text
    batch: Count
    first: Count
    last_sealed: Count
    """The place of the seal before this one; 0 before the first."""
    last_seal: HexDigest
    """The digest of the seal before this one."""
    at_ms: Count
    key_id: Text
    signature: Text
    """Ed25519 in base64, over `sealed_bytes`."""


class Anchor(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The newest seal, kept in a file of its own: a log that ends before it was cut."""

    log_id: Text
    sequence: Count
    digest: HexDigest
    key_id: Text
    signature: Text


AnyLine: TypeAlias = EventLine | FileLine | SealLine

_encoder = msgspec.json.Encoder(order="sorted")
_decoder: Final[msgspec.json.Decoder[AnyLine]] = msgspec.json.Decoder(AnyLine)
_anchors: Final = msgspec.json.Decoder(Anchor)


def bounded_event(event: AuditEvent) -> AuditEvent:
    """Clip what a line cannot hold: whoever is audited must not be able to prevent it by length.

    A clipped text ends in `…`; what is no Unicode becomes `?`.
    """
    kept = list(event.facts.items())[:FACTS_MAX]
    return AuditEvent(
        who=_clip(event.who, TEXT_CHARACTERS_MAX),
        what=_clip(event.what, TEXT_CHARACTERS_MAX),
        outcome=_clip(event.outcome, TEXT_CHARACTERS_MAX),
        at_ms=min(max(event.at_ms, 0), 2**53 - 1),
        object=_clip(event.object, TEXT_CHARACTERS_MAX),
        tenant=_clip(event.tenant, TEXT_CHARACTERS_MAX),
        trace_id=_clip(event.trace_id, TEXT_CHARACTERS_MAX),
        facts={_fact_name(name): _clip(value, FACT_CHARACTERS_MAX) for name, value in kept},
    )


def _clip(text: str, characters_max: int) -> str:
    clean = text.encode("utf-8", "replace").decode()
    return clean if len(clean) <= characters_max else clean[: characters_max - 1] + "…"


def _fact_name(name: str) -> str:
    clean = re.sub(r"[^a-z0-9_]", "_", name.lower())[:63]
    return clean if clean[:1].isalpha() else f"f{clean}"


def encode_line(line: AnyLine) -> bytes:
    """Encode a line, without its newline."""
    encoded = _encoder.encode(line)
    assert len(encoded) <= LINE_BYTES_MAX, "bounded events make bounded lines"
    return encoded


def decode_line(data: bytes) -> AnyLine | None:
    """Read a line, or return None for bytes that `encode_line` cannot have made."""
    try:
        line = _decoder.decode(data)
        return line if _encoder.encode(line) == data else None
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None


def encode_anchor(anchor: Anchor) -> bytes:
    return _encoder.encode(anchor) + b"\n"


def decode_anchor(data: bytes) -> Anchor | None:
    """Read an anchor, or return None."""
    try:
        return _anchors.decode(data)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None


def digest_of(line: bytes) -> LineDigest:
    """Return the digest under which the next line names this one."""
    return LineDigest(hashlib.sha256(line).hexdigest())


def key_id_of(public_key: bytes) -> KeyId:
    """Name a public key (32 raw bytes)."""
    return KeyId(hashlib.sha256(b"clustor audit key" + public_key).hexdigest()[:16])


def sealed_bytes(seal: SealLine) -> bytes:
    """Return what a seal's signature covers: the seal without its signature.

    `previous` chains every line before it, so that one signature covers them all.
    """
    return b"AuditLogKey\0seal\0" + _encoder.encode(msgspec.structs.replace(seal, signature=""))


def anchored_bytes(anchor: Anchor) -> bytes:
    """Return what an anchor's signature covers."""
    bare = msgspec.structs.replace(anchor, signature="")
    return b"AuditLogKey\0anchor\0" + _encoder.encode(bare)


def encode_signature(signature: bytes) -> str:
    return base64.b64encode(signature).decode()


def decode_signature(text: str) -> bytes:
    """Return the bytes of a signature; what is none becomes empty, and verifies nothing.

    Base64 has spare bits in its last character: another spelling of the same bytes is none.
    """
    try:
        signature = base64.b64decode(text, validate=True)
    except ValueError:
        return b""
    return signature if encode_signature(signature) == text else b""
