"""Waiting on conditions: a deadline instead of a sleep that hopes."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path

DEADLINE_SECONDS = 180.0
_POLL_SECONDS = 0.01
_LISTENING = "0A"  # the state of a socket in /proc/net/tcp
BLOCK_PORTS = 80
_ours: deque[int] = deque()
"""What is left of a block that this process keeps for single ports."""


async def until(condition: Callable[[], bool], what: str) -> None:
    """Return as soon as the condition holds; fail with `what` after the deadline."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"never: {what}"
        await asyncio.sleep(_POLL_SECONDS)


def free_base_port(nodes: int) -> int:
    """Find a base port whose ten-port blocks for so many nodes are free, and keep it.

    The base itself is no node's port. It stays bound until this process ends, so that no other
    test takes the same block between this call and the start of the nodes. All are below the
    ports that the kernel gives out, and each process begins elsewhere.
    """
    bases: list[int] = list(range(10_000, 32_600, BLOCK_PORTS))
    assert 10 * nodes + 8 < BLOCK_PORTS, "a block is too small for so many nodes"
    start = os.getpid() * 31 % len(bases)
    for base in bases[start:] + bases[:start]:
        guard = _bound(base)
        if guard is None:
            continue
        ports = [base + 10 * node + role for node in range(1, nodes + 1) for role in range(8)]
        if all(map(_is_free, ports)):
            guard.detach()  # for the life of the process, without an owner that must close it
            return base
        guard.close()
    raise AssertionError("no free ports")


def free_ports(count: int) -> list[int]:
    """Find ports that nobody else takes: the kernel gives none of them to a connection.

    A port that was bound as 0 and let go is one of those that it gives out, to anybody at all.
    """
    found: list[int] = []
    while len(found) < count:
        if not _ours:
            base = free_base_port(0)
            _ours.extend(range(base + 1, base + BLOCK_PORTS))
        port = _ours.popleft()
        if _is_free(port):
            found.append(port)
    return found


def all_listen(ports: Iterable[int]) -> bool:
    """Say whether somebody listens on each of these ports; nobody is called to find out."""
    rows = map(str.split, Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:])
    heard = {int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == _LISTENING}
    return heard.issuperset(ports)


def silent_port() -> int:
    """Find a port where nobody listens, as long as this process lives: it is bound and no more."""
    return free_base_port(0)


def _bound(port: int) -> socket.socket | None:
    probe = socket.socket()
    try:
        probe.bind(("127.0.0.1", port))
    except OSError:
        probe.close()
        return None
    return probe


def _is_free(port: int) -> bool:
    probe = _bound(port)
    if probe is None:
        return False
    probe.close()
    return True
