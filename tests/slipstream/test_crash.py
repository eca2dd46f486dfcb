"""`kill -9` in the middle of a watch, over and over, while the bucket changes."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
from asyncio.subprocess import PIPE, Process
from pathlib import Path
from typing import Any, Self

import pytest

from slipstream.folds import fold_backend
from slipstream.types import StoreConfig
from tests.slipstream.conftest import Bucket, NatsLab
from tests.slipstream.fold_cases import contents
from tests.slipstream.servers import NatsServer

STATIC_KEYS = 300  # A replay of everything would deliver these again.
CHILD = str(Path(__file__).with_name("crash_child.py"))
SOURCES = str(Path(__file__).parents[2] / "src")


class Nursery:
    """Starts watches in processes of their own, one at a time, and kills them."""

    def __init__(self, process: Process, *words: str) -> None:
        self._process, self._words = process, words
        self.pid = 0

    @classmethod
    async def open(cls, *words: str) -> Self:
        environment = {**os.environ, "PYTHONPATH": SOURCES}
        process = await asyncio.create_subprocess_exec(
            sys.executable, CHILD, stdin=PIPE, stdout=PIPE, env=environment
        )
        return cls(process, *words)

    async def start(self, ending: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write((" ".join([*self._words, ending]) + "\n").encode())
        self.pid = (await self.next_line())["pid"]

    async def next_line(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        async with asyncio.timeout(90):
            facts: dict[str, Any] = json.loads(await self._process.stdout.readline())
        return facts

    async def rest(self) -> list[dict[str, Any]]:
        """Everything that the watch still said before its end, and how it ended."""
        lines = [await self.next_line()]
        while "ended" not in lines[-1]:
            lines.append(await self.next_line())
        return lines

    async def kill(self) -> list[dict[str, Any]]:
        os.kill(self.pid, signal.SIGKILL)
        *lines, end = await self.rest()
        assert end == {"ended": -signal.SIGKILL}
        return lines

    async def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        await self._process.wait()


async def churn(bucket: Bucket, rng: random.Random) -> None:
    """Change keys without an end."""
    for number in range(sys.maxsize):
        key = f"hot.{rng.randrange(50)}"
        if rng.random() < 0.2:
            await bucket.writer.delete(key)
        else:
            await bucket.writer.put(key, b"%d" % number)


def check_delta_only(facts: dict[str, Any], known: int) -> None:
    """Every delivery was a revision after the cursor that the fold came up with."""
    assert not facts["resynced"]
    assert facts["resumed_from"] >= known, "the fold forgot what it had reported"
    if facts["delivered"]:
        assert facts["lowest"] > facts["resumed_from"]
        assert facts["delivered"] <= facts["cursor"] - facts["resumed_from"]


async def survive(
    lab: NatsLab, server: NatsServer, path: Path, store: str, kills: int, seed: int
) -> None:
    rng = random.Random(seed)
    bucket = await lab.bucket(StoreConfig(bytes_max=None))
    for number in range(STATIC_KEYS):
        await bucket.writer.put(f"static.{number}", b"v")
    nursery = await Nursery.open(server.url, bucket.name, store, str(path))
    await nursery.start("finish")
    assert (await nursery.rest())[-1] == {"ended": 0}
    changing = asyncio.ensure_future(churn(bucket, random.Random(seed + 1)))
    known = STATIC_KEYS
    try:
        for _ in range(kills):
            await nursery.start("forever")
            lines = [await nursery.next_line() for _ in range(rng.randrange(1, 6))]
            lines += await nursery.kill()
            for facts in lines:
                check_delta_only(facts, known)
            known = lines[-1]["cursor"]
    finally:
        changing.cancel()
        await asyncio.gather(changing, return_exceptions=True)
    await nursery.start("finish")
    *lines, end = await nursery.rest()
    assert end == {"ended": 0}
    check_delta_only(lines[-1], known)
    await nursery.close()
    with fold_backend(store).load(path) as fold:
        wanted = {entry.key: entry.value for entry in await bucket.reader.scan()}
        assert contents(fold) == wanted


# A store of RocksDB takes longer to open with each kill, while the bucket goes on changing:
# eight catch what is not written, or not at once, as twenty do in ten times the time.
@pytest.mark.parametrize(("store", "kills"), [("log", 20), ("sqlite", 20), ("rocksdb", 8)])
async def test_every_kill_resumes_by_delta_and_the_fold_converges(
    nats_lab: NatsLab, nats_server: NatsServer, tmp_path: Path, store: str, kills: int
) -> None:
    await survive(nats_lab, nats_server, tmp_path / "fold", store, kills=kills, seed=20)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("store", ["log", "sqlite", "rocksdb"])
async def test_a_hundred_kills_resume_by_delta_and_the_fold_converges(
    nats_lab: NatsLab, nats_server: NatsServer, tmp_path: Path, store: str, seed: int
) -> None:
    await survive(nats_lab, nats_server, tmp_path / "fold", store, kills=100, seed=seed)


async def test_a_fold_converges_through_servers_that_are_killed_under_it(
    own_nats_server: NatsServer, tmp_path: Path
) -> None:
    """The watch is not told, and it must not be silently dead afterwards."""
    from slipstream import NatsConnection, watch_applied
    from slipstream.folds import AppendLogSnapshot
    from tests.slipstream.conftest import fast

    connection = NatsConnection(fast(own_nats_server.url))
    await connection.connect()
    bucket = await NatsLab(connection).bucket()
    await bucket.writer.put("static", b"v")
    stop = asyncio.Event()
    with AppendLogSnapshot.load(tmp_path / "fold") as fold:
        running = asyncio.ensure_future(watch_applied(bucket.watcher, fold=fold, stop=stop))
        for number in range(3):
            await asyncio.to_thread(own_nats_server.kill)
            await asyncio.to_thread(own_nats_server.start)
            other = NatsConnection(fast(own_nats_server.url))
            await other.connect()
            writer = (await other.store(bucket.name)).writer()
            last = (await writer.put("k", b"%d" % number)).as_u64()
            await other.shutdown()
            async with asyncio.timeout(90):
                while fold.cursor.as_u64() != last:
                    assert not running.done(), running
                    await asyncio.sleep(0.005)
        stop.set()
        report = await running
        assert not report.resynced
        assert contents(fold) == {"static": b"v", "k": b"2"}
    await connection.shutdown()
