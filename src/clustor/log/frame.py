"""Entry frames: the bytes of one log entry inside a segment (clustor §7.1).

    header   version:u8 codec:u8 flags:u16 body_len:u32 trailer_len:u32
    body     term:u64 index:u64 payload
    trailer  crc32c:u32 [merkle_leaf_digest:32]

All little-endian. The CRC covers header and body. `codec` is the entry's kind. This module is
hot: it is walked once for every entry that is written or read.
"""

from __future__ import annotations

import struct
from array import array
from hashlib import sha256
from typing import Final

from crc32c import crc32c

from clustor.log.errors import ChecksumMismatch, UnsupportedFormat
from clustor.log.types import Entry, EntryKind, LogIndex, Term

FRAME_VERSION: Final = 1
FRAME_BODY_BYTES_MAX: Final = 4 * 1024 * 1024  # Throughput and WAN; a profile may say less
CRC_TRAILER_BYTES: Final = 4
MERKLE_TRAILER_BYTES: Final = 36
RUN_HEADER_BYTES: Final = 36
LONG_BYTES: Final = 16 << 10
"""From here on a copy costs more than a second call of the checksum."""

_HEADER_AND_INDEX: Final = struct.Struct("<BBHIIQQ")
_CRC: Final = struct.Struct("<I")
_KINDS: Final[dict[int, EntryKind]] = {int(kind): kind for kind in EntryKind}


class EncodedFrames:
    """Entries as plaintext for the cipher, and what the segment's trailer needs of them."""

    __slots__ = ("covered", "plaintext", "starts")

    def __init__(self, plaintext: bytes, covered: list[bytes], starts: list[int]) -> None:
        self.plaintext = plaintext
        self.covered = covered  # what the CRCs cover, in pieces: all but the trailers
        self.starts = starts  # where each frame starts in the plaintext


def encode_frames(entries: list[Entry], merkle: bool = False) -> EncodedFrames:
    """Encode entries back to back. The caller has checked their order and their sizes."""
    pieces: list[bytes] = []
    covered: list[bytes] = []
    starts: list[int] = []
    position = 0
    trailer_bytes = MERKLE_TRAILER_BYTES if merkle else CRC_TRAILER_BYTES
    for entry in entries:
        payload = entry.payload
        body_bytes = len(payload) + 16
        head = _HEADER_AND_INDEX.pack(
            FRAME_VERSION, entry.kind, 0, body_bytes, trailer_bytes, entry.term, entry.index
        )
        starts.append(position)
        position += 12 + body_bytes + trailer_bytes
        if body_bytes >= LONG_BYTES and not merkle:  # not copied only to be copied again
            covered += (head, payload)
            pieces += (head, payload, _CRC.pack(crc32c(payload, crc32c(head))))
            continue
        sealed = head + payload
        covered.append(sealed)
        pieces.append(sealed)
        pieces.append(_CRC.pack(crc32c(sealed)))
        if merkle:
            pieces.append(sha256(sealed).digest())
    return EncodedFrames(b"".join(pieces), covered, starts)


def pack_offsets(run_offset: int, starts: list[int]) -> bytes:
    """Pack the file offset of each frame of a run, as a `.idx` holds them."""
    base = run_offset + RUN_HEADER_BYTES
    # A block of 4096 bytes of plaintext is followed by a tag of 16.
    return array("Q", [base + start + (start >> 12 << 4) for start in starts]).tobytes()


class DecodedFrames:
    """The entries of a decrypted run, and the bytes that their CRCs cover."""

    __slots__ = ("covered", "entries", "starts")

    def __init__(self, entries: list[Entry], covered: list[bytes], starts: list[int]) -> None:
        self.entries = entries
        self.covered = covered
        self.starts = starts


def decode_frames(plaintext: bytes, first_index: int, entry_count: int) -> DecodedFrames:
    """Decode exactly `entry_count` frames with consecutive indices, and nothing behind them.

    Raises ChecksumMismatch when a CRC, a length or an index is not what was written, and
    UnsupportedFormat for a version or an entry kind of a later release.
    """
    entries: list[Entry] = []
    covered: list[bytes] = []
    starts: list[int] = []
    position = 0
    end = len(plaintext)
    for nth in range(entry_count):
        if position + 28 > end:
            raise ChecksumMismatch("a frame runs past its run", index=first_index + nth)
        version, codec, flags, body_bytes, trailer_bytes, term, index = (
            _HEADER_AND_INDEX.unpack_from(plaintext, position)
        )
        if version != FRAME_VERSION or flags != 0:
            raise UnsupportedFormat("unknown frame version", version=version, flags=flags)
        body_end = position + 12 + body_bytes
        frame_end = body_end + trailer_bytes
        if body_bytes < 16 or frame_end > end or trailer_bytes not in (4, 36):
            raise ChecksumMismatch("a frame has an impossible length", index=first_index + nth)
        sealed = plaintext[position:body_end]
        if _CRC.unpack_from(plaintext, body_end)[0] != crc32c(sealed):
            raise ChecksumMismatch("an entry's CRC does not match", index=first_index + nth)
        if trailer_bytes == 36 and plaintext[body_end + 4 : frame_end] != sha256(sealed).digest():
            raise ChecksumMismatch("an entry's Merkle leaf does not match", index=first_index + nth)
        if index != first_index + nth:
            raise ChecksumMismatch("an entry has another's index", index=index)
        kind = _KINDS.get(codec)
        if kind is None:
            raise UnsupportedFormat("unknown entry kind", codec=codec, index=index)
        covered.append(sealed)
        starts.append(position)
        entries.append(
            Entry(Term(term), LogIndex(index), plaintext[position + 28 : body_end], kind)
        )
        position = frame_end
    if position != end:
        raise ChecksumMismatch("bytes behind the last frame of a run", extra_bytes=end - position)
    return DecodedFrames(entries, covered, starts)
