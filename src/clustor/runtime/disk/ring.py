"""io_uring for one disk: registered files, registered buffers, and chains of linked writes.

What a chain may hold was learnt from the kernel (6.18) and is what keeps a plan's promise:

- A failed or short *write* breaks the chain: the kernel cancels what is linked behind it.
- A failed *fsync* does not: the kernel goes on with the chain, and with IOSQE_CQE_SKIP_SUCCESS it
  does not even report the failure. An fsync therefore only ever stands last in a chain.
- A write with RWF_DSYNC syncs its own range before it completes and breaks the chain when that
  fails; this is how "write, sync, write, sync" is one chain all the same.
- Every entry but the last carries IOSQE_CQE_SKIP_SUCCESS, so that a chain posts exactly one
  completion: the last entry's, or that of the entry which failed.
"""

from __future__ import annotations

import errno
import mmap
import resource
import struct
from contextlib import suppress
from typing import Any

import liburing

from clustor.log.types import IoWriterMode
from clustor.runtime.disk.errors import RingBroken
from clustor.runtime.disk.files import NO_SLOT, OpenFile

ENTRIES = 256  # a power of two
FILE_SLOTS = 512
BUFFER_COUNTS = (16, 4, 1)  # registered buffers are locked memory, which `ulimit -l` bounds
BUFFER_COUNT = BUFFER_COUNTS[0]
BUFFER_BYTES = 256 * 1024

_SQE_BYTES = 64
_SQE_LENGTH_AT = 24
_SQE_RW_FLAGS_AT = 28
_SQES_OFFSET = 0x10000000  # IORING_OFF_SQES
_RWF_DSYNC = 0x2
_WORD = struct.Struct("<I")


