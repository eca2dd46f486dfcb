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

import ctypes
import errno
import mmap
import resource
from contextlib import suppress
from typing import Final

from clustor.log.types import IoWriterMode
from clustor.runtime.disk import kernel_ring as kernel
from clustor.runtime.disk.errors import RingBroken
from clustor.runtime.disk.files import NO_SLOT, OpenFile
from clustor.runtime.disk.kernel_ring import KernelRing

ENTRIES = 256  # a power of two
FILE_SLOTS = 512
BUFFER_COUNTS = (16, 4, 1)  # registered buffers are locked memory, which `ulimit -l` bounds
BUFFER_COUNT = BUFFER_COUNTS[0]
BUFFER_BYTES = 256 * 1024

_RWF_DSYNC: Final = 0x2
_FSYNC_DATASYNC: Final = 0x1
_NOT_LAST: Final = kernel.IO_LINK | kernel.CQE_SKIP_SUCCESS


class IoRing:
    """Chains on the kernel's ring. A caller adds one entry by entry, then submits it."""

    def __init__(self, event: int, mode: IoWriterMode) -> None:
        self.buffers_refused = ""
        """Why fewer buffers are registered than wanted; empty: as many as wanted are."""
        try:
            self._ring = KernelRing(ENTRIES)
        except OSError as error:
            raise RingBroken("io_uring is refused", cause=str(error)) from error
        try:
            self._prepare(event, mode)
        except OSError as error:
            self._ring.close()
            raise RingBroken("io_uring lacks what is needed", cause=str(error)) from error

    def _prepare(self, event: int, mode: IoWriterMode) -> None:
        if not self._ring.features & kernel.FEATURE_CQE_SKIP:
            raise OSError(errno.EOPNOTSUPP, "the kernel lacks IORING_FEAT_CQE_SKIP")
        self._ring.register_eventfd(event)
        # The kernel registers no more files than a process may open.
        slots = min(FILE_SLOTS, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        self._ring.register_slots(slots)
        self._free_slots = list(range(slots))
        self._memory: mmap.mmap | None = None
        self._addresses: list[int] = []
        self._free_buffers: list[int] = []
        if mode == IoWriterMode.FIXED_URING:
            self._register_buffers()

    def _register_buffers(self) -> None:
        """Register as many as this user may lock, on this one ring.

        A ring that was given up for another would still count: the kernel returns locked memory
        late.
        """
        for count in BUFFER_COUNTS:
            memory = mmap.mmap(-1, count * BUFFER_BYTES)
            start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
            addresses = [start + number * BUFFER_BYTES for number in range(count)]
            try:
                self._ring.register_buffers([(address, BUFFER_BYTES) for address in addresses])
            except OSError as error:
                self.buffers_refused = f"no buffer can be locked: {error}"
                continue
            if count != BUFFER_COUNT:
                self.buffers_refused = f"only {count} of {BUFFER_COUNT} buffers can be locked"
            self._memory, self._addresses = memory, addresses
            self._free_buffers = list(range(count))
            return

    @property
    def buffer_count(self) -> int:
        """How many buffers are registered."""
        return len(self._addresses)

    def close(self) -> None:
        """Give the ring back to the kernel; nothing may be under way."""
        self._ring.close()

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
        size = len(data)
        place, flags = _place(file)
        if not last:
            flags |= _NOT_LAST
        dsync = _RWF_DSYNC if sync else 0
        if self._memory is None or not self._free_buffers or size > BUFFER_BYTES:
            address = kernel.address_of(data)
            self._ring.add(kernel.OP_WRITE, flags, place, offset, address, size, dsync, mark)
            return -1
        buffer = self._free_buffers.pop()
        start = buffer * BUFFER_BYTES
        self._memory[start : start + size] = data
        address = self._addresses[buffer]
        fixed = (address, size, dsync, mark, buffer)
        self._ring.add(kernel.OP_WRITE_FIXED, flags, place, offset, *fixed)
        return buffer

    def add_sync(self, file: OpenFile, mark: int) -> None:
        """Add an fdatasync: always the last of its chain."""
        place, flags = _place(file)
        self._ring.add(kernel.OP_FSYNC, flags, place, 0, 0, 0, _FSYNC_DATASYNC, mark)

    def submit(self) -> None:
        """Hand the chain to the kernel, all of it; raise RingBroken when that is impossible."""
        try:
            if not self._ring.submit():
                raise RingBroken("the kernel took only part of a chain")
        except OSError as error:
            raise RingBroken("the ring takes no submissions", cause=str(error)) from error

    def release(self, buffer: int) -> None:
        """Take back a buffer of a completed write."""
        self._free_buffers.append(buffer)

    def take_results(self) -> list[tuple[int, int]]:
        """Take (mark, result) of every chain that is over; a negative result is an errno."""
        return self._ring.take_results()

    def wait(self) -> None:
        """Block until a result can be taken, or a signal came."""
        with suppress(InterruptedError):
            self._ring.wait()

    def _update_slot(self, slot: int, descriptor: int) -> None:
        try:
            self._ring.update_slot(slot, descriptor)
        except OSError as error:
            raise RingBroken("the ring takes no files", cause=str(error)) from error


def _place(file: OpenFile) -> tuple[int, int]:
    """Return where an entry finds its file, and the flags that say which kind of place it is."""
    if file.slot == NO_SLOT:
        return file.descriptor, 0
    return file.slot, kernel.FIXED_FILE
