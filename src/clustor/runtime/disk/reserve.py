"""Reserving room for a file without changing its length, which `os.posix_fallocate` cannot."""

from __future__ import annotations

import ctypes
import errno
import os

RESERVE_STEP_BYTES = 4 << 20
"""So much at a time: a new log of many groups takes little room, and extents are still long."""

_FALLOC_FL_KEEP_SIZE = 0x01
_UNSUPPORTED = frozenset({errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL})

_libc = ctypes.CDLL(None, use_errno=True)
_fallocate = getattr(_libc, "fallocate64", None) or _libc.fallocate
_fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
_fallocate.restype = ctypes.c_int


def reserve(descriptor: int, size_bytes: int, offset: int = 0) -> bool:
    """Reserve `size_bytes` of disk for the file from `offset`; say whether the filesystem could.

    Raises OSError when it can but has no room. What exceeds the room is not even tried: the
    kernel would take all there is before it gives up, and starve every other file meanwhile.
    """
    room = os.fstatvfs(descriptor)
    if size_bytes > room.f_bavail * room.f_frsize:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    while _fallocate(descriptor, _FALLOC_FL_KEEP_SIZE, offset, size_bytes) != 0:
        code = ctypes.get_errno()
        if code in _UNSUPPORTED:
            return False
        if code != errno.EINTR:
            raise OSError(code, os.strerror(code))
    return True
