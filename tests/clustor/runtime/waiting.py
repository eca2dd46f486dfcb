"""Waiting on conditions: a deadline instead of a sleep that hopes."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Callable

DEADLINE_SECONDS = 60.0
_POLL_SECONDS = 0.01


async def until(condition: Callable[[], bool], what: str) -> None:
    """Return as soon as the condition holds; fail with `what` after the deadline."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"never: {what}"
        await asyncio.sleep(_POLL_SECONDS)


def free_base_port(nodes: int) -> int:
    """Find a base port whose ten-port blocks for so many nodes are free now.

    Below the ports that the kernel gives out, and from another place in each process, so that
    tests that run at the same time do not take each other's.
    """
    bases: list[int] = list(range(15_000, 32_000, 100))
    start = os.getpid() * 31 % len(bases)
    for base in bases[start:] + bases[:start]:
        if all(
            _is_free(base + 10 * node + role) for node in range(1, nodes + 1) for role in (0, 1)
        ):
            return base
    raise AssertionError("no free ports")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
