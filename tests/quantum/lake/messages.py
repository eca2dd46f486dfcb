"""Messages for logs that tests make."""

from __future__ import annotations

from pathlib import Path

from quantum.broker import OWN_ORIGIN, encode_publishes, encode_record
from tests.quantum.lake.log_directory import LogDirectory, state_of

NOW_MS = 1_763_200_000_000


def batch(payloads: list[bytes], topic: bytes = b"plant/1") -> list[bytes]:
    """Return the commands of one entry."""
    records = [
        encode_record(topic, payload, 1, b"", 0, b"client", 1, number + 1)
        for number, payload in enumerate(payloads)
    ]
    return [encode_publishes(NOW_MS, OWN_ORIGIN, 0, 0, records)]


def numbered(first: int, last: int) -> list[bytes]:
    return [b"message-%05d" % number for number in range(first, last + 1)]


def fill(root: Path, entries: int = 6, per_entry: int = 5, prgs: int = 2) -> list[bytes]:
    """Make a directory, or add to it, with the same number of entries in each partition."""
    written: list[bytes] = []
    with LogDirectory(root, prgs=prgs, segment_bytes=1 << 20) as logs:
        for prg in range(prgs):
            for _ in range(entries):
                payloads = [b"%d-%05d" % (prg, len(written) + nth) for nth in range(per_entry)]
                logs.append(prg, [batch(payloads, b"plant/%d" % prg)])
                written += payloads
    return written


def segments(root: Path, prg: int) -> list[Path]:
    return sorted((state_of(root, prg) / "wal").glob("segment-*.log"))


def damage(root: Path, prg: int) -> tuple[Path, bytes]:
    """Flip a bit in the middle of a partition's first segment; return what undoes it."""
    segment = segments(root, prg)[0]
    whole = segment.read_bytes()
    at = len(whole.rstrip(b"\0")) // 2
    segment.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    return segment, whole
