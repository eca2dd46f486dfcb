"""Which key epochs the files of a node are sealed with: none of those may be destroyed."""

from __future__ import annotations

from pathlib import Path

from clustor.log.errors import LogError
from clustor.log.segment import (
    SEGMENT_HEADER_BYTES,
    SegmentHeader,
    decode_segment_header,
    segment_seq_of,
)
from clustor.security import InUse, RotationRefused
from clustor.snapshot.errors import SnapshotFailure
from clustor.snapshot.manifest import decode_manifest
from clustor.streams.runs import FILE_HEADER_BYTES, PARTS_DIRECTORY, decode_file_header


def epochs_in_use(state: Path) -> InUse:
    """Say which DEK epochs segments, snapshots and streams below a node's `state/` are sealed with.

    A file that cannot be read counts as needing every key: raises RotationRefused.
    """
    found: dict[int, list[str]] = {}
    for group in sorted(state.iterdir()) if state.is_dir() else ():
        for file in sorted(group.glob("**/segment-*.log")):
            if segment_seq_of(file.name) is not None:
                found.setdefault(_segment_epoch(file), []).append(str(file.relative_to(state)))
        for file in sorted(group.glob("snapshot/*/manifest.json")):
            found.setdefault(_snapshot_epoch(file), []).append(str(file.relative_to(state)))
        for file in sorted(group.glob(f"**/{PARTS_DIRECTORY}/*.seg")):
            epoch = _stream_epoch(file)
            if epoch is not None:
                found.setdefault(epoch, []).append(str(file.relative_to(state)))
    return {epoch: tuple(files) for epoch, files in found.items()}


def mac_epochs_in_use(state: Path) -> InUse:
    """Say which MAC epochs the segments below a node's `state/` are sealed with.

    A file that cannot be read counts as needing every key: raises RotationRefused.
    """
    found: dict[int, list[str]] = {}
    for file in sorted(state.glob("*/**/segment-*.log")) if state.is_dir() else ():
        if segment_seq_of(file.name) is not None:
            epoch = int(_segment_header(file).mac_epoch)
            found.setdefault(epoch, []).append(str(file.relative_to(state)))
    return {epoch: tuple(files) for epoch, files in found.items()}


def _segment_epoch(file: Path) -> int:
    return int(_segment_header(file).dek_epoch)


def _segment_header(file: Path) -> SegmentHeader:
    try:
        with file.open("rb") as segment:
            return decode_segment_header(segment.read(SEGMENT_HEADER_BYTES))
    except (OSError, LogError) as error:
        raise RotationRefused("a segment's key cannot be told", file=str(file)) from error


def _stream_epoch(file: Path) -> int | None:
    """Return the key of a stream's file; None where it was trimmed just now."""
    try:
        with file.open("rb") as part:
            header = part.read(FILE_HEADER_BYTES)
        return int(decode_file_header(header).dek_epoch) if header else None
    except FileNotFoundError:
        return None
    except (OSError, LogError) as error:
        raise RotationRefused("a stream's key cannot be told", file=str(file)) from error


def _snapshot_epoch(file: Path) -> int:
    try:
        return decode_manifest(file.read_bytes()).encryption.dek_epoch
    except (OSError, SnapshotFailure) as error:
        raise RotationRefused("a snapshot's key cannot be told", file=str(file)) from error
