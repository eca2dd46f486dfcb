"""What two peers tell each other before any log traffic, and what they may then use (§8.3).

Extensions travel as a bitmask in which an extension's id is the number of its bit: WideFrame
(0x10) is `1 << 0x10`. Taken as bit patterns the ids would collide, since 0x11 contains 0x10.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from .errors import WireCatalogMismatch
from .fields import COUNTER32, TEXT, U8, U16, U64, Nested, Optional, enum
from .types import (
    KIB,
    RPC_BODY_BYTES_MAX,
    WIDE_BODY_BYTES_MAX,
    Dialect,
    NegotiationOutcome,
    UnixMs,
    WireEnum,
)


class WireExtension(WireEnum):
    """The value is the extension's id, and the number of its bit in the mask."""

    WIDE_FRAME = 0x10
    WIDE_COUNT = 0x11
    FORWARD_COMPAT = 0x20


# One chunk of a ChunkedList with its headers must fit the smallest body a peer may insist on.
BODY_BYTES_MAX_FLOOR = 128 * KIB


@dataclass(frozen=True, slots=True)
class CatalogVersion:
    major: Annotated[int, U8]
    minor: Annotated[int, U8]


@dataclass(frozen=True, slots=True)
class Handshake:
    """The first frame in either direction.

    `forward_parse_max_minor` is there exactly when ForwardCompat is advertised: the newest
    minor whose tails this peer can skip.
    """

    catalog_version: Annotated[CatalogVersion, Nested(CatalogVersion)]
    max_body_len: Annotated[int, COUNTER32]
    extensions: Annotated[int, U64]
    forward_parse_max_minor: Annotated[int | None, Optional(U8)] = None

    def advertises(self, extension: WireExtension) -> bool:
        return bool(self.extensions >> extension & 1)


@dataclass(frozen=True, slots=True)
class Negotiated:
    """The outcome: what both peers know, advertised and may use."""

    dialect: Dialect
    extensions: frozenset[WireExtension]

    def require(self, extension_id: int) -> None:
        """Raise WireCatalogMismatch if a peer uses an extension that was not negotiated."""
        if extension_id not in self.extensions:
            raise WireCatalogMismatch("extension was not negotiated", extension=extension_id)


@dataclass(frozen=True, slots=True)
class NegotiationRecord:
    """A line of `bundle_negotiation_log` (§14.2): what was said, and what came of it."""

    recorded_at: Annotated[UnixMs, U64]
    peer: Annotated[str, TEXT]
    local: Annotated[Handshake, Nested(Handshake)]
    remote: Annotated[Handshake, Nested(Handshake)]
    outcome: Annotated[NegotiationOutcome, enum(NegotiationOutcome)]
    error_code: Annotated[int | None, Optional(U16)] = None


CATALOG_VERSION = CatalogVersion(0, 1)


def extension_mask(*extensions: WireExtension) -> int:
    """Return the bitmask that advertises `extensions`."""
    return sum(1 << extension for extension in set(extensions))


def local_handshake() -> Handshake:
    """Return what this build offers: every extension, and tails of one minor ahead."""
    return Handshake(
        CATALOG_VERSION,
        WIDE_BODY_BYTES_MAX,
        extension_mask(*WireExtension),
        CATALOG_VERSION.minor + 1,
    )


def negotiate(local: Handshake, remote: Handshake) -> Negotiated:
    """Agree, or raise WireCatalogMismatch: then the transport closes before log traffic.

    Both sides compute the same outcome from the same pair. Extensions that this build does
    not know are left out, since only what both sides know can be used.
    """
    _check_offer(local)
    _check_offer(remote)
    _check_versions(local, remote)
    agreed = frozenset(
        extension
        for extension in WireExtension
        if local.advertises(extension) and remote.advertises(extension)
    )
    return Negotiated(_dialect(local, remote, agreed), agreed)


def record_negotiation(
    local: Handshake, remote: Handshake, *, peer: str, recorded_at: UnixMs
) -> NegotiationRecord:
    """Return the log line for this pair; it says the same as `negotiate` does."""
    try:
        negotiate(local, remote)
    except WireCatalogMismatch as refusal:
        return NegotiationRecord(
            recorded_at, peer, local, remote, NegotiationOutcome.REFUSED, refusal.code
        )
    return NegotiationRecord(recorded_at, peer, local, remote, NegotiationOutcome.AGREED)


def _check_offer(offer: Handshake) -> None:
    """Refuse an offer that contradicts itself, whoever made it."""
    wide = offer.advertises(WireExtension.WIDE_FRAME)
    limit = WIDE_BODY_BYTES_MAX if wide else RPC_BODY_BYTES_MAX
    if not BODY_BYTES_MAX_FLOOR <= offer.max_body_len <= limit:
        raise WireCatalogMismatch(
            "max_body_len out of bounds", max_body_len=offer.max_body_len, limit=limit
        )
    parse_max = offer.forward_parse_max_minor
    if offer.advertises(WireExtension.FORWARD_COMPAT) != (parse_max is not None):
        raise WireCatalogMismatch("ForwardCompat and forward_parse_max_minor come together only")
    if parse_max is not None and parse_max < offer.catalog_version.minor:
        raise WireCatalogMismatch("a peer must parse its own minor", parse_max=parse_max)


def _check_versions(local: Handshake, remote: Handshake) -> None:
    ours, theirs = local.catalog_version, remote.catalog_version
    if ours.major != theirs.major:
        raise WireCatalogMismatch("catalog majors differ", local=ours.major, remote=theirs.major)
    # A peer without ForwardCompat parses its own minor and no later one. With neither side
    # advertising it the two inequalities leave equality, as §14.2 wants.
    if theirs.minor > _parse_max_minor(local) or ours.minor > _parse_max_minor(remote):
        raise WireCatalogMismatch("catalog minors differ", local=ours.minor, remote=theirs.minor)


def _parse_max_minor(offer: Handshake) -> int:
    if offer.forward_parse_max_minor is None:
        return offer.catalog_version.minor
    return offer.forward_parse_max_minor


def _dialect(local: Handshake, remote: Handshake, agreed: frozenset[WireExtension]) -> Dialect:
    return Dialect(
        minor=min(local.catalog_version.minor, remote.catalog_version.minor),
        wide_frame=WireExtension.WIDE_FRAME in agreed,
        wide_count=WireExtension.WIDE_COUNT in agreed,
        forward_compat=WireExtension.FORWARD_COMPAT in agreed,
        # An offer without WideFrame is at most 4 MiB, so the smaller one keeps that cap.
        body_bytes_max=min(local.max_body_len, remote.max_body_len),
    )
