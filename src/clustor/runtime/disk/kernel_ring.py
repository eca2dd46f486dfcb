"""The kernel's own io_uring interface: three system calls and the memory that it shares.

No library stands between: one that was built for a newer processor ends the process with an
illegal instruction, and no test of the ring could catch that. Entries are packed straight into
the shared array. A ring belongs to one thread, so no barrier is needed beyond the system calls:
the kernel reads our entries inside `enter`, and its completions were written before the eventfd
that announces them.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import struct
from array import array
from typing import Final

SQE_BYTES: Final = 64
FEATURE_SINGLE_MMAP: Final = 1 << 0
FEATURE_CQE_SKIP: Final = 1 << 11

OP_FSYNC: Final = 3
OP_WRITE_FIXED: Final = 5
OP_WRITE: Final = 23
FIXED_FILE: Final = 1 << 0
IO_LINK: Final = 1 << 2
CQE_SKIP_SUCCESS: Final = 1 << 6

_SYS_SETUP: Final = 425  # the same numbers on every architecture
_SYS_ENTER: Final = 426
_SYS_REGISTER: Final = 427
_REGISTER_BUFFERS: Final = 0
_REGISTER_FILES: Final = 2
_REGISTER_EVENTFD: Final = 4
_REGISTER_FILES_UPDATE: Final = 6
_ENTER_GETEVENTS: Final = 1
_SQES_OFFSET: Final = 0x10000000

_PARAMS: Final = struct.Struct("<10I8IQ8IQ")
_SQE: Final = struct.Struct("<BBHiQQIIQHHiQQ")
_CQE: Final = struct.Struct("<QiI")
_WORD: Final = struct.Struct("<I")
_UPDATE: Final = struct.Struct("<IIQ")
_EVENT: Final = struct.Struct("<i")

assert _SQE.size == SQE_BYTES

_libc = ctypes.CDLL(None, use_errno=True)
_syscall = _libc.syscall
_syscall.restype = ctypes.c_long


def _call(number: int, *arguments: object) -> int:
    """Make a system call; raise OSError as the kernel says."""
    result: int = _syscall(ctypes.c_long(number), *arguments)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def address_of(data: bytes) -> int:
    """Return where bytes lie; they must outlive whoever is told."""
    return ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value or 0


class KernelRing:
    """One ring. Every call that the kernel refuses raises OSError."""

    def __init__(self, entries: int) -> None:
        params = bytearray(_PARAMS.size)
        shared = (ctypes.c_char * len(params)).from_buffer(params)
        self.descriptor = _call(_SYS_SETUP, ctypes.c_uint(entries), shared)
        try:
            self._share(_PARAMS.unpack(params))
        except BaseException:
            os.close(self.descriptor)
            raise

    def _share(self, params: tuple[int, ...]) -> None:
        self._entries, completions = params[0], params[1]
        self.features = params[5]
        if not self.features & FEATURE_SINGLE_MMAP:
            raise OSError(errno.EOPNOTSUPP, "the kernel lacks IORING_FEAT_SINGLE_MMAP")
        sq_tail, sq_array = params[11], params[16]
        self._cq_head_at, self._cq_tail_at, self._cqes_at = params[19], params[20], params[24]
        self._cq_mask = completions - 1
        length = max(sq_array + self._entries * _WORD.size, self._cqes_at + completions * _CQE.size)
        self._ring = mmap.mmap(self.descriptor, length)
        self._sqes = mmap.mmap(self.descriptor, self._entries * SQE_BYTES, offset=_SQES_OFFSET)
        self._sq_tail_at, self._tail, self._submitted = sq_tail, 0, 0
        for slot in range(self._entries):
            _WORD.pack_into(self._ring, sq_array + slot * _WORD.size, slot)

    def close(self) -> None:
        """Give the ring back; nothing may be under way."""
        self._sqes.close()
        self._ring.close()
        os.close(self.descriptor)

    # What is registered.

    def register_eventfd(self, event: int) -> None:
        """Let every completion announce itself there."""
        self._register(_REGISTER_EVENTFD, bytearray(_EVENT.pack(event)), 1)

    def register_slots(self, count: int) -> None:
        """Make places for files, all of them empty."""
        self._register(_REGISTER_FILES, bytearray(array("i", [-1]) * count), count)

    def update_slot(self, slot: int, descriptor: int) -> None:
        """Put a file into a place, or -1 to empty it."""
        files = bytearray(_EVENT.pack(descriptor))
        shared = (ctypes.c_char * len(files)).from_buffer(files)
        update = _UPDATE.pack(slot, 0, ctypes.addressof(shared))
        self._register(_REGISTER_FILES_UPDATE, bytearray(update), 1)

    def register_buffers(self, buffers: list[tuple[int, int]]) -> None:
        """Let the kernel hold these (address, length) in memory: they may never move."""
        vector = bytearray(b"".join(struct.pack("<QQ", *each) for each in buffers))
        self._register(_REGISTER_BUFFERS, vector, len(buffers))

    def _register(self, opcode: int, argument: bytearray, count: int) -> None:
        shared = (ctypes.c_char * len(argument)).from_buffer(argument)
        _call(
            _SYS_REGISTER,
            ctypes.c_uint(self.descriptor),
            ctypes.c_uint(opcode),
            shared,
            ctypes.c_uint(count),
        )

    # What is under way.

    def add(  # noqa: PLR0917  # the fields of an entry, in their order
        self,
        opcode: int,
        flags: int,
        place: int,
        offset: int,
        address: int,
        length: int,
        operation_flags: int,
        mark: int,
        buffer: int = 0,
    ) -> None:
        """Put an entry behind those that wait to be submitted."""
        tail = self._tail
        assert tail - self._submitted < self._entries, "a chain is shorter than the ring"
        at = (tail & (self._entries - 1)) * SQE_BYTES
        words = (length, operation_flags, mark, buffer, 0, 0, 0, 0)
        _SQE.pack_into(self._sqes, at, opcode, flags, 0, place, offset, address, *words)
        self._tail = tail + 1

    def submit(self) -> bool:
        """Hand over what was added; say whether the kernel took all of it."""
        _WORD.pack_into(self._ring, self._sq_tail_at, self._tail & 0xFFFFFFFF)
        self._submitted += self._enter(self._tail - self._submitted, 0, 0)
        return self._submitted == self._tail

    def _enter(self, submit: int, complete: int, flags: int) -> int:
        return _call(
            _SYS_ENTER, *map(ctypes.c_uint, (self.descriptor, submit, complete, flags)), None, None
        )

    def take_results(self) -> list[tuple[int, int]]:
        """Take (mark, result) of what is over; a negative result is an errno."""
        ring, results = self._ring, []
        (head,) = _WORD.unpack_from(ring, self._cq_head_at)
        (tail,) = _WORD.unpack_from(ring, self._cq_tail_at)
        if head == tail:
            return []
        while head != tail:
            at = self._cqes_at + (head & self._cq_mask) * _CQE.size
            mark, result, _ = _CQE.unpack_from(ring, at)
            results.append((mark, result))
            head = (head + 1) & 0xFFFFFFFF
        _WORD.pack_into(ring, self._cq_head_at, head)
        return results

    def wait(self) -> None:
        """Block until a result can be taken; raises InterruptedError where a signal came."""
        self._enter(0, 1, _ENTER_GETEVENTS)
