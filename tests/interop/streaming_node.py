"""A node with one more group, whose machine appends to streams: its leader appends without end.

    python -m tests.interop.streaming_node --cluster FILE --node N --data DIRECTORY

On its standard output it says what was acknowledged (`ack PARTITION FIRST NUMBER`) and how much it
has read from its own streams (`read PARTITION NEXT`); that must be what anyone can compute.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from clustor.log.types import PartitionId
from clustor.replica import Applied, ReplicaOutput, RequestId
from clustor.runtime.admin.server import AdminServer
from clustor.runtime.group import HostedGroup
from clustor.runtime.main import main
from clustor.runtime.node import Node
from clustor.runtime.pki.identity import NodeId
from clustor.runtime.stream_reads import StreamReads
from clustor.sim.stream_machine import (
    REFUSED,
    SimStreamCommand,
    SimStreamMachine,
    encode_stream_command,
)
from clustor.streams import StreamConfig, StreamOutOfRange

GROUP = PartitionId(900)
PARTITIONS = 40
PER_TICK = 20
CONFIG = StreamConfig(
    segment_bytes=64 << 10,
    run_bytes=8 << 10,
    flush_bytes=32 << 10,
    checkpoint_bytes=128 << 10,
    checkpoint_ms=200,
    checkpoint_partitions=16,
    window_partition_bytes=4 << 10,
)


def payload_of(number: int) -> bytes:
    """The bytes of a batch, which anyone can recompute."""
    return (b"%d|" % number) * (1 + number * 7919 % 150)


class Appending:
    """The service: proposes while its group leads here, and reads what its replica holds."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._open: dict[RequestId, SimStreamCommand] = {}
        self._number = int.from_bytes(os.urandom(5), "little")
        self._number_of: dict[int, int] = {}
        self._next_read = dict.fromkeys(range(PARTITIONS), 0)
        self._reading: asyncio.Task[None] | None = None
        self._group = node.host(GROUP, SimStreamMachine, self)
        self._reads = StreamReads(self._group)

    def prepare(self) -> None:
        """Nothing waits."""

    def on_tick(self) -> None:
        replica = self._group.replica
        if replica.leads and len(self._open) < 4 * PER_TICK:
            for _ in range(PER_TICK):
                self._propose()
            self._node.touch(self._group)
        if replica.failed is not None:
            os.write(1, b"failed %s\n" % replica.failed.encode())
        if self._reading is None or self._reading.done():
            if self._reading is not None:
                self._reading.result()
            self._reading = asyncio.ensure_future(self._read())

    def _propose(self) -> None:
        self._number += 1
        partition = self._number % PARTITIONS
        kind = "define" if self._number % 97 == 0 else "append"
        payload = payload_of(self._number) if kind == "append" else b""
        if self._number % 1009 == 0:
            command = SimStreamCommand(self._number, "trim", partition, 500)
        else:
            command = SimStreamCommand(self._number, kind, partition, 1, payload)
        self._open[RequestId(self._number)] = command
        self._group.replica.propose(RequestId(self._number), encode_stream_command(command))

    def on_output(self, group: HostedGroup, output: ReplicaOutput) -> None:
        del group
        for outcome in output.replies:
            for nth, request in enumerate(outcome.request_ids):
                command = self._open.pop(request, None)
                if isinstance(outcome, Applied) and command is not None:
                    self._acked(command, outcome.replies[nth])

    def _acked(self, command: SimStreamCommand, reply: bytes) -> None:
        if command.kind == "append" and reply != REFUSED:
            line = b"ack %d %d %d\n" % (command.partition, int(reply), command.request)
            os.write(1, line)

    async def _read(self) -> None:
        """Read on in every partition, as a consumer at this replica would."""
        for partition, begin in self._next_read.items():
            streams = self._group.replica.streams
            if streams is None or partition not in streams.store.partitions:
                continue
            try:
                chunks = await self._reads.read(partition, begin, 16 << 10)
            except StreamOutOfRange as trimmed:
                start = trimmed.facts["start"]
                assert isinstance(start, int)
                self._next_read[partition] = start
                continue
            index = begin
            for batch in (batch for chunk in chunks for batch in chunk.batches()):
                assert batch.payload == payload_of(batch.timestamp), batch.first_index
                assert batch.first_index <= index, f"a gap before {batch.first_index}"
                index = batch.next_index
            if index != begin:
                self._next_read[partition] = index
                os.write(1, b"read %d %d\n" % (partition, index))

    def flush(self) -> None:
        """Nothing is staged."""

    def on_peer_data(self, peer: NodeId, data: bytes) -> None:
        """Nobody speaks to it."""

    def on_peer_lost(self, peer: NodeId) -> None:
        """Nobody speaks to it."""

    def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
        self._reads.close()


async def _extend(node: Node, admin: AdminServer, file: Path) -> Callable[[], None]:
    del admin, file
    profile = node.settings.profile
    replication = replace(profile.replication, snapshot_log_bytes_target=96 << 10)
    node.settings = replace(
        node.settings, stream_config=CONFIG, profile=replace(profile, replication=replication)
    )
    service = Appending(node)
    node.serve(service, 1_000_900)
    return service.close


if __name__ == "__main__":
    main(_extend)
