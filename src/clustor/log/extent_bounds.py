"""How far each segment of a log that is being written can be read again at this moment."""

from __future__ import annotations

from clustor.log.log import Log
from clustor.log.segment import SEGMENT_HEADER_BYTES
from clustor.log.types import SegmentSeq


def readable_segments(log: Log, *, at_rest: bool) -> dict[SegmentSeq, int | None]:
    """Return every segment that holds something durable, with the end of its durable runs.

    None says that the segment is closed and durable as a whole. `at_rest`: no plan of this log is
    under way, so that everything planned is durable. Otherwise the durable entries say: what was
    planned behind them may be half written, and to read it would be a false alarm.
    """
    segment = log.open_segment()
    closed: dict[SegmentSeq, int | None] = dict.fromkeys(log.closed_segments())
    if at_rest:
        if segment is not None:
            closed[segment.header.segment_seq] = segment.write_offset
        return closed
    newest = log.durable.segment_seq
    found: dict[SegmentSeq, int | None] = {seq: None for seq in closed if seq < newest}
    index = log.durable_index
    if log.entries.base_index < index <= log.last_index:
        extent, offset = log.entries.locate(index)
        if extent.segment_seq == newest and offset > SEGMENT_HEADER_BYTES:
            found[newest] = offset
    return found
