"""Run a command as an ordinary user of a narrow machine: `python ordinary_user.py '{…}' COMMAND…`.

Everything is given up before the command starts: root, locked memory, io_uring, processors. What
is mounted is mounted in a namespace of the command's own, and gone with it.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import sys
from pathlib import Path
from typing import Final

from clustor.runtime.seccomp import install, plan_filter

NOBODY: Final = 65_534
CLONE_NEWNS: Final = 0x0002_0000
_MS_BIND, _MS_REC, _MS_PRIVATE = 4096, 16_384, 1 << 18
_IO_URING: Final = frozenset({425, 426, 427})
_CALLS: Final = 457
_PR_SET_NO_NEW_PRIVS: Final = 38
IMPOSSIBLE: Final = 77
"""The exit code that says: this machine does not let us; standard error says why."""

_libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    """Become that user, then the command."""
    wanted, command = json.loads(sys.argv[1]), sys.argv[2:]
    try:
        if os.geteuid() == 0:
            _own_mounts(wanted)
        _limit(wanted)
        if os.geteuid() == 0:
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
    except OSError as error:
        sys.stderr.write(f"this machine does not let us: {error}\n")
        raise SystemExit(IMPOSSIBLE) from None
    if wanted.get("forbid_io_uring"):
        _forbid_io_uring()
    os.execv(command[0], command)  # it is the test's own command


def _own_mounts(wanted: dict[str, str]) -> None:
    """Mount what the case wants, and let this Python be read by everybody."""
    _check(_libc.unshare(CLONE_NEWNS), "unshare")
    _mount("none", "/", "", _MS_REC | _MS_PRIVATE)
    for prefix in {sys.base_prefix, sys.prefix, str(Path(__file__).parents[2])}:
        _reveal(Path(prefix))
    if "tmpfs" in wanted:
        options = f"size={wanted['size']},mode=0777"
        _mount("tmpfs", wanted["tmpfs"], "tmpfs", 0, options)
    if "overlay" in wanted:
        _mount_overlay(wanted["overlay"], wanted["size"])


def _mount_overlay(place: str, size: str) -> None:
    """Lay an overlay over a directory; its upper side is in memory, as containers often have it."""
    _mount("tmpfs", place, "tmpfs", 0, f"size={size},mode=0777")
    for name in ("lower", "upper", "work"):
        Path(place, name).mkdir(mode=0o777)
        Path(place, name).chmod(0o777)
    layers = ",".join(f"{name}dir={place}/{name}" for name in ("lower", "upper", "work"))
    _mount("overlay", place, "overlay", 0, layers)


def _reveal(prefix: Path) -> None:
    """Where a parent is closed to others, stand a copy of the way to `prefix` in its place."""
    closed = next((each for each in reversed(prefix.parents) if not each.stat().st_mode & 1), None)
    if closed is None:
        return
    held = os.open(prefix, os.O_PATH)
    _mount("tmpfs", str(closed), "tmpfs", 0, "mode=0755")
    prefix.mkdir(parents=True)
    _mount(f"/proc/self/fd/{held}", str(prefix), "", _MS_BIND | _MS_REC)
    os.close(held)


def _mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    words = (source.encode(), target.encode(), kind.encode() or None)
    failed = _libc.mount(*words, ctypes.c_ulong(flags), options.encode() or None)
    _check(failed, f"mount {target}")


def _check(failed: int, what: str) -> None:
    if failed:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), what)


def _limit(wanted: dict[str, int]) -> None:
    for name in ("memlock", "data", "nofile"):
        if name in wanted:
            kind = getattr(resource, f"RLIMIT_{name.upper()}")
            resource.setrlimit(kind, (wanted[name], wanted[name]))
    if "cpus" in wanted:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: wanted["cpus"]])


def _forbid_io_uring() -> None:
    _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl")
    install(plan_filter(frozenset(range(_CALLS)) - _IO_URING))


if __name__ == "__main__":
    main()
