"""The same files as a Delta table, for whoever reads Delta; needs the package `deltalake`.

Our own log stays the truth. Each of its versions becomes one Delta commit that names the same
Parquet files, with our version as Delta's application transaction: a version that is there is not
written again, and a mirror that was cut short is completed by whoever comes next. A path counts
once in Delta, so even two mirrors at the same moment would add no row twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from quantum.lake.jobs.errors import PackageMissing
from quantum.lake.schema import arrow_schema
from quantum.lake.table import Commit, FileKind, Table, TableMisuse

if TYPE_CHECKING:
    from deltalake import DeltaTable

APP_ID: Final = "quantum-lake"
_ATTEMPTS: Final = 8


def mirror_to_delta(table: Table) -> int:
    """Bring the Delta log of a table up to its own; return the version that both have.

    Raises PackageMissing where `deltalake` is not installed.
    """
    try:
        from deltalake.exceptions import CommitFailedError
    except ImportError as error:
        raise PackageMissing("Delta tables need the package deltalake") from error
    history, known = table.history(), table.rows_files()
    for _ in range(_ATTEMPTS):
        delta = _open(table)
        mirrored = delta.transaction_version(APP_ID)
        missing = [commit for commit in history if mirrored is None or commit.version > mirrored]
        try:
            for commit in missing:
                _mirror(delta, commit, known)
        except CommitFailedError:
            continue  # another mirror was quicker
        return int(table.state.version)
    raise TableMisuse("the Delta log was always busy")


def _open(table: Table) -> DeltaTable:
    from deltalake import DeltaTable

    where = table.store.uri("").replace("s3a://", "s3://", 1)
    if not DeltaTable.is_deltatable(where):
        DeltaTable.create(where, arrow_schema(), mode="ignore", name="quantum")
    return DeltaTable(where)


def _mirror(delta: DeltaTable, commit: Commit, known: set[str]) -> None:
    from deltalake import CommitProperties, Transaction
    from deltalake.transaction import AddAction, RemoveAction

    rewrites = not commit.ranges
    actions: list[Any] = [
        AddAction(file.path, file.bytes, {}, commit.at_ms, not rewrites, "{}")
        for file in commit.add
        if file.kind == FileKind.ROWS
    ]
    actions += [
        RemoveAction(path, not rewrites, commit.at_ms) for path in commit.remove if path in known
    ]
    delta.create_write_transaction(
        actions,
        "append",
        arrow_schema(),
        commit_properties=CommitProperties(
            custom_metadata={"quantum.version": str(commit.version)},
            app_transactions=[Transaction(APP_ID, commit.version)],
        ),
    )
    delta.update_incremental()