class Ring:
    """A thin cover over liburing. A caller adds a chain entry by entry, then submits it.

    liburing's Python calls know no per-write flags and only whole buffers; the two words of an
    entry that say otherwise are set in the kernel's shared array of entries.
    """

    def __init__(self, event: int, mode: IoWriterMode) -> None:
        self.buffers_refused = ""
        """Why fewer buffers are registered than wanted; empty: as many as wanted are."""
        self._ring = liburing.Ring()
        try:
            liburing.io_uring_queue_init(ENTRIES, self._ring)
        except OSError as error:
            raise RingBroken("io_uring is refused", cause=str(error)) from error
        try:
            self._prepare(event, mode)
        except OSError as error:
            liburing.io_uring_queue_exit(self._ring)
            raise RingBroken("io_uring lacks what is needed", cause=str(error)) from error

    def _prepare(self, event: int, mode: IoWriterMode) -> None:
        if not self._ring.features & liburing.IORING_FEAT_CQE_SKIP:
            raise OSError(errno.EOPNOTSUPP, "the kernel lacks IORING_FEAT_CQE_SKIP")
        self._cqe = liburing.Cqe()
        liburing.io_uring_register_eventfd(self._ring, event)
        # The kernel registers no more files than a process may open.
        slots = min(FILE_SLOTS, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        liburing.io_uring_register_files_sparse(self._ring, slots)
        self._free_slots = list(range(slots))
        self._buffers: list[bytearray] = []
        self._free_buffers: list[int] = []
        if mode == IoWriterMode.FIXED_URING:
            self._register_buffers()
        length = ENTRIES * _SQE_BYTES
        self._entries = mmap.mmap(self._ring.ring_fd, length, offset=_SQES_OFFSET)
        self._tail = 0

    def _register_buffers(self) -> None:
        """Register as many as this user may lock, on this one ring.

        A ring that was given up for another would still count: the kernel returns locked memory
        late.
        """
        for count in BUFFER_COUNTS:
            buffers = [bytearray(BUFFER_BYTES) for _ in range(count)]
            vector = liburing.Iovec(buffers)
            try:
                liburing.io_uring_register_buffers(self._ring, vector)
            except OSError as error:
                self.buffers_refused = f"no buffer can be locked: {error}"
                continue
            if count != BUFFER_COUNT:
                self.buffers_refused = f"only {count} of {BUFFER_COUNT} buffers can be locked"
            self._buffers, self._vector = buffers, vector
            # A bytearray with a view on it cannot be moved: the kernel holds its pages.
            self._views = [memoryview(buffer) for buffer in buffers]
            self._free_buffers = list(range(count))
            return

    @property
    def buffer_count(self) -> int:
        """How many buffers are registered."""
        return len(self._buffers)

    def close(self) -> None:
        """Give the ring back to the kernel; nothing may be under way."""
        self._entries.close()
        liburing.io_uring_queue_exit(self._ring)

    def register(self, file: OpenFile) -> bool:
        """Give the file a place among the registered ones; say whether there was room."""
        if not self._free_slots:
            return False
        slot = self._free_slots.pop()
        self._update_slot(slot, file.descriptor)
        file.slot = slot
        return True

    def unregister(self, file: OpenFile) -> None:
        """Free the file's place; what is under way keeps its own hold on the file."""
        if file.slot != NO_SLOT:
            self._update_slot(file.slot, -1)
            self._free_slots.append(file.slot)
            file.slot = NO_SLOT

    def add_write(
        self, file: OpenFile, offset: int, data: bytes, mark: int, *, sync: bool, last: bool
    ) -> int:
        """Add a write to the chain; return the buffer it occupies, or -1.

        `data` must live until the chain completes.
        """
        fits = self._free_buffers and len(data) <= BUFFER_BYTES
        buffer = self._free_buffers.pop() if fits else -1
        entry = self._next_entry()
        at = (self._tail - 1) % ENTRIES * _SQE_BYTES
        place = file.descriptor if file.slot == NO_SLOT else file.slot
        if buffer == -1:
            liburing.io_uring_prep_write(entry, place, data, offset)
        else:
            self._views[buffer][: len(data)] = data
            whole = self._buffers[buffer]
            liburing.io_uring_prep_write_fixed(entry, place, whole, buffer, offset)
            _WORD.pack_into(self._entries, at + _SQE_LENGTH_AT, len(data))
        if sync:
            _WORD.pack_into(self._entries, at + _SQE_RW_FLAGS_AT, _RWF_DSYNC)
        self._finish_entry(entry, file, mark, last=last)
        return buffer

    def add_sync(self, file: OpenFile, mark: int) -> None:
        """Add an fdatasync: always the last of its chain."""
        entry = self._next_entry()
        place = file.descriptor if file.slot == NO_SLOT else file.slot
        liburing.io_uring_prep_fsync(entry, place, liburing.IORING_FSYNC_DATASYNC)
        self._finish_entry(entry, file, mark, last=True)

    def submit(self) -> None:
        """Hand the chain to the kernel, all of it; raise RingBroken when that is impossible."""
        try:
            liburing.io_uring_submit(self._ring)
            if liburing.io_uring_sq_ready(self._ring):
                raise RingBroken("the kernel took only part of a chain")
        except OSError as error:
            raise RingBroken("the ring takes no submissions", cause=str(error)) from error

    def release(self, buffer: int) -> None:
        """Take back a buffer of a completed write."""
        self._free_buffers.append(buffer)

    def take_results(self) -> list[tuple[int, int]]:
        """Take (mark, result) of every chain that is over; a negative result is an errno."""
        results: list[tuple[int, int]] = []
        while liburing.io_uring_cq_ready(self._ring):
            liburing.io_uring_peek_cqe(self._ring, self._cqe)
            completion = self._cqe[0]
            try:
                result = completion.res
            except OSError as error:  # how liburing hands out a negative result
                result = -(error.errno or errno.EIO)
            results.append((completion.user_data, result))
            liburing.io_uring_cq_advance(self._ring, 1)
        return results

    def wait(self) -> None:
        """Block until a result can be taken, or a signal came."""
        with suppress(InterruptedError):
            liburing.io_uring_wait_cqe(self._ring, self._cqe)

    def _update_slot(self, slot: int, descriptor: int) -> None:
        files = liburing.FileIndex([descriptor])
        try:
            liburing.io_uring_register_files_update(self._ring, files, slot)
        except OSError as error:
            raise RingBroken("the ring takes no files", cause=str(error)) from error

    def _next_entry(self) -> Any:
        entry = liburing.io_uring_get_sqe(self._ring)
        assert entry, "a chain is shorter than the ring, and every chain is submitted at once"
        self._tail += 1
        return entry

    def _finish_entry(self, entry: Any, file: OpenFile, mark: int, *, last: bool) -> None:
        flags = 0 if file.slot == NO_SLOT else liburing.IOSQE_FIXED_FILE
        if not last:
            flags |= liburing.IOSQE_IO_LINK | liburing.IOSQE_CQE_SKIP_SUCCESS
        entry.flags = flags
        entry.user_data = mark
