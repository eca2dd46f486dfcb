"""What a replica is given when it starts: numbers, keys, chance, and the machine to run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from clustor.log.config import LogConfig
from clustor.log.keys import KeyRing
from clustor.log.types import IoWriterMode
from clustor.raft.profiles import Profile
from clustor.raft.types import Draw
from clustor.replica.delaying import NodeInflight
from clustor.replica.machine import NewMachine
from clustor.snapshot.cadence import CadenceProfile
from clustor.snapshot.chunks import CHUNK_BYTES_DEFAULT
from clustor.streams.config import StreamConfig
from clustor.streams.window import StreamMemory

Entropy: TypeAlias = Callable[[int], bytes]
"""Return so many random bytes. They keep IVs apart: in production `os.urandom`."""


@dataclass(frozen=True, slots=True)
class ReplicaSettings:
    """The same for a replica's whole life; `keys` may gain epochs."""

    profile: Profile
    keys: KeyRing
    new_machine: NewMachine
    draw: Draw
    entropy: Entropy
    signer: Ed25519PrivateKey  # of this node's snapshot manifests
    trusted_keys: Sequence[Ed25519PublicKey]  # of every node's, this one's included; may grow
    log_config: LogConfig = LogConfig()
    io_writer_mode: IoWriterMode = IoWriterMode.BLOCKING
    waiting_bytes_max: int = 64 << 20  # commands that wait for a batch
    batch_bytes_max: int = 256 << 10  # of commands that become entries, or are applied, at once
    batches_in_flight_max: int = 2  # while so many are being synced, the next one fills
    chunk_bytes: int = CHUNK_BYTES_DEFAULT
    chunks_in_flight_max: int = 4
    node_inflight: NodeInflight = field(default_factory=NodeInflight)  # shared by a node's replicas
    stream_config: StreamConfig = StreamConfig()
    stream_memory: StreamMemory = field(default_factory=StreamMemory)  # shared, as the one above
    version_id: int = 1  # of the machine's snapshot format
    producer_version: str = "1"
    cadence: CadenceProfile | None = None  # None: no snapshot is emitted because its time has come
    wall_ms: Callable[[], int] | None = None  # the clock of manifests; None: the replica's own
    measuring_clock: Callable[[], float] | None = None  # in seconds; nothing is decided by it
