"""Which system calls a node may make: a filter in the kernel, for x86-64 (quantumqtt §9.7).

What a broker has no use for is refused with EPERM: other programs, other processes' memory, mounts,
modules, clocks, other users. What this list does not know is ENOSYS, so that a C library that is
newer than it falls back to older calls. Building the filter is pure; `install` is one system call.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import struct
from collections.abc import Collection, Iterable
from typing import Final, NamedTuple

_SECCOMP: Final = 317
_SET_MODE_FILTER: Final = 1
_FLAG_TSYNC: Final = 1  # all threads of the process
AUDIT_ARCH_X86_64: Final = 0xC000003E
_X32_BIT: Final = 0x4000_0000

# Classic BPF, as far as it is needed.
LOAD: Final = 0x20  # A = word at k
JUMP_EQUAL, JUMP_GREATER, JUMP_AT_LEAST = 0x15, 0x25, 0x35
RETURN: Final = 0x06
ALLOW: Final = 0x7FFF_0000
KILL: Final = 0x8000_0000
REFUSE: Final = 0x0005_0000 | errno.EPERM
UNKNOWN: Final = 0x0005_0000 | errno.ENOSYS
_NUMBER_AT, _ARCHITECTURE_AT = 0, 4

_KNOWN_LAST: Final = 456
_DENIED: Final = frozenset(
    {
        *(57, 58, 59, 322),  # fork, vfork, execve, execveat: a node starts no program
        *(101, 310, 311, 312, 438, 440, 448),  # ptrace, memory and files of other processes
        *(105, 106, 113, 114, 116, 117, 119, 122, 123, 126),  # users, groups, capabilities
        *(133, 259),  # device files
        *(134, 135, 136, 139, 154, 156, 174, 177, 178, 180, *range(181, 186), 212, 236),  # obsolete
        *(103, 153, 163, 169, 170, 171, 172, 173, 179, 443),  # the machine itself
        *(155, 161, 165, 166, 167, 168, 272, 308, *range(428, 434), 442),  # mounts, namespaces
        *(159, 164, 227, 305),  # clocks
        *(175, 176, 246, 313, 320),  # modules, other kernels
        *(216, 237, 238, 239, 256, 279, 450),  # where memory is
        *(
            248,
            249,
            250,
            298,
            300,
            301,
            303,
            304,
            321,
            323,
            444,
            445,
            446,
            447,
        ),  # keys, traces
        *range(335, 424),  # no such calls
    }
)
ALLOWED: Final = frozenset(range(_KNOWN_LAST + 1)) - _DENIED


class Instruction(NamedTuple):
    """One step of the filter; a jump goes so many steps further on."""

    code: int
    if_true: int
    if_false: int
    value: int


def plan_filter(allowed: Collection[int] = ALLOWED) -> tuple[Instruction, ...]:
    """Return the filter that allows these numbers, and refuses all others up to the last one."""
    ranges = list(_ranges(allowed))
    body: list[Instruction] = []
    # Behind the ranges stand: unknown, refuse, allow, kill.
    for number, (first, last) in enumerate(ranges):
        after = 2 * (len(ranges) - number)  # steps from this pair's first to the one behind all
        body.append(Instruction(JUMP_GREATER, 1, 0, last))
        body.append(Instruction(JUMP_AT_LEAST, after, after - 1, first))
    head = [
        Instruction(LOAD, 0, 0, _ARCHITECTURE_AT),
        Instruction(JUMP_EQUAL, 0, 2 * len(ranges) + 5, AUDIT_ARCH_X86_64),
        Instruction(LOAD, 0, 0, _NUMBER_AT),
        Instruction(JUMP_AT_LEAST, 2 * len(ranges) + 3, 0, _X32_BIT),
    ]
    ends = [Instruction(RETURN, 0, 0, value) for value in (UNKNOWN, REFUSE, ALLOW, KILL)]
    return (*head, *body, *ends)


def _ranges(numbers: Iterable[int]) -> Iterable[tuple[int, int]]:
    ordered = sorted(numbers)
    first = last = ordered[0]
    for number in ordered[1:]:
        if number != last + 1:
            yield first, last
            first = number
        last = number
    yield first, last


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def is_possible() -> bool:
    """Say whether the filter is for this machine."""
    return platform.system() == "Linux" and platform.machine() == "x86_64"


def install(instructions: tuple[Instruction, ...]) -> None:
    """Filter what all threads of this process call from now on; raises OSError.

    The process must have given up new privileges before, or be allowed to administrate.
    """
    encoded = b"".join(struct.pack("=HBBI", *each) for each in instructions)
    program = _Program(len(instructions), encoded)
    call = ctypes.CDLL(None, use_errno=True).syscall
    call.restype = ctypes.c_long
    failed = call(_SECCOMP, _SET_MODE_FILTER, _FLAG_TSYNC, ctypes.byref(program))
    if failed:
        code = ctypes.get_errno()
        raise OSError(code, "seccomp")
