"""Who leads and who hears of something first is luck, and no test may depend on it: here luck does
as it is told.

`LUCK_LEADER=2` lets node 2 lead every group of a new cluster before a test's body begins;
with `3,1,2` these nodes lead the groups in turn, in the order of their numbers. `roam` moves a
leader every second or two, as a slow machine does, in every cluster that is not patient.
`LUCK_SLOW=2` lets node 2 run for a fifth of the time only, in patient clusters: it hears of
everything last. What fails under one of them and passes under another states more than is promised.
(Tests that stop nodes themselves are not for the last one.)
"""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from clustor.runtime.peers.transport import Address
from quantum.cli.admin_client import AdminUnreachable, post
from quantum.cli.group_changes import GroupChanges

WISH: Final = os.environ.get("LUCK_LEADER", "")
ROAMS: Final = WISH == "roam"
SEATS: Final = [] if ROAMS else [int(node) for node in WISH.split(",") if node]
SLOW: Final = int(os.environ.get("LUCK_SLOW", "0"))
PACE_SECONDS: Final = 1.5
STANDS_SECONDS, RUNS_SECONDS = 0.4, 0.1
DEADLINE_SECONDS: Final = 180.0


def is_node(pid: int) -> bool:
    """Say whether a process is one of a cluster's nodes, and not another that got its number."""
    with suppress(OSError):
        return b"--cluster" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def has_leaders(admins: list[Address]) -> bool:
    """Say whether every node answers and every group is led."""
    changes = GroupChanges(admins, DEADLINE_SECONDS)
    answering = [node for node in changes.status()["nodes"] if "groups" in node]
    return len(answering) == len(admins) and changes.leading().keys() == changes.partitions()


def seat(admins: list[Address]) -> None:
    """Let the nodes lead that were named."""
    changes = GroupChanges(admins, DEADLINE_SECONDS)
    for turn, partition in enumerate(sorted(changes.partitions())):
        changes.transfer(partition, SEATS[turn % len(SEATS)])


class Meddler:
    """Does something beside a test until it is told to stop."""

    def __init__(self) -> None:
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join(DEADLINE_SECONDS)

    def _run(self) -> None:
        raise NotImplementedError


class Slowing(Meddler):
    """Lets a process stand still most of the time; `find` names it, or None while there is none."""

    def __init__(self, find: Callable[[], int | None]) -> None:
        self._find = find
        super().__init__()

    def _run(self) -> None:
        while not self._ended.wait(RUNS_SECONDS):
            pid = self._find()
            if pid is None or not is_node(pid):
                continue
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
                self._ended.wait(STANDS_SECONDS)
                os.kill(pid, signal.SIGCONT)


class Roaming(Meddler):
    """Moves one leader after the other."""

    def __init__(self, admins: Callable[[], list[Address]]) -> None:
        self._admins = admins
        super().__init__()

    def _run(self) -> None:
        while not self._ended.wait(PACE_SECONDS):
            with suppress(AdminUnreachable):
                self._move()

    def _move(self) -> None:
        admins = self._admins()
        groups = list(GroupChanges(admins, DEADLINE_SECONDS).leading().values())
        if groups:
            group = random.choice(groups)
            others = [voter for voter in group["voters"] if voter != group["leader_id"]]
            where = admins[group["leader_id"] - 1] if others else None
            if where is not None:
                path = f"/groups/{group['partition_id']}/leader"
                post(where, path, {"node_id": random.choice(others)})
