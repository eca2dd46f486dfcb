"""A table of Parquet files whose commits hold each offset of the log once, whoever crashes."""

from quantum.lake.table.cleaning import GRACE_MS, plan_cleaning
from quantum.lake.table.commits import (
    TableState,
    decode_commit,
    digest_of,
    encode_commit,
    fold,
    plan_commit,
)
from quantum.lake.table.coverage import Coverage, uncovered
from quantum.lake.table.errors import (
    CommitUnknown,
    Contended,
    FileGone,
    NoTable,
    RangeGap,
    RangeTaken,
    TableDamaged,
    TableError,
    TableExists,
    TableMisuse,
)
from quantum.lake.table.log import LOG_DIRECTORY, Table
from quantum.lake.table.merkle import EMPTY_ROOT, MerkleTree, leaf_of, root_of, root_of_streams
from quantum.lake.table.naming import ingested_name, place_of, rewritten_name
from quantum.lake.table.store import (
    BucketStore,
    DirectoryStore,
    TableStore,
    open_store,
)
from quantum.lake.table.types import (
    Commit,
    DataFile,
    FileKind,
    OffsetRange,
    StreamName,
    TableOperation,
    Version,
    VersionProposal,
)

__all__ = [
    "EMPTY_ROOT",
    "GRACE_MS",
    "LOG_DIRECTORY",
    "BucketStore",
    "Commit",
    "CommitUnknown",
    "Contended",
    "Coverage",
    "DataFile",
    "DirectoryStore",
    "FileGone",
    "FileKind",
    "MerkleTree",
    "NoTable",
    "OffsetRange",
    "RangeGap",
    "RangeTaken",
    "StreamName",
    "Table",
    "TableDamaged",
    "TableError",
    "TableExists",
    "TableMisuse",
    "TableOperation",
    "TableState",
    "TableStore",
    "Version",
    "VersionProposal",
    "decode_commit",
    "digest_of",
    "encode_commit",
    "fold",
    "ingested_name",
    "leaf_of",
    "open_store",
    "place_of",
    "plan_cleaning",
    "plan_commit",
    "rewritten_name",
    "root_of",
    "root_of_streams",
    "uncovered",
]
