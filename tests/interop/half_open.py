"""Open connections that never finish a CONNECT: `-m tests.interop.half_open PORT COUNT WAVES`.

Each wave leaves the sockets of the one before it open until the server closes them, or the next
but one begins. Prints one line when all waves are through, and holds the last until its input ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import resource
import sys

BEGINNINGS = (b"", b"\x10", b"\x10\x20\x00\x04MQ", b"\x10\xff\xff")
AT_ONCE = 500
SOURCE = (f"127.0.1.{os.getpid() % 250 + 2}", 0)
"""An address of its own: ports of 127.0.0.1 are everybody's, and there are 28,000 of them."""


async def open_one(port: int, beginning: bytes) -> asyncio.StreamWriter | None:
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(180):
            _, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=SOURCE)
            writer.write(beginning)
            return writer
    return None


async def wave(port: int, count: int, rng: random.Random) -> list[asyncio.StreamWriter]:
    held: list[asyncio.StreamWriter] = []
    for begin in range(0, count, AT_ONCE):
        many = [rng.choice(BEGINNINGS) for _ in range(min(AT_ONCE, count - begin))]
        opened = await asyncio.gather(*(open_one(port, each) for each in many))
        held += [writer for writer in opened if writer is not None]
    return held


async def main(port: int, count: int, waves: int) -> None:
    rng = random.Random(port)
    opened = 0
    held: list[asyncio.StreamWriter] = []
    for _ in range(waves):
        fresh = await wave(port, count, rng)
        opened += len(fresh)
        for writer in held:
            writer.transport.abort()
        held = fresh
    print(opened, flush=True)
    await asyncio.to_thread(sys.stdin.read)
    for writer in held:
        writer.transport.abort()


if __name__ == "__main__":
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    asyncio.run(main(*map(int, sys.argv[1:4])))
