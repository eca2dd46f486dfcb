"""Sees every block that was sent to a log's disk, and that no counter sealed two of them."""

from __future__ import annotations

import struct

from clustor.log.segment import SEGMENT_HEADER_BYTES, segment_seq_of
from clustor.log.steps import Step, Write
from clustor.sim.judge import PromiseBroken

_RUN_MAGIC = b"CRUN"
_RUN_HEADER_BYTES = 36
_BLOCK_BYTES = 4096
_TAG_BYTES = 16


class NonceWitness:
    """One for each log id: another id has another key, and counters of its own."""

    def __init__(self) -> None:
        self._sealed: dict[tuple[int, int, int], bytes] = {}
        self._dek_epochs: dict[int, int] = {}

    def watch(self, step: Step) -> None:
        """See a step that is about to be run; what a failed write leaves behind counts too."""
        if isinstance(step, Write):
            seq = segment_seq_of(step.file.rpartition("/")[2])
            if seq is not None:
                self._watch_segment(seq, step)

    def _watch_segment(self, seq: int, step: Write) -> None:
        if step.offset == 0 and len(step.data) == SEGMENT_HEADER_BYTES:
            self._dek_epochs[seq] = struct.unpack_from("<I", step.data, 12)[0]
        if step.data[:4] != _RUN_MAGIC:
            return
        plain_bytes, counter = struct.unpack_from("<IQ", step.data, 4)
        position = _RUN_HEADER_BYTES
        while plain_bytes > 0:
            size = min(plain_bytes, _BLOCK_BYTES) + _TAG_BYTES
            block = step.data[position : position + size]
            place = (self._dek_epochs[seq], seq, counter)
            if self._sealed.setdefault(place, block) != block:
                raise PromiseBroken(f"counter {counter} of segment {seq} sealed two blocks")
            position += size
            plain_bytes -= _BLOCK_BYTES
            counter += 1
