"""What can go wrong between two nodes, with the codes of clustor §8.4.

WireError                        the peer's bytes break the protocol: close that connection
├── WireBodyTooShort        1001
├── WireBodyTooLarge        1002
├── WireUnknownField        1003
├── WireChunkError               what breaks a ChunkedList
│   ├── WireChunkMissing           1004
│   ├── WireChunkOverlap           1005
│   ├── WireChunkMissingCrc        1006
│   ├── WireChunkCrcMismatch       1007
│   ├── WireChunkDuplicateItem     1008
│   └── WireChunkReassemblyAborted 1009
└── WireCatalogMismatch     1010

WireMisuse                       our caller asked for bytes that the catalog cannot mean
"""

from __future__ import annotations

from typing import ClassVar

MAIN_CODES = range(1000, 1090)
VENDOR_CODES = range(1090, 1100)  # given back if Clustor later assigns the number
RESERVED_CODES = range(1100, 1200)


class _Failure(Exception):
    """A sentence for people in `reason`, and `facts` for machines; never a payload."""

    def __init__(self, reason: str, **facts: object) -> None:
        super().__init__(reason)
        self.reason = reason
        self.facts = facts

    def __str__(self) -> str:
        details = ", ".join(f"{name}={value}" for name, value in self.facts.items())
        return f"{self.reason} ({details})" if details else self.reason


class WireMisuse(_Failure, ValueError):
    """Our caller asked for bytes that the catalog cannot mean, or fed a parser out of turn."""


class WireError(_Failure):
    """The root of what a peer can do wrong; `code` is the number of clustor §8.4."""

    code: ClassVar[int]


class WireBodyTooShort(WireError):
    """Fewer bytes than promised, or than the mandatory fields need."""

    code = 1001


class WireBodyTooLarge(WireError):
    """More bytes or items than the cap allows; refused before they are held."""

    code = 1002


class WireUnknownField(WireError):
    """Bytes that the catalog gives no meaning: a discriminant, a flag, a text, a tail."""

    code = 1003


class WireChunkError(WireError):
    """The root of what breaks a ChunkedList; never raised itself."""


class WireChunkMissing(WireChunkError):
    """The list ended with items still missing."""

    code = 1004


class WireChunkOverlap(WireChunkError):
    """Two different chunks claim the same item."""

    code = 1005


class WireChunkMissingCrc(WireChunkError):
    """The chunk announces a checksum and ends before it."""

    code = 1006


class WireChunkCrcMismatch(WireChunkError):
    """The chunk's checksum does not match its bytes."""

    code = 1007


class WireChunkDuplicateItem(WireChunkError):
    """The same item stands twice in one list."""

    code = 1008


class WireChunkReassemblyAborted(WireChunkError):
    """The list as a whole breaks a bound, or an earlier chunk already broke it."""

    code = 1009


class WireCatalogMismatch(WireError):
    """The peers share no catalog, or one of them uses what was not negotiated."""

    code = 1010


WIRE_ERRORS: tuple[type[WireError], ...] = (
    WireBodyTooShort,
    WireBodyTooLarge,
    WireUnknownField,
    WireChunkMissing,
    WireChunkOverlap,
    WireChunkMissingCrc,
    WireChunkCrcMismatch,
    WireChunkDuplicateItem,
    WireChunkReassemblyAborted,
    WireCatalogMismatch,
)
