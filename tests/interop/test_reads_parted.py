"""Reads of every kind through every node, while the network between them is cut.

Linearizable reads must fit into one order with all writes. What followers and watches show may be
old, but never wrong: each revision is one change, the same to everybody, and nobody goes back.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random

import pytest

from clustor.control.moves import SetFollowerReads
from clustor.kv import Conflict, KvRecord
from clustor.runtime.kv.client import KvClient, KvUnavailable
from clustor.runtime.peers.transport import Address
from clustor.sim import linearizability
from clustor.sim.history import CallHistory, Process
from clustor.sim.models import Cas, KeyValue, KvCall, ModelGet, ModelPut
from tests.clustor.runtime.waiting import until
from tests.interop.control_process import call_once
from tests.interop.namespaces import CLIENT, Network, why_impossible, within
from tests.interop.node_processes import NodeProcesses
from tests.interop.test_cluster import BUDGET
from tests.interop.test_partitions import Field, cut_at_random

KEYS = 3
WRITERS, READERS = 3, 4
TIMEOUT_SECONDS = 4.5

IMPOSSIBLE = why_impossible()
pytestmark = pytest.mark.skipif(IMPOSSIBLE is not None, reason=str(IMPOSSIBLE))


class ReadLoad:
    """Writers, and readers of every kind; what they saw is judged at the end."""

    def __init__(self, addresses: list[Address]) -> None:
        self._addresses = addresses
        self._processes = itertools.count()
        self.history: CallHistory[KvCall] = CallHistory()
        self.changes: dict[int, tuple[bytes, bytes]] = {}
        """What each revision changed, whoever showed it."""
        self.seen: Counter[str] = Counter()
        self.stopping = False

    def client(self, first: int = 0) -> KvClient:
        turned = self._addresses[first:] + self._addresses[:first]
        return KvClient(turned, timeout_seconds=TIMEOUT_SECONDS)

    async def run(self) -> None:
        """Load until `stopping`."""
        nodes = range(len(self._addresses))
        async with asyncio.TaskGroup() as group:
            for worker in range(WRITERS):
                group.create_task(self._repeat(worker, self._write))
            for worker in range(READERS):
                group.create_task(self._repeat(worker, self._read))
            for node in nodes:
                group.create_task(self._read_snapshots(node))
                group.create_task(self._watch(node))

    async def _repeat(self, worker: int, turn: object) -> None:
        assert callable(turn)
        process = Process(next(self._processes))
        async with self.client(worker % len(self._addresses)) as client:
            for number in itertools.count():
                if self.stopping:
                    return
                try:
                    await turn(client, process, worker, number)
                except KvUnavailable as error:
                    if error.maybe_applied:
                        self.history.unknown(process)
                        process = Process(next(self._processes))
                    else:
                        self.history.did_not_happen(process)

    async def _write(self, client: KvClient, process: Process, worker: int, turn: int) -> None:
        key, value = b"key-%d" % (turn % KEYS), b"%d:%d" % (worker, turn)
        if turn % 2:
            expected = b"%d:%d" % ((worker + 1) % WRITERS, turn - KEYS)
            self.history.invoke(process, Cas(key, expected, value))
            reply = await client.cas_value(key, expected, value)
            self.history.ok(process, not isinstance(reply, Conflict))
        else:
            self.history.invoke(process, ModelPut(key, value))
            await client.put(key, value)
            self.history.ok(process)
        self.seen["writes"] += 1

    async def _read(self, client: KvClient, process: Process, worker: int, turn: int) -> None:
        key = b"key-%d" % ((worker + turn) % KEYS)
        self.history.invoke(process, ModelGet(key))
        record = await client.get(key)
        self.history.ok(process, None if record is None else record.value)
        self.seen["reads"] += 1
        if record is not None:
            self.show(record)

    async def _read_snapshots(self, node: int) -> None:
        """Ask one node alone, of what it has: it never goes back."""
        alone = [self._addresses[node]] * 2  # two: it then asks for no others
        async with KvClient(alone, timeout_seconds=TIMEOUT_SECONDS / 3) as client:
            newest = 0
            while not self.stopping:
                with suppress(KvUnavailable):
                    page = await client.range(b"key-", b"key.", 10, snapshot_only=True)
                    assert page.revision >= newest, f"node {node} went back"
                    newest = page.revision
                    self.seen["snapshots"] += 1
                    for record in page.records:
                        self.show(record)
                await asyncio.sleep(0.005)

    async def _watch(self, node: int) -> None:
        """Watch from the beginning: every change once, in order."""
        revision = 0
        async with self.client(node) as client:
            watching = client.watch([b"key-"], 0)
            while not self.stopping:
                try:
                    async with asyncio.timeout(TIMEOUT_SECONDS):
                        found = await anext(watching)
                except TimeoutError:  # that ends the generator: watch on from here
                    watching = client.watch([b"key-"], revision)
                    continue
                for record in found.events:
                    assert record.mod_revision > revision, "a watch went back"
                    revision = record.mod_revision
                    self.show(record)
                revision = max(revision, found.through)
                self.seen["watched"] += len(found.events)
            await watching.aclose()

    def show(self, record: KvRecord) -> None:
        """Take what somebody was shown: a revision is one change, whoever shows it."""
        shown = (bytes(record.key), bytes(record.value))
        assert self.changes.setdefault(record.mod_revision, shown) == shown, record

    def has(self, more: Counter[str]) -> bool:
        return all(self.seen[kind] >= count for kind, count in more.items())

    def judge(self) -> None:
        verdict = linearizability.check(self.history.operations(), KeyValue(), budget=BUDGET)
        assert isinstance(verdict, linearizability.Ok), verdict
        print(f"\n{dict(self.seen)}")


class ReadField(Field):
    """A cluster whose followers may read, under a load of every kind of read."""

    async def under_reads(self, rng: Random, cuts: int) -> ReadLoad:
        load = ReadLoad(self.nodes.admins())
        loading = asyncio.create_task(load.run())
        try:
            await self.is_read(load, loading)
            for _ in range(cuts):
                cut_at_random(self, rng)
                await asyncio.sleep(rng.uniform(0.2, 1.2))  # long enough for an election, or not
                if rng.random() < 0.6:
                    self.network.heal()
            self.network.heal()
            await self.is_read(load, loading)
        finally:
            load.stopping = True
        await loading
        return load

    async def is_read(self, load: ReadLoad, loading: asyncio.Task[None]) -> None:
        """Wait until every kind of read that begins now is answered."""
        wanted = Counter({kind: load.seen[kind] + 30 for kind in KINDS})
        await until(lambda: loading.done() or load.has(wanted), "all kinds are answered")
        if loading.done():
            loading.result()


KINDS = ("reads", "snapshots", "watched", "writes")


@pytest.fixture
def field(tmp_path: Path) -> Iterator[ReadField]:
    yield from made(tmp_path, 3)


@pytest.fixture
def field_of_five(tmp_path: Path) -> Iterator[ReadField]:
    yield from made(tmp_path, 5)


def made(root: Path, count: int) -> Iterator[ReadField]:
    with Network(count) as network, NodeProcesses(root / "cluster", network, count) as nodes:
        nodes.until(nodes.agree, "all nodes agree at first")
        within(network.namespace(CLIENT), partial(let_followers_read, nodes))
        yield ReadField(network, nodes)


def let_followers_read(nodes: NodeProcesses) -> None:
    command = SetFollowerReads(partition_id=1, capability=True)
    turn = itertools.cycle(nodes.admins())
    nodes.until(lambda: call_once(next(turn), command, "grant")[0] == 200, "followers may read")


def run(field: ReadField, cuts: int) -> None:
    seed = int.from_bytes(os.urandom(4))
    print(f"\nseed {seed}")
    story = partial(field.under_reads, Random(seed), cuts)
    load = within(field.network.namespace(CLIENT), lambda: asyncio.run(story()))
    load.judge()
    for kind in KINDS:
        assert load.seen[kind] > 30, load.seen


def test_every_kind_of_read_is_right_under_a_few_cuts(field: ReadField) -> None:
    run(field, 4)


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_every_kind_of_read_is_right_under_a_hundred_cuts(field_of_five: ReadField) -> None:
    run(field_of_five, 100)
