"""Enrolment: a one-use token lets one node in, in one role, with one key (quantumqtt §9.2).

The book holds digests of tokens, never a token. A token is used up by the key that it is first
shown with: the same key may ask again while the token lasts, because an answer can be lost; any
other key is refused. What the request says about itself is never believed over the book.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Final

import msgspec

from clustor.security.errors import EnrolmentRefused, RegistryUnreadable, SecurityMisuse

TTL_MS_MAX: Final = 86_400_000
KEPT_MS: Final = 30 * 86_400_000
"""How long the book remembers a token after its end, so that a late use is named for what it is."""
TOKENS_MAX: Final = 10_000
NODE_ID_MAX: Final = 2**53 - 1

_Digest = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}$(?!\n)")]
_Millis = Annotated[int, msgspec.Meta(ge=0, le=2**53 - 1)]
_NodeNumber = Annotated[int, msgspec.Meta(ge=1, le=NODE_ID_MAX)]


class NodeRole(StrEnum):
    """What a node is let in as."""

    VOTER = "voter"
    OBSERVER = "observer"


class EnrolmentRefusal(StrEnum):
    """Why somebody was not let in. The spellings stand in audit logs."""

    UNKNOWN = "UnknownToken"
    USED = "TokenUsed"
    EXPIRED = "TokenExpired"
    WITHDRAWN = "TokenWithdrawn"
    OTHER_NODE = "TokenOfAnotherNode"
    OTHER_ROLE = "TokenOfAnotherRole"
    BAD_REQUEST = "BadRequest"


class TokenEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One token, known by its digest."""

    digest: _Digest
    node_id: _NodeNumber
    role: NodeRole
    issued_at_ms: _Millis
    expires_at_ms: _Millis
    issued_by: str
    used_at_ms: _Millis | None = None
    used_by_key: _Digest | None = None
    withdrawn_at_ms: _Millis | None = None

    def state(self, now_ms: int) -> str:
        """Say in a word what it is good for."""
        if self.withdrawn_at_ms is not None:
            return "withdrawn"
        if self.used_at_ms is not None:
            return "used"
        return "expired" if now_ms >= self.expires_at_ms else "open"


class TokenBook(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All tokens that are open, or ended lately."""

    tokens: Annotated[tuple[TokenEntry, ...], msgspec.Meta(max_length=TOKENS_MAX)] = ()
    format_version: int = 1


@dataclass(frozen=True, slots=True)
class EnrolmentRequest:
    """What somebody with a token asks for."""

    token_digest: str
    node_id: int
    role: str
    key_digest: str
    """SHA-256 of the public key, of which the request has proven possession."""


@dataclass(frozen=True, slots=True)
class Grant:
    """Let this node in: a certificate for `node_id`, and nothing else, may be signed."""

    node_id: int
    role: NodeRole
    repeated: bool
    """The same key asked before: its first answer may have been lost."""


def digest_of_token(secret: str) -> str:
    """Return the digest under which the book knows a token. Tokens have 256 random bits."""
    return hashlib.sha256(b"clustor enrolment token\0" + secret.encode()).hexdigest()


def issue_token(
    book: TokenBook,
    *,
    digest: str,
    node_id: int,
    role: NodeRole,
    ttl_ms: int,
    issued_by: str,
    now_ms: int,
) -> TokenBook:
    """Enter a token. Raises SecurityMisuse for a time, a node or a book that is out of bounds."""
    if not 0 < ttl_ms <= TTL_MS_MAX:
        raise SecurityMisuse("a token lasts at most a day", ttl_ms=ttl_ms)
    if not 1 <= node_id <= NODE_ID_MAX:
        raise SecurityMisuse("a node's number is at least 1", node_id=node_id)
    kept = tuple(entry for entry in book.tokens if now_ms < entry.expires_at_ms + KEPT_MS)
    if len(kept) >= TOKENS_MAX or any(entry.digest == digest for entry in kept):
        raise SecurityMisuse("the book takes no such token", tokens=len(kept))
    entry = TokenEntry(
        digest=digest,
        node_id=node_id,
        role=role,
        issued_at_ms=now_ms,
        expires_at_ms=now_ms + ttl_ms,
        issued_by=issued_by,
    )
    return msgspec.structs.replace(book, tokens=(*kept, entry))


def withdraw_tokens(book: TokenBook, node_id: int, now_ms: int) -> TokenBook:
    """End every open token of a node."""
    changed = tuple(
        msgspec.structs.replace(entry, withdrawn_at_ms=now_ms)
        if entry.node_id == node_id and entry.state(now_ms) == "open"
        else entry
        for entry in book.tokens
    )
    return msgspec.structs.replace(book, tokens=changed)


def redeem(book: TokenBook, request: EnrolmentRequest, now_ms: int) -> tuple[TokenBook, Grant]:
    """Use a token up. The new book must be durable before anything is signed.

    Raises EnrolmentRefused, and the book stays as it is: a guess must not burn a token.
    """
    entry = next((each for each in book.tokens if each.digest == request.token_digest), None)
    if entry is None:
        raise _refusal(EnrolmentRefusal.UNKNOWN, "no such token", request)
    if entry.withdrawn_at_ms is not None:
        raise _refusal(EnrolmentRefusal.WITHDRAWN, "the token was withdrawn", request)
    if entry.node_id != request.node_id:
        raise _refusal(EnrolmentRefusal.OTHER_NODE, "the token is another node's", request)
    if entry.role != request.role:
        raise _refusal(EnrolmentRefusal.OTHER_ROLE, "the token is for another role", request)
    if entry.used_at_ms is not None and entry.used_by_key != request.key_digest:
        raise _refusal(EnrolmentRefusal.USED, "the token was used", request)
    if now_ms >= entry.expires_at_ms:
        raise _refusal(EnrolmentRefusal.EXPIRED, "the token's time is over", request)
    grant = Grant(entry.node_id, entry.role, repeated=entry.used_at_ms is not None)
    if grant.repeated:
        return book, grant
    used = msgspec.structs.replace(entry, used_at_ms=now_ms, used_by_key=request.key_digest)
    tokens = tuple(used if each is entry else each for each in book.tokens)
    return msgspec.structs.replace(book, tokens=tokens), grant


def _refusal(
    because: EnrolmentRefusal, reason: str, request: EnrolmentRequest
) -> EnrolmentRefused:  # fmt: skip
    return EnrolmentRefused(because.value, reason, node=request.node_id)


def encode_book(book: TokenBook) -> bytes:
    return msgspec.json.encode(book, order="sorted") + b"\n"


def decode_book(data: bytes) -> TokenBook:
    """Read a book back; raises RegistryUnreadable: an unreadable book lets nobody in."""
    try:
        book = msgspec.json.decode(data, type=TokenBook)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise RegistryUnreadable("the book of tokens cannot be read") from error
    if book.format_version != 1:
        raise RegistryUnreadable("a book of a later release", version=book.format_version)
    return book
