"""The processes of a development cluster: found by the locks that they hold, and stopped."""

from __future__ import annotations

import fcntl
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from clustor.runtime.cluster_file import CLUSTER_FILE, read_cluster_file
from clustor.runtime.data_directory import LOCK_FILE, holder_of, write_pid
from clustor.runtime.development import node_directory
from clustor.runtime.errors import DataDirectoryInUse

SUPERVISOR_LOCK: Final = "supervisor.lock"
STOP_SECONDS_MAX: Final = 60.0  # a supervisor gives its nodes 30, whoever has none gets as many
_LOOK_SECONDS: Final = 0.05


@contextmanager
def supervising(root: Path) -> Iterator[None]:
    """Be the one who keeps this cluster's nodes. Raises DataDirectoryInUse where there is another,
    or where nodes run that one before left behind.
    """
    lock = os.open(root / SUPERVISOR_LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DataDirectoryInUse(
                "the cluster runs already: `quantum cluster down` stops it",
                directory=str(root),
                process=holder_of(root / SUPERVISOR_LOCK) or "unknown",
            ) from None
        orphans = running_nodes(root)
        if orphans:
            named = ", ".join(f"node {node} is process {pid}" for node, pid in orphans.items())
            raise DataDirectoryInUse(
                "nodes still run that an earlier `cluster up` left when it was killed: "
                f"`quantum cluster down --data {root}` stops them",
                processes=named,
            )
        write_pid(lock)
        yield
    finally:
        os.close(lock)


def running_nodes(root: Path) -> dict[int, int]:
    """Return the processes of the cluster's nodes that run, by the nodes' numbers."""
    found = {}
    for entry in read_cluster_file(root / CLUSTER_FILE).nodes:
        pid = holder_of(node_directory(root, entry.id) / LOCK_FILE)
        if pid is not None:
            found[entry.node_id] = pid
    return found


def stop_cluster(root: Path) -> dict[str, int]:
    """Ask whoever keeps the cluster to end, then nodes that nobody keeps; return who was asked.

    Raises TimeoutError where somebody goes on.
    """
    deadline = time.monotonic() + STOP_SECONDS_MAX
    asked: dict[str, int] = {}
    supervisor = holder_of(root / SUPERVISOR_LOCK)
    if supervisor:
        asked["cluster up"] = supervisor
        _ask(supervisor)
        while holder_of(root / SUPERVISOR_LOCK) == supervisor:
            _look_again(deadline, f"cluster up (process {supervisor})")
    for node, pid in running_nodes(root).items():
        if pid:
            asked[f"node {node}"] = pid
            _ask(pid)
    while left := running_nodes(root):
        _look_again(deadline, ", ".join(f"node {each} (process {left[each]})" for each in left))
    return asked


def _ask(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)


def _look_again(deadline: float, whom: str) -> None:
    if time.monotonic() > deadline:
        raise TimeoutError(f"{whom} did not stop in time; `kill -9` ends it, and loses nothing")
    time.sleep(_LOOK_SECONDS)
