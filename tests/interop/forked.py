"""Nodes and commands that are forked from a process that has imported them, instead of executed.

A start by `exec` takes nearly two seconds of CPU, and the suite starts a thousand. What is asked
of `subprocess` for one of `PROGRAMS` is done by a server (`fork_server.py`); all else is executed
as ever. Forked processes have one seed of hashes: tests whose subject is that nodes agree
whatever their sets' order, and those of starting itself, execute (`EXECUTED` in the conftest).
"""

from __future__ import annotations

import ctypes
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, ClassVar, Final

import msgspec

PROGRAMS: Final = frozenset(
    {
        ("-c", "from quantum.cli import main; main()"),
        ("-c", "from quantum.cli.cluster import app; app()"),
        ("-c", "from quantum.cli.admin import app; app()"),
        ("-m", "quantum.cli"),
        ("-m", "quantum.admin.main"),
        ("-m", "clustor.runtime.main"),
    }
)
ORDER_BYTES_MAX: Final = 1 << 20
ROOT: Final = Path(__file__).parents[2]
_AT_START: Final = ("PYTHON", "LD_", "MALLOC", "TERM", "COLUMNS", "FORCE_", "NO_COLOR", "PY_")
"""Variables that count when an interpreter starts or a module is imported."""
_PR_SET_CHILD_SUBREAPER: Final = 36


class Order(msgspec.Struct):
    """A process to fork: what `python -c PROGRAM ARGUMENTS` or `python -m …` would be."""

    kind: str
    program: str
    arguments: list[str]
    environment: dict[str, str]
    directory: str
    new_session: bool
    process_group: int

    @property
    def starts_others(self) -> bool:
        """Whether it is a supervisor, whose nodes are forked as well."""
        return "quantum.cli.cluster" in self.program or self.arguments[:1] == ["cluster"]


class ForkingPopen(subprocess.Popen[Any]):
    """`subprocess.Popen` as it is, but for the moment in which it would fork and execute."""

    forks: ClassVar[bool] = True
    channel: ClassVar[socket.socket | None] = None
    server: ClassVar[subprocess.Popen[Any] | None] = None
    one_at_a_time: ClassVar = threading.Lock()

    def _execute_child(self, *given: Any) -> None:
        """Begin the process: the one private method of `subprocess` that does."""
        pipes = given[10:16]
        own = (pipes[0], pipes[3], pipes[5])
        files = [number if file == -1 else file for number, file in enumerate(own)]
        order = _order_of(*given) if self.forks else None
        if order is None or any(map(os.isatty, files)):
            super()._execute_child(*given)  # type: ignore[misc]  # typeshed does not list it
            return
        try:
            self.pid = _ask(order, files)
            self._child_created = True
        finally:
            self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]  # nor this


def _order_of(
    arguments: Any,
    executable: Any,
    before: Any,
    _close_files: bool,
    passed_files: Any,
    directory: Any,
    environment: Any,
    _startup: Any,
    _flags: Any,
    shell: bool,
    *rest: Any,
) -> Order | None:
    """Say what to fork; None where only `exec` is the same thing."""
    if executable or before or passed_files or shell or isinstance(arguments, (str, bytes)):
        return None
    *_, group, groups, user, mask, new_session, process_group = rest
    called, kind, program, *given = [*map(str, arguments), "", "", ""][: max(3, len(arguments))]
    if called != sys.executable or (kind, program) not in PROGRAMS:
        return None
    if (group, groups, user, mask) != (None, None, None, -1):
        return None
    wanted = dict(os.environ if environment is None else environment)
    if _at_start(wanted) != _at_start(dict(os.environ)):
        return None
    place = os.path.abspath(directory or os.getcwd())
    return Order(kind, program, given, wanted, place, new_session, process_group)


def _at_start(environment: dict[str, str]) -> dict[str, str]:
    return {name: each for name, each in environment.items() if name.startswith(_AT_START)}


def _ask(order: Order, files: list[int]) -> int:
    """Let the server fork a process, and return its number: it is a child of this one.

    For that moment orphans below come to this process instead of to the first one.
    """
    with ForkingPopen.one_at_a_time:
        channel = ForkingPopen.channel = ForkingPopen.channel or _start_server()
        _adopt(orphans=True)
        try:
            socket.send_fds(channel, [msgspec.json.encode(order)], files)
            answer = channel.recv(32)
        finally:
            _adopt(orphans=False)
    return int(answer)


def _adopt(*, orphans: bool) -> None:
    assert ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(orphans), 0, 0, 0) == 0


def _start_server() -> socket.socket:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        ForkingPopen.server = subprocess.Popen(
            [sys.executable, "-m", "tests.interop.fork_server", str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(),),
            cwd=ROOT,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        )
    return ours


def install(channel: socket.socket | None = None) -> None:
    """Let `subprocess` fork what it can in this process, from now on."""
    ForkingPopen.channel = channel
    if sys.platform == "linux":
        subprocess.Popen = ForkingPopen  # type: ignore[misc]  # as every caller finds it


def end_server() -> None:
    """Let the server end, if there is one; what it forked lives on."""
    if ForkingPopen.channel is not None:
        ForkingPopen.channel.close()
        ForkingPopen.channel = None
    if ForkingPopen.server is not None:
        ForkingPopen.server.wait()
        ForkingPopen.server = None
