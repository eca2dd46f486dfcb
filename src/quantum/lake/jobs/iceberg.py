"""The same files as an Iceberg table, for whoever reads Iceberg; needs the package `pyiceberg`.

Our own log stays the truth. Each of its versions becomes one version of Iceberg's metadata below
`_iceberg`: the same Parquet files, with our version and the ranges of offsets that it covers in the
snapshot, and our version as a property of the table. A metadata file is created by one writer only,
whole, so that a version is never mirrored twice; a mirror that was cut short is completed by
whoever comes next. The names are those of Iceberg's own tables without a catalog
(`metadata/v3.metadata.json`, `version-hint.text`), so a reader needs the directory alone.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa

from quantum.lake.jobs.errors import PackageMissing
from quantum.lake.schema import arrow_schema
from quantum.lake.table import Commit, FileKind, Table, TableMisuse, TableStore

if TYPE_CHECKING:
    from pyiceberg.catalog.noop import NoopCatalog
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table as IcebergTable
    from pyiceberg.types import IcebergType

DIRECTORY: Final = "_iceberg"
VERSION_PROPERTY: Final = "quantum.version"
RANGES_PROPERTY: Final = "quantum.ranges"
_HINT: Final = f"{DIRECTORY}/metadata/version-hint.text"
_ATTEMPTS: Final = 8


def mirror_to_iceberg(table: Table) -> int:
    """Bring the Iceberg metadata of a table up to its own log; return the version that both have.

    Raises PackageMissing where `pyiceberg` is not installed.
    """
    try:
        from pyiceberg.exceptions import CommitFailedException
    except ImportError as error:
        raise PackageMissing("Iceberg tables need the package pyiceberg") from error
    history = table.history()
    for _ in range(_ATTEMPTS):
        iceberg = open_iceberg(table.store)
        mirrored = int(iceberg.metadata.properties.get(VERSION_PROPERTY, "-1"))
        try:
            for commit in history[mirrored + 1 :]:
                _mirror(table, iceberg, commit)
        except CommitFailedException:
            continue  # another mirror was quicker
        return int(table.state.version)
    raise TableMisuse("the Iceberg metadata was always busy")


def open_iceberg(store: TableStore) -> IcebergTable:
    """Open the newest metadata; make the first one where there is none."""
    number = _newest(store)
    if number == 0:
        _create(store)
        number = _newest(store)
    return _table_of(store, number)


def metadata_name(number: int) -> str:
    return f"{DIRECTORY}/metadata/v{number}.metadata.json"


def _location(store: TableStore, name: str = DIRECTORY) -> str:
    return store.uri(name).replace("s3a://", "s3://", 1)


def _newest(store: TableStore) -> int:
    """Return the number of the newest metadata, 0 where there is none; the hint may be late."""
    number = 0
    with suppress(FileNotFoundError, ValueError):
        number = int(store.read(_HINT))
    while True:
        try:
            store.read(metadata_name(number + 1))
        except FileNotFoundError:
            return number
        number += 1


def _create(store: TableStore) -> None:
    from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
    from pyiceberg.table.metadata import new_table_metadata
    from pyiceberg.table.sorting import UNSORTED_SORT_ORDER

    schema = iceberg_schema(arrow_schema())
    properties = {
        "schema.name-mapping.default": schema.name_mapping.model_dump_json(),
        "commit.retry.num-retries": "0",  # who is late looks again at what to commit at all
    }
    made = new_table_metadata(
        schema,
        UNPARTITIONED_PARTITION_SPEC,
        UNSORTED_SORT_ORDER,
        _location(store),
        properties,
    )
    store.create(metadata_name(1), made.model_dump_json().encode())


def _table_of(store: TableStore, number: int) -> IcebergTable:
    from pyiceberg.io import load_file_io
    from pyiceberg.table import Table as Opened
    from pyiceberg.table.metadata import TableMetadataUtil

    metadata = TableMetadataUtil.parse_raw(store.read(metadata_name(number)).decode())
    location = _location(store, metadata_name(number))
    return Opened(
        ("quantum", "rows"),
        metadata,
        location,
        load_file_io(_io_properties(), location),
        _catalog(store, number),
    )


def _io_properties() -> dict[str, str]:
    """Credentials come from the environment, as everywhere; an endpoint has to be named."""
    endpoint = os.environ.get("AWS_ENDPOINT_URL")
    return {} if endpoint is None else {"s3.endpoint": endpoint}


def _catalog(store: TableStore, number: int) -> NoopCatalog:
    """Return what a commit of the metadata behind `number` goes through."""
    from pyiceberg.catalog.noop import NoopCatalog
    from pyiceberg.exceptions import CommitFailedException
    from pyiceberg.table import CommitTableResponse
    from pyiceberg.table.update import update_table_metadata

    class StoreCatalog(NoopCatalog):
        """As much of a catalog as a commit needs: it creates the next file, as only one can."""

        at = number

        def commit_table(self, table: Any, requirements: Any, updates: Any) -> CommitTableResponse:
            for requirement in requirements:
                requirement.validate(table.metadata)
            updated = update_table_metadata(
                table.metadata, updates, metadata_location=table.metadata_location
            )
            name = metadata_name(self.at + 1)
            if not store.create(name, updated.model_dump_json().encode()):
                raise CommitFailedException(f"{name} is there already")
            self.at += 1
            _hint(store, self.at)
            return CommitTableResponse.model_validate(
                {"metadata": updated, "metadata-location": _location(store, name)}
            )

    return StoreCatalog("quantum")


def _hint(store: TableStore, number: int) -> None:
    """Tell readers where to begin to look; without it, or with an old one, they look further."""
    store.delete(_HINT)
    store.create(_HINT, b"%d" % number)


def _mirror(table: Table, iceberg: IcebergTable, commit: Commit) -> None:
    """Make one of our commits one of theirs, whether it has rows or not."""
    from pyiceberg.io.pyarrow import parquet_file_to_data_file

    added = [_location(table.store, file.path) for file in commit.add if file.kind == FileKind.ROWS]
    removed = {_location(table.store, path) for path in commit.remove}
    facts = {
        VERSION_PROPERTY: str(commit.version),
        RANGES_PROPERTY: json.dumps(msgspec.to_builtins(commit.ranges), sort_keys=True),
    }
    with iceberg.transaction() as transaction:
        transaction.set_properties({VERSION_PROPERTY: str(commit.version)})
        gone = [file for file in _files(iceberg) if file.file_path in removed] if removed else []
        if not added and not gone:
            return
        snapshot = transaction.update_snapshot(snapshot_properties=facts)
        with snapshot.overwrite() if gone else snapshot.fast_append() as update:
            for file in gone:
                update.delete_data_file(file)
            for path in added:
                update.append_data_file(
                    parquet_file_to_data_file(iceberg.io, transaction.table_metadata, path)
                )


def _files(iceberg: IcebergTable) -> Iterator[Any]:
    return (task.file for task in iceberg.scan().plan_files())


def iceberg_schema(columns: pa.Schema) -> Schema:
    """Write our columns as Iceberg's. Ids follow from the order: columns are only ever added."""
    from pyiceberg.schema import Schema
    from pyiceberg.types import NestedField

    below = iter(range(len(columns) + 1_000, len(columns) + 2_000))
    return Schema(
        *(
            NestedField(nth, field.name, _type_of(field.type, below), required=False)
            for nth, field in enumerate(columns, 1)
        )
    )


def _type_of(kind: pa.DataType, ids: Iterator[int]) -> IcebergType:
    from pyiceberg import types

    if pa.types.is_list(kind):
        number = next(ids)
        inner = _type_of(kind.value_type, ids)
        return types.ListType(element_id=number, element=inner, element_required=False)
    if pa.types.is_struct(kind):
        return types.StructType(
            *(
                types.NestedField(next(ids), each.name, _type_of(each.type, ids), required=False)
                for each in kind
            )
        )
    plain: dict[pa.DataType, IcebergType] = {
        pa.string(): types.StringType(),
        pa.binary(): types.BinaryType(),
        pa.bool_(): types.BooleanType(),
        pa.int32(): types.IntegerType(),
        pa.int64(): types.LongType(),
        pa.timestamp("us", tz="UTC"): types.TimestamptzType(),
    }
    return plain[kind]
