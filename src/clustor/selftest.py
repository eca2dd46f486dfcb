"""The specification's vectors, rerun by the code that will handle real data (clustor App. A).

Each check computes what it claims with the production functions and compares with a constant
that was published, or computed once by other means. They take milliseconds, so a node runs them
at every start and refuses to open a partition where one fails.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import rfc8785

from clustor.log.cipher import SegmentCipher, wal_aad, wal_block_iv
from clustor.log.errors import AuthenticationFailed
from clustor.log.lanes import CrcLanes
from clustor.log.segment import SegmentTrailer, segment_mac
from clustor.log.types import DekEpoch, LogIndex, PartitionId, SegmentSeq
from clustor.snapshot.chunks import chunk_iv
from clustor.snapshot.manifest import content_hash
from clustor.snapshot.types import IvSalt
from clustor.wire import (
    PreVoteResponseBody,
    Term,
    WireBodyTooShort,
    check_stream_end,
    codec_of,
    encode_frame,
    take_frame,
)

_FRAME_BYTES_MAX: Final = 4 << 20
_SNAPSHOT_IV: Final = "354fdf7556287b3ec69de5dc"
_SEALED: Final = "3e52938008b8bfde3aa8e6e5828d2b6ff65ef2408367b52257cdb61d5e432fcf10f43a"


@dataclass(frozen=True, slots=True)
class Check:
    """One vector: what it is, where it is from, and whether it came out."""

    name: str
    source: str
    passed: bool
    detail: str = ""


def run_selftest() -> list[Check]:
    """Rerun every vector. A check that raises has failed, and says how."""
    return [_run(name, source, vector) for name, source, vector in _VECTORS]


def selftest_digest(checks: list[Check]) -> str:
    """Digest the outcome, for the boot record."""
    return hashlib.sha256(rfc8785.dumps({check.name: check.passed for check in checks})).hexdigest()


def _run(name: str, source: str, vector: Callable[[], tuple[object, object]]) -> Check:
    try:
        computed, expected = vector()
    except Exception as error:  # noqa: BLE001  # a self-test reports whatever is broken
        return Check(name, source, passed=False, detail=f"{type(error).__name__}: {error}")
    passed = computed == expected
    return Check(name, source, passed, "" if passed else f"got {computed!r}, not {expected!r}")


def _prevote_frame() -> tuple[object, object]:
    return _frame(
        PreVoteResponseBody(Term(42), vote_granted=True, high_rtt=True)
    ), "0b0000002a00000000000000010101"


def _prevote_legacy() -> tuple[object, object]:
    body = take_frame(
        bytearray.fromhex("090000002a0000000000000001"), body_bytes_max=_FRAME_BYTES_MAX
    )
    expected = PreVoteResponseBody(Term(42), vote_granted=True, high_rtt=None)
    return codec_of(PreVoteResponseBody).decode(body or b""), expected


def _frame(message: PreVoteResponseBody) -> str:
    body = codec_of(PreVoteResponseBody).encode(message)
    return encode_frame(body, body_bytes_max=_FRAME_BYTES_MAX).hex()


def _prevote_short() -> tuple[object, object]:
    refused = 0
    for sample in ("0c0000002a00000000000000010101", "0c0000002a0000000000000001"):
        try:
            check_stream_end(bytes.fromhex(sample))
        except WireBodyTooShort:
            refused += 1
    return refused, 2


def _segment_mac() -> tuple[object, object]:
    trailer = SegmentTrailer(
        segment_seq=SegmentSeq(7),
        first_index=LogIndex(42),
        last_index=LogIndex(121),
        entry_count=17,
        entries_lanes=bytes.fromhex("1032547698badcfe67452301efcdab89")[::-1],
        offsets_lanes=bytes.fromhex("0123456789abcdeffedcba9876543210")[::-1],
    )
    expected = "5c50cc7f43ef3c0127db59a3a8394ed16782e7997b53093c35bff32f8644b8f0"
    return segment_mac(trailer, bytes(range(32))).hex(), expected


_SAMPLE_MANIFEST: Final[dict[str, object]] = {
    "base_index": 4096,
    "base_term": 7,
    "chunks": [
        {
            "chunk_id": "00000000-0000-0000-0000-000000000001",
            "digest": "0x" + "aa" * 32,
            "len": 1048576,
            "offset": 0,
        }
    ],
    "emit_version": 1,
    "encryption": {"dek_epoch": 3, "iv_salt": "0x000102030405060708090a0b0c0d0e0f"},
    "logical_markers": [],
    "manifest_id": "018c0d6c-9c11-7e9d-8000-86f5bb8c0001",
    "producer_version": "clustor-test",
    "version_id": 12,
}


def _manifest_hash() -> tuple[object, object]:
    expected = "0xb1caf4297447b97c418f5c52ac1b922c3c32022f61d59f73c462931b89d6ad86"
    return content_hash(_SAMPLE_MANIFEST), expected


def _crc_lanes() -> tuple[object, object]:
    lanes = CrcLanes()
    stream = "01000000000010000000000000000000aa01000000000008000000000000000000bb"
    lanes.update([bytes.fromhex(stream)])
    return lanes.packed().hex(), "a74fee537bdafdc68ab2288c8ab2288c"


def _wal_iv() -> tuple[object, object]:
    return wal_block_iv(3, 7, 42).hex(), "b541bca590e17c18f0214aea"


def _wal_aad() -> tuple[object, object]:
    return wal_aad(5, 3, 7).hex(), "010500000000000000030000000700000000000000"


def _snapshot_iv() -> tuple[object, object]:
    return chunk_iv(DekEpoch(3), IvSalt(bytes(range(16))), 1 << 20, 2).hex(), _SNAPSHOT_IV


def _sealed_block() -> tuple[object, object]:
    cipher = SegmentCipher(bytes(32), PartitionId(5), DekEpoch(3), SegmentSeq(7))
    sealed = b"".join(cipher.seal(b"fsynced on a quorum", 42))
    opened = cipher.open(sealed, 42)
    try:
        cipher.open(sealed, 43)
    except AuthenticationFailed:
        return (sealed.hex(), opened), (_SEALED, b"fsynced on a quorum")
    return "a block opened under another counter", "a refusal"


def _canonical_json() -> tuple[object, object]:
    computed = rfc8785.dumps({"€": 1, "a": [1e21, 0.1, None, True], "\r": "\n"})
    return computed, b'{"\\r":"\\n","a":[1e+21,0.1,null,true],"\xe2\x82\xac":1}'


_VECTORS: Final[list[tuple[str, str, Callable[[], tuple[object, object]]]]] = [
    ("PreVoteResponse frame", "clustor B.1, ruling C1", _prevote_frame),
    ("PreVoteResponse frame of a legacy peer", "clustor B.1, ruling C1", _prevote_legacy),
    ("PreVoteResponse frames cut short", "clustor B.1, ruling C1", _prevote_short),
    ("Segment MAC", "clustor B.3, ruling C2", _segment_mac),
    ("Manifest hash", "clustor B.2, ruling C3", _manifest_hash),
    ("CRC lanes", "clustor B.5, ruling C4", _crc_lanes),
    ("WAL block IV", "clustor §12.2", _wal_iv),
    ("WAL AAD", "clustor §12.2", _wal_aad),
    ("Snapshot chunk IV", "clustor §12.2", _snapshot_iv),
    ("Sealed block", "clustor §12.2", _sealed_block),
    ("Canonical JSON", "RFC 8785", _canonical_json),
]
