"""What a node gives up when it starts, so that a bug in it is worth less (quantumqtt §9.7).

`harden` does what the machine allows and says of each measure whether it is in force; a cluster
whose `hardening` is "Require" does not start where one is not.
"""

from __future__ import annotations

import ctypes
import os
import resource
import stat
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from clustor.runtime.errors import HardeningRefused
from clustor.runtime.seccomp import install, is_possible, plan_filter

_PR_SET_DUMPABLE, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 4, 24, 38
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
_CAP_VERSION_3: Final = 0x2008_0522
NET_BIND_SERVICE, IPC_LOCK = 10, 14
KEPT: Final = 1 << NET_BIND_SERVICE | 1 << IPC_LOCK
"""To bind low ports; and for a disk whose registered buffers are locked memory."""
DAC_OVERRIDE: Final = 1
"""To write where another user owns the data directory: a mounted volume, say."""
_CAPABILITIES_MAX: Final = 64
_SETPCAP: Final = 8


class Hardening(StrEnum):
    """How a cluster wants it."""

    REPORT = "Report"  # as far as the machine allows, and the journal says how far
    REQUIRE = "Require"


class Measure(StrEnum):
    NO_CORE_DUMPS = "no core dumps"
    NO_NEW_PRIVILEGES = "no new privileges"
    CAPABILITIES = "no capability but NET_BIND_SERVICE and IPC_LOCK"
    SYSTEM_CALLS = "system calls are filtered"
    NOT_ROOT = "not root"
    SECRETS = "keys are for nobody else to read"


@dataclass(frozen=True, slots=True)
class HardeningResult:
    """Whether a measure is in force; if not, why."""

    measure: Measure
    problem: str = ""

    @property
    def in_force(self) -> bool:
        return not self.problem


def harden(data: Path, secrets: Iterable[Path]) -> tuple[HardeningResult, ...]:
    """Give up what can be given up; `secrets` are directories with keys. Called once, at a start.

    Before any thread is started: capabilities are each thread's own. In this order: the capability
    to drop capabilities goes with the others, and the filter refuses what the steps before need.
    """
    steps: tuple[tuple[Measure, Callable[[], str]], ...] = (
        (Measure.NO_CORE_DUMPS, _refuse_dumps),
        (Measure.NOT_ROOT, _look_who),
        (Measure.SECRETS, lambda: open_secrets(secrets)),
        (Measure.NO_NEW_PRIVILEGES, _refuse_privileges),
        (Measure.CAPABILITIES, lambda: _drop_capabilities(data)),
        (Measure.SYSTEM_CALLS, _filter_calls),
    )
    return tuple(HardeningResult(measure, _tried(step)) for measure, step in steps)


def require(standings: Iterable[HardeningResult]) -> None:
    """Raise HardeningRefused where something is not in force."""
    missing = [f"{each.measure.value}: {each.problem}" for each in standings if not each.in_force]
    if missing:
        raise HardeningRefused("the cluster requires hardening", missing="; ".join(missing))


def _tried(step: Callable[[], str]) -> str:
    if sys.platform != "linux":
        return "not on this system"
    try:
        return step()
    except OSError as error:
        return str(error)


def _refuse_dumps() -> str:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _prctl(_PR_SET_DUMPABLE, 0)
    return ""


def _look_who() -> str:
    return "it runs as root" if 0 in (os.getuid(), os.geteuid()) else ""


def open_secrets(directories: Iterable[Path]) -> str:
    """Name a directory of keys that others can look into; empty: there is none."""
    for directory in directories:
        if directory.exists():
            found = directory.stat()
            if stat.S_IMODE(found.st_mode) & 0o077:
                return f"{directory} is open to others (mode {stat.S_IMODE(found.st_mode):04o})"
            if found.st_uid not in (os.geteuid(), 0):
                return f"{directory} is another user's"
    return ""


def _refuse_privileges() -> str:
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    return ""


def _drop_capabilities(data: Path) -> str:
    """Keep two, where they were there; and what it takes to write into another's directory."""
    held = effective_capabilities()
    kept = KEPT if data.stat().st_uid == os.geteuid() else KEPT | 1 << DAC_OVERRIDE
    if held >> _SETPCAP & 1:
        for number in range(_CAPABILITIES_MAX):
            if not kept >> number & 1:
                try:
                    _prctl(_PR_CAPBSET_DROP, number)
                except OSError:  # the kernel knows no more of them
                    break
    _prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)
    _capset(held & kept)
    left = effective_capabilities() & ~KEPT
    return f"{data} is another user's, so DAC_OVERRIDE is kept" if left else ""


def effective_capabilities() -> int:
    """Return what this process may do, as the kernel counts it."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("CapEff:"):
            return int(line.split()[1], 16)
    raise OSError("/proc/self/status says nothing of capabilities")


def _filter_calls() -> str:
    if not is_possible():
        return "no filter for this machine"
    install(plan_filter())
    return ""


class _CapHeader(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _CapData(ctypes.Structure):
    _fields_ = (
        ("effective", ctypes.c_uint32),
        ("permitted", ctypes.c_uint32),
        ("inheritable", ctypes.c_uint32),
    )


def _capset(kept: int) -> None:
    header = _CapHeader(_CAP_VERSION_3, 0)
    data = (_CapData * 2)(_CapData(kept, kept, 0), _CapData(0, 0, 0))
    if ctypes.CDLL(None, use_errno=True).capset(ctypes.byref(header), data):
        raise OSError(ctypes.get_errno(), "capset")


def _prctl(option: int, value: int) -> None:
    call = ctypes.CDLL(None, use_errno=True).prctl
    arguments = [ctypes.c_ulong(each) for each in (value, 0, 0, 0)]
    if call(ctypes.c_int(option), *arguments):
        raise OSError(ctypes.get_errno(), f"prctl {option}")
