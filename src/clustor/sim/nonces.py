"""Sees every block that was sent to a log's or a stream's disk, and that no nonce sealed two."""

from __future__ import annotations

import struct

from clustor.log.segment import SEGMENT_HEADER_BYTES, segment_seq_of
from clustor.log.steps import Step, WriteFile
from clustor.sim.errors import PromiseBroken
from clustor.streams.runs import (
    PARTS_DIRECTORY,
    RUN_HEAD_BYTES,
    decode_file_header,
    decode_run_head,
)

_RUN_MAGIC = b"CRUN"
_RUN_HEADER_BYTES = 36
_BLOCK_BYTES = 4096
_TAG_BYTES = 16


class NonceWitness:
    """One for each log id: another id has another key, and counters of its own."""

    def __init__(self) -> None:
        self._sealed: dict[tuple[int, int, int], bytes] = {}
        self._dek_epochs: dict[int, int] = {}
        self._streams: dict[str, tuple[bytes, int, int]] = {}  # whose key seals a file
        self._runs: dict[tuple[bytes, int, int, int, int], bytes] = {}

    def watch(self, step: Step) -> None:
        """See a step that is about to be run; what a failed write leaves behind counts too."""
        if isinstance(step, WriteFile):
            seq = segment_seq_of(step.file.rpartition("/")[2])
            if seq is not None:
                self._watch_segment(seq, step)
            elif step.file.startswith(PARTS_DIRECTORY) and step.file.endswith(".seg"):
                self._watch_stream(step)

    def _watch_stream(self, step: WriteFile) -> None:
        """See a file of a stream: a header that says which key, or a run with its nonce."""
        if step.offset == 0:
            header = decode_file_header(step.data)
            self._streams[step.file] = (header.store_id, header.partition, header.dek_epoch)
            return
        head = decode_run_head(step.data)
        place = (*self._streams[step.file], int(head.writer_seq), head.block_counter)
        sealed = step.data[RUN_HEAD_BYTES:]
        if self._runs.setdefault(place, sealed) != sealed:
            raise PromiseBroken(f"nonce {place[3:]} of stream {place[1]} sealed two runs")

    def _watch_segment(self, seq: int, step: WriteFile) -> None:
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
