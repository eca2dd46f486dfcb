"""Every decoder of the log, valid bytes for each, and ways to spoil them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from crc32c import crc32c

from clustor.log.errors import LogError
from clustor.log.frame import decode_frames, encode_frames
from clustor.log.image import gather_facts
from clustor.log.ledger import (
    LEDGER_FILE,
    RECORD_BYTES,
    AbandonReason,
    DurabilityRecord,
    DurabilityTransition,
    LedgerBody,
    LedgerHead,
    LedgerIdentity,
    LedgerRecord,
    LogBase,
    NonceReservationAbandon,
    NonceReservationRange,
    Truncation,
    decode_record,
    encode_record,
    scan_ledger,
)
from clustor.log.metadata import (
    BOOT_RECORD_FILE,
    METADATA_FILE,
    BootRecord,
    LogMetadata,
    plan_document,
    read_document,
)
from clustor.log.recovery import recover
from clustor.log.scan import SegmentScanner
from clustor.log.segment import (
    RunHeader,
    SegmentHeader,
    SegmentTrailer,
    decode_index,
    decode_run_header,
    decode_segment_header,
    decode_trailer,
    encode_index,
    encode_run_header,
    encode_segment_header,
    encode_trailer,
    segment_file,
)
from clustor.log.steps import FileName, WriteFile
from clustor.log.types import (
    BlockCounter,
    DekEpoch,
    DurabilityMode,
    DurabilityModeEpoch,
    Entry,
    EntryKind,
    IoWriterMode,
    LogId,
    LogIndex,
    MacEpoch,
    PartitionId,
    SegmentSeq,
    Term,
)
from tests.clustor.log.harness import IDENTITY, MODE, append, new_keys, overwrite, seal
from tests.clustor.log.rot import TINY, Rest, contents_of, files_of, transition

MAC_KEY = b"K" * 32

FAMILIES: list[LedgerBody] = [
    LedgerHead(LedgerIdentity(PartitionId(7), LogId(bytes(range(16)))), 3),
    LogBase(Term(2), LogIndex(3), SegmentSeq(4)),
    DurabilityRecord(Term(5), LogIndex(6), SegmentSeq(7)),
    NonceReservationRange(SegmentSeq(8), BlockCounter(9), 10),
    NonceReservationAbandon(SegmentSeq(11), BlockCounter(12), AbandonReason.SEALED),
    DurabilityTransition(Term(13), LogIndex(14), DurabilityMode.STRICT, DurabilityMode.GROUP_FSYNC),
    Truncation(LogIndex(15), SegmentSeq(16), BlockCounter(17)),
]


class _Files:
    """Files in memory, for the decoders that read through a Storage."""

    def __init__(self, files: dict[FileName, bytes]) -> None:
        self._files = files

    def names(self, directory: str) -> list[str]:
        prefix = f"{directory}/" if directory else ""
        return sorted(file[len(prefix) :] for file in self._files if file.startswith(prefix))

    def size(self, file: FileName) -> int:
        if file not in self._files:
            raise FileNotFoundError(file)
        return len(self._files[file])

    def read(self, file: FileName, offset: int, length: int) -> bytes:
        self.size(file)
        return self._files[file][offset : offset + length]


@dataclass(frozen=True)
class Decoder:
    """A decoder as a function of bytes, and bytes that it accepts."""

    decode: Callable[[bytes], object]
    valid: list[bytes]
    mend: Callable[[bytes], bytes] = lambda data: data
    """Makes the checksum of spoilt bytes right again, so that what lies behind it is reached."""


def mend_last_word(data: bytes) -> bytes:
    return data[:-4] + crc32c(data[:-4]).to_bytes(4, "little") if len(data) >= 4 else data


def mend_records(data: bytes) -> bytes:
    rows = (data[at : at + RECORD_BYTES] for at in range(0, len(data), RECORD_BYTES))
    return b"".join(mend_last_word(row) if any(row) else row for row in rows)


def survives(decoder: Decoder, data: bytes) -> bool:
    """Decode; say whether it was accepted. Anything but a LogError is let through to fail."""
    try:
        decoder.decode(data)
    except LogError:
        return False
    return True


def spoil(rng: Random, data: bytes) -> bytes:
    """Change valid bytes in one of the ways that disks and people do."""
    spoilt = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 8))):
        at = rng.randrange(len(spoilt) + 1)
        match rng.randrange(6):
            case 0 if at < len(spoilt):
                spoilt[at] ^= 1 << rng.randrange(8)
            case 1 if at < len(spoilt):
                spoilt[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
            case 2:
                del spoilt[at:]
            case 3:
                spoilt[at:at] = rng.randbytes(rng.randrange(1, 20))
            case 4:
                del spoilt[at : at + rng.randrange(1, 20)]
            case _:
                width = rng.choice((1, 2, 4, 8))
                spoilt[at : at + width] = rng.choice((b"\0", b"\xff", b"\x7f")) * width
    return bytes(spoilt)


def draw_input(rng: Random, decoder: Decoder) -> bytes:
    """Draw noise, spoilt bytes, or spoilt bytes under a right checksum."""
    kind = rng.randrange(5)
    if kind == 0:
        return rng.randbytes(rng.choice((0, 1, 4, 36, 63, 64, 98, 128, rng.randrange(400))))
    spoilt = spoil(rng, rng.choice(decoder.valid))
    return decoder.mend(spoilt) if kind > 2 else spoilt


def example_record(nth: int, body: LedgerBody) -> LedgerRecord:
    return LedgerRecord(nth, 0, IoWriterMode.BLOCKING, DurabilityModeEpoch(0), body)


def _example_frames(*, merkle: bool) -> bytes:
    entries = [
        Entry(Term(2), LogIndex(5), b"payload"),
        Entry(Term(2), LogIndex(6), b"", EntryKind.NO_OP),
    ]
    return encode_frames(entries, merkle).plaintext


def _example_document(file: FileName, document: LogMetadata | BootRecord) -> bytes:
    return next(step.data for step in plan_document(file, document) if isinstance(step, WriteFile))


def _decoders() -> dict[str, Decoder]:
    keys = new_keys()
    rest = Rest.after([append(10, 10), overwrite(1, 9), transition(), seal(), append(30)])
    files = {file: contents_of(rest.world.disk, file) for file in files_of(rest.world.disk)}
    closed, open_ = segment_file(1), segment_file(2)

    def scan(data: bytes) -> int:
        scanner = SegmentScanner(_Files({closed: data}), 1, keys)
        count = sum(1 for _ in scanner.runs())
        if scanner.problem is not None:
            raise scanner.problem
        return count

    def open_with(file: FileName) -> Callable[[bytes], object]:
        return lambda data: recover(_Files({**files, file: data}), keys, TINY, MODE)

    header = SegmentHeader(
        PartitionId(7),
        IDENTITY.log_id,
        SegmentSeq(1),
        DekEpoch(1),
        MacEpoch(1),
        LogIndex(1),
        Term(0),
    )
    trailer = SegmentTrailer(SegmentSeq(1), LogIndex(1), LogIndex(2), 2, b"e" * 16, b"o" * 16)
    boot = BootRecord(1, "Healthy", "1", "2", 4096, 512, 4096, "Blocking", "00", 0)
    ledger = b"".join(encode_record(example_record(n, body)) for n, body in enumerate(FAMILIES[:3]))
    return {
        "frames": Decoder(
            lambda data: decode_frames(data, 5, 2),
            [_example_frames(merkle=False), _example_frames(merkle=True)],
        ),
        "segment header": Decoder(
            decode_segment_header, [encode_segment_header(header)], mend_last_word
        ),
        "run header": Decoder(
            decode_run_header,
            [encode_run_header(RunHeader(50, BlockCounter(1), LogIndex(2), 3))],
            mend_last_word,
        ),
        "trailer": Decoder(
            lambda data: decode_trailer(data, MAC_KEY), [encode_trailer(trailer, MAC_KEY)]
        ),
        "index": Decoder(
            lambda data: decode_index(data, 1), [encode_index(1, bytes(range(64)))], mend_last_word
        ),
        "ledger record": Decoder(
            decode_record,
            [encode_record(example_record(9, body)) for body in FAMILIES],
            mend_last_word,
        ),
        "ledger": Decoder(
            lambda data: gather_facts(scan_ledger(data)),
            [ledger, files[LEDGER_FILE]],
            mend_records,
        ),
        "metadata": Decoder(
            lambda data: read_document(_Files({METADATA_FILE: data}), METADATA_FILE, LogMetadata),
            [_example_document(METADATA_FILE, LogMetadata.of(PartitionId(7), IDENTITY.log_id))],
        ),
        "boot record": Decoder(
            lambda data: read_document(
                _Files({BOOT_RECORD_FILE: data}), BOOT_RECORD_FILE, BootRecord
            ),
            [_example_document(BOOT_RECORD_FILE, boot)],
        ),
        "segment": Decoder(scan, [files[closed]]),
        "log with a spoilt ledger": Decoder(
            open_with(LEDGER_FILE), [files[LEDGER_FILE]], mend_records
        ),
        "log with a spoilt segment": Decoder(open_with(open_), [files[open_]]),
    }


DECODERS = _decoders()
