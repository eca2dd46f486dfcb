"""Carry thousands of streams in one Raft group's log, with one fsync, and lose none of them.

See README.md for what this room promises and where its dangers lie.
"""

from clustor.streams.changes import (
    StreamAppend,
    StreamChange,
    StreamDefine,
    StreamExtent,
    StreamRemove,
    StreamTrim,
)
from clustor.streams.config import StreamConfig
from clustor.streams.errors import (
    StreamError,
    StreamFenced,
    StreamMisuse,
    StreamOutOfOrder,
    StreamOutOfRange,
    UnknownPolicy,
    UnknownStream,
    ViewExpired,
)
from clustor.streams.master import Automatic, Disabled, FixedMaster, MasterPolicy, choose_master
from clustor.streams.opening import (
    OpenedStore,
    StreamFinding,
    StreamFindingKind,
    create_store,
    open_store,
)
from clustor.streams.plans import StreamPlan, StreamReceipt
from clustor.streams.quorum import (
    Custom,
    CustomRule,
    FixedSet,
    Majority,
    PolicyRegistry,
    QuorumPolicy,
    Threshold,
)
from clustor.streams.reader import StreamFileReader
from clustor.streams.store import StreamStore
from clustor.streams.types import StoredBatch, StoreId, StreamIndex, StreamPartitionId, TimestampMs
from clustor.streams.verify import StreamDamage, verify_stream
from clustor.streams.view import StreamChunk, StreamView, take_view
from clustor.streams.window import StreamMemory

__all__ = [
    "Automatic",
    "Custom",
    "CustomRule",
    "Disabled",
    "FixedMaster",
    "FixedSet",
    "Majority",
    "MasterPolicy",
    "OpenedStore",
    "PolicyRegistry",
    "QuorumPolicy",
    "StoreId",
    "StoredBatch",
    "StreamAppend",
    "StreamChange",
    "StreamChunk",
    "StreamConfig",
    "StreamDamage",
    "StreamDefine",
    "StreamError",
    "StreamExtent",
    "StreamFenced",
    "StreamFileReader",
    "StreamFinding",
    "StreamFindingKind",
    "StreamIndex",
    "StreamMemory",
    "StreamMisuse",
    "StreamOutOfOrder",
    "StreamOutOfRange",
    "StreamPartitionId",
    "StreamPlan",
    "StreamReceipt",
    "StreamRemove",
    "StreamStore",
    "StreamTrim",
    "StreamView",
    "Threshold",
    "TimestampMs",
    "UnknownPolicy",
    "UnknownStream",
    "ViewExpired",
    "choose_master",
    "create_store",
    "open_store",
    "take_view",
    "verify_stream",
]
