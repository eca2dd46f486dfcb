"""Streams on real nodes, real disks and real sockets: nothing acknowledged is lost by kill -9."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from threading import Thread

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from clustor.raft.durability import EVERYTHING
from clustor.raft.profiles import CONSISTENCY_PROFILE
from clustor.replica import ReplicaSettings, StreamMachine, apply_entry
from clustor.replica.opening import prepare_open
from clustor.runtime.cluster_file import CLUSTER_FILE
from clustor.runtime.data_directory import IDENTITY_DIRECTORY, STATE_DIRECTORY
from clustor.runtime.development import node_directory, prepare_cluster
from clustor.runtime.disk import BlockingDisk, DirectoryStorage
from clustor.runtime.keys.store import KEYS_DIRECTORY, load_keyring
from clustor.runtime.pki.identity import NodeId, cluster_id, utc_now
from clustor.sim.stream_machine import SimStreamMachine
from clustor.streams import StreamFileReader, take_view
from tests.clustor.runtime.waiting import free_base_port
from tests.interop.streaming_node import CONFIG, GROUP, payload_of

NODES = (1, 2, 3)
DEADLINE_SECONDS = 60.0


class Nodes:
    """Three processes, and what they said."""

    def __init__(self, root: Path, base_port: int) -> None:
        self.root = root
        prepare_cluster(
            root, cluster_id("dev"), nodes=3, base_port=base_port, groups=1, now=utc_now()
        )
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._listening: list[Thread] = []
        self.acks: list[tuple[int, int, int]] = []
        self.reads = dict.fromkeys(NODES, 0)
        self.failures: list[bytes] = []

    def start(self, node: int) -> None:
        command = [sys.executable, "-m", "tests.interop.streaming_node"]
        command += ["--cluster", str(self.root / CLUSTER_FILE), "--node", str(node)]
        command += ["--data", str(node_directory(self.root, NodeId(node)))]
        with (self.root / f"node-{node}.log").open("ab") as journal:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=journal
            )
        self._running[node] = process
        listening = Thread(target=self._listen, args=(node, process), daemon=True)
        listening.start()
        self._listening.append(listening)

    def _listen(self, node: int, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        with process.stdout as said:
            for line in said:
                if line.endswith(b"\n"):  # else it was killed in the middle of it
                    self._hear(node, line)

    def _hear(self, node: int, line: bytes) -> None:
        kind, *numbers = line.split()
        if kind == b"ack":
            partition, first, number = map(int, numbers)
            self.acks.append((partition, first, number))
        elif kind == b"read":
            self.reads[node] += 1
        else:
            self.failures.append(line)

    def kill(self, node: int) -> None:
        process = self._running.pop(node)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()

    def kill_all(self) -> None:
        """End them as a power cut of the whole rack would end their processes."""
        for node in list(self._running):
            self.kill(node)
        for thread in self._listening:
            thread.join()

    def wait_for_acks(self, more: int) -> None:
        wanted, end = len(self.acks) + more, time.monotonic() + DEADLINE_SECONDS
        while len(self.acks) < wanted:
            assert time.monotonic() < end, f"{len(self.acks)} of {wanted} acks, {self.failures}"
            time.sleep(0.01)


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    made = Nodes(tmp_path / "c", free_base_port(3))
    for node in NODES:
        made.start(node)
    yield made
    made.kill_all()


def test_what_was_acknowledged_is_in_the_streams_of_every_replica_whoever_was_killed(
    nodes: Nodes,
) -> None:
    rng = Random(5)
    nodes.wait_for_acks(200)
    for victim in rng.sample(NODES, 2):
        nodes.kill(victim)
        nodes.wait_for_acks(60)
        nodes.start(victim)
        nodes.wait_for_acks(150)
    nodes.kill_all()
    assert not nodes.failures
    assert all(nodes.reads[node] for node in NODES), nodes.reads
    held = [held_by(nodes.root, node) for node in NODES]
    for partition, first, number in nodes.acks:
        holding = 0
        for start, found in (each.get(partition, (0, {})) for each in held):
            if first < start:
                holding += 1  # trimmed, by the log's own word
            elif first in found:
                assert found[first] == payload_of(number)
                holding += 1
        assert holding >= 2, f"{first} of {partition} is on {holding} replicas"


def held_by(root: Path, node: int) -> dict[int, tuple[int, dict[int, bytes]]]:
    """Read a node's streams from its disk alone: its files, and the log behind them."""
    data = node_directory(root, NodeId(node))
    state = data / STATE_DIRECTORY / str(GROUP)
    keys, signer = load_keyring(data / KEYS_DIRECTORY), Ed25519PrivateKey.generate()
    settings = ReplicaSettings(
        CONSISTENCY_PROFILE,
        keys,
        SimStreamMachine,
        Random(1).randint,
        os.urandom,
        signer,
        (signer.public_key(),),
        stream_config=CONFIG,
    )
    storage = DirectoryStorage(state)
    identity = DirectoryStorage(data / IDENTITY_DIRECTORY / str(GROUP))
    opened = prepare_open(settings, storage, identity)
    disk = BlockingDisk()
    disk.execute(disk.open_partition(state), opened.plan)
    assert opened.streams is not None and isinstance(opened.machine, StreamMachine)
    view, store = opened.view, opened.streams.store
    assert view.base_index > 0, "no snapshot was emitted: the test is too short"
    for entry in view.slice(view.base_index + 1, view.last_index, EVERYTHING):
        apply_entry(opened.machine, entry)
        for change in opened.machine.take_stream_changes():
            store.take(entry.index, change)
    reader = StreamFileReader(storage, keys, CONFIG)
    found: dict[int, tuple[int, dict[int, bytes]]] = {}
    for partition in store.partitions:
        whole = take_view(store, partition)
        batches = (
            batch
            for chunk in reader.chunks(whole, whole.start_index, 64 << 10)
            for batch in chunk.batches()
        )
        found[int(partition)] = (
            whole.start_index,
            {int(batch.first_index): batch.payload for batch in batches},
        )
    disk.close()
    return found
