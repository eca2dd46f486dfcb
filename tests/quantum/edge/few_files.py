"""A listener in a process that may open few files; prints its port, echoes, ends with stdin."""

from __future__ import annotations

import asyncio
import os
import resource
import sys

import uvloop

from quantum.edge.listener import Listener
from quantum.edge.lobby import Lobby
from tests.quantum.edge.recording import HOST, Handlers

SPARE = 8


async def serve() -> None:
    listener = Listener("mqtt", Lobby(), Handlers(), tenant="dev")
    await listener.start(HOST, 0)
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    open_files = len(os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (open_files + SPARE, hard))
    sys.stdout.write(f"{listener.port}\n")
    sys.stdout.flush()
    await reader.read()


if __name__ == "__main__":
    uvloop.run(serve())
