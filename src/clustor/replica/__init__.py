"""One group on one replica: commands in, replies out, and nothing said before it is durable."""

from clustor.replica.activation import Activation, apply_entry
from clustor.replica.batch import decode_batch, encode_batch
from clustor.replica.delaying import NodeInflight
from clustor.replica.documents import (
    HARD_STATE_FILE,
    IDENTITY_FILE,
    read_hard_state,
    read_identity,
)
from clustor.replica.errors import (
    NoReplica,
    ReplicaDamaged,
    ReplicaError,
    ReplicaExists,
    ReplicaMisuse,
)
from clustor.replica.machine import DefinableMachine, NewMachine, StateMachine, StreamMachine
from clustor.replica.quarantined import is_checksum_fault, quarantined_replica
from clustor.replica.readmission import (
    ReadmissionStep,
    RepairPhase,
    VoteStanding,
    plan_readmission,
    plan_rejoin_epoch,
)
from clustor.replica.replica import Replica
from clustor.replica.settings import Entropy, ReplicaSettings
from clustor.replica.shadow import Shadow, ShadowState
from clustor.replica.transfer import (
    ChunkSent,
    ChunkWanted,
    ManifestSent,
    ManifestWanted,
    StreamsSent,
    StreamsWanted,
    Transfer,
    decode_transfer,
    encode_transfer,
)
from clustor.replica.types import (
    Applied,
    Delay,
    DiskJob,
    DiskRead,
    DiskToken,
    DiskWork,
    Home,
    NotLeader,
    Outcome,
    ReadDenied,
    ReadOutcome,
    ReadReady,
    ReadToken,
    ReplicaOutput,
    RequestId,
    RequestsRefused,
    Unknown,
)

__all__ = [
    "HARD_STATE_FILE",
    "IDENTITY_FILE",
    "Activation",
    "Applied",
    "ChunkSent",
    "ChunkWanted",
    "DefinableMachine",
    "Delay",
    "DiskJob",
    "DiskRead",
    "DiskToken",
    "DiskWork",
    "Entropy",
    "Home",
    "ManifestSent",
    "ManifestWanted",
    "NewMachine",
    "NoReplica",
    "NodeInflight",
    "NotLeader",
    "Outcome",
    "ReadDenied",
    "ReadOutcome",
    "ReadReady",
    "ReadToken",
    "ReadmissionStep",
    "RepairPhase",
    "Replica",
    "ReplicaDamaged",
    "ReplicaError",
    "ReplicaExists",
    "ReplicaMisuse",
    "ReplicaOutput",
    "ReplicaSettings",
    "RequestId",
    "RequestsRefused",
    "Shadow",
    "ShadowState",
    "StateMachine",
    "StreamMachine",
    "StreamsSent",
    "StreamsWanted",
    "Transfer",
    "Unknown",
    "VoteStanding",
    "apply_entry",
    "decode_batch",
    "decode_transfer",
    "encode_batch",
    "encode_transfer",
    "is_checksum_fault",
    "plan_readmission",
    "plan_rejoin_epoch",
    "quarantined_replica",
    "read_hard_state",
    "read_identity",
]
