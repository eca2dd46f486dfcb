"""What a process gives up at its start, seen in a process that did it; and who may not start."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from clustor.runtime.errors import HardeningRefused
from clustor.runtime.hardening import (
    DAC_OVERRIDE,
    KEPT,
    HardeningResult,
    Measure,
    open_secrets,
    require,
)
from clustor.runtime.seccomp import (
    ALLOW,
    ALLOWED,
    AUDIT_ARCH_X86_64,
    JUMP_AT_LEAST,
    JUMP_EQUAL,
    JUMP_GREATER,
    KILL,
    LOAD,
    REFUSE,
    RETURN,
    UNKNOWN,
    Instruction,
    is_possible,
    plan_filter,
)

EXECVE, PTRACE, MOUNT, BPF, SETUID, REBOOT = 59, 101, 165, 321, 105, 169
NEEDED = {
    "read": 0, "mmap": 9, "pwrite64": 18, "clone": 56, "exit": 60, "fdatasync": 75,
    "rename": 82, "futex": 202, "epoll_wait": 232, "openat": 257, "accept4": 288, "prctl": 157,
    "getrandom": 318, "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427,
    "clone3": 435, "rseq": 334, "statx": 332, "copy_file_range": 326, "flock": 73,
}  # fmt: skip


def run(program: tuple[Instruction, ...], architecture: int, number: int) -> int:
    """Do what the kernel does with a filter."""
    words, at, held = {0: number, 4: architecture}, 0, 0
    while True:
        code, if_true, if_false, value = program[at]
        at += 1
        if code == RETURN:
            return value
        if code == LOAD:
            held = words[value]
            continue
        holds = {
            JUMP_EQUAL: held == value,
            JUMP_GREATER: held > value,
            JUMP_AT_LEAST: held >= value,
        }[code]
        at += if_true if holds else if_false


def test_the_filter_decides_each_number_as_the_list_does() -> None:
    program = plan_filter()
    for number in range(1_000):
        told = run(program, AUDIT_ARCH_X86_64, number)
        last = max(ALLOWED)
        wanted = ALLOW if number in ALLOWED else REFUSE if number < last else UNKNOWN
        assert told == wanted, number
    assert run(program, 0x4000_0003, 0) == KILL  # 32-bit calls have other numbers
    assert run(program, AUDIT_ARCH_X86_64, 0x4000_0000 | EXECVE) != ALLOW  # and x32 too
    assert all(0 <= jump < 256 for each in program for jump in each[1:3])


def test_what_a_broker_needs_is_allowed_and_what_it_must_not_is_refused() -> None:
    assert not set(NEEDED.values()) - ALLOWED
    assert not {EXECVE, PTRACE, MOUNT, BPF, SETUID, REBOOT} & ALLOWED


PROBE = """
import ctypes, json, os, resource, threading
from pathlib import Path
from clustor.runtime.hardening import effective_capabilities, harden
standings = harden(Path(os.environ["DATA"]), [Path(os.environ["SECRETS"])])
Path(os.environ["DATA"], "written").write_bytes(b"")
def number(call, *arguments):
    try:
        call(*arguments)
        return 0
    except OSError as error:
        return error.errno
seen = []
thread = threading.Thread(target=lambda: seen.append(number(os.chroot, "/")))
thread.start()
thread.join()
status = dict(
    line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line
)
print(json.dumps({
    "missing": [each.measure.value for each in standings if not each.in_force],
    "capabilities": effective_capabilities(),
    "core": resource.getrlimit(resource.RLIMIT_CORE),
    "dumpable": ctypes.CDLL(None).prctl(3, 0, 0, 0, 0),
    "seccomp": status["Seccomp"].strip(),
    "new_privileges": status["NoNewPrivs"].strip(),
    "exec": number(os.execv, "/bin/true", ["true"]),
    "setuid": number(os.setuid, 0),
    "thread": seen[0],
    "file": len(Path("/proc/self/status").read_bytes()) > 0,
}))
"""


def probe(data: Path, secrets: Path) -> dict[str, Any]:
    environment = {**os.environ, "DATA": str(data), "SECRETS": str(secrets)}
    done = subprocess.run(
        [sys.executable, "-c", PROBE], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


@pytest.mark.skipif(os.geteuid() != 0 or not is_possible(), reason="only root owns others' files")
def test_root_goes_on_writing_into_a_directory_of_another_user(tmp_path: Path) -> None:
    data = tmp_path / "volume"
    data.mkdir(mode=0o755)
    os.chown(data, 1_000, 1_000)
    told = probe(data, tmp_path / "none")
    assert (data / "written").exists()
    assert told["capabilities"] & ~KEPT == 1 << DAC_OVERRIDE
    assert Measure.CAPABILITIES.value in told["missing"]


@pytest.mark.skipif(not is_possible(), reason="the filter is for x86-64 Linux")
def test_a_process_that_hardened_itself_has_nothing_left_to_give(tmp_path: Path) -> None:
    secrets = tmp_path / "keys"
    secrets.mkdir(mode=0o700)
    told = probe(tmp_path, secrets)
    assert set(told["missing"]) <= {Measure.NOT_ROOT.value}
    assert told["capabilities"] & ~KEPT == 0
    assert (told["core"], told["dumpable"]) == ([0, 0], 0)
    assert (told["seccomp"], told["new_privileges"]) == ("2", "1")
    assert told["exec"] == told["setuid"] == told["thread"] == errno.EPERM
    assert told["file"]


def test_keys_that_others_can_read_are_named(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.mkdir(mode=0o700)
    assert open_secrets([keys, tmp_path / "missing"]) == ""
    keys.chmod(0o750)
    assert "is open to others (mode 0750)" in open_secrets([keys])


def test_a_cluster_that_requires_it_does_not_start_without() -> None:
    require([HardeningResult(Measure.NOT_ROOT)])
    with pytest.raises(HardeningRefused, match="not root: it runs as root"):
        require(
            [HardeningResult(Measure.SECRETS), HardeningResult(Measure.NOT_ROOT, "it runs as root")]
        )
