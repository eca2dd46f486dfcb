"""Typed views: payloads under a schema, beside the raw rows; what does not fit is a dead letter.

A view is described once, for the topics of an MQTT filter; `docs/lake.md` has the format. The raw
row stays where it is whatever becomes of its payload, so nothing is lost by a wrong schema.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec
import pyarrow as pa

from quantum.archive.types import PrgId
from quantum.lake.jobs.errors import BadView, PackageMissing
from quantum.lake.jobs.row_files import RowSink
from quantum.lake.table import DataFile, FileKind, TableStore
from quantum.topics import matches

_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,62}")
_ARROW: Final[dict[str, pa.DataType]] = {
    "string": pa.string(),
    "long": pa.int64(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "json": pa.string(),
}
_PLACE: Final = ("tenant", "prg", "raft_index", "sub_index", "topic", "timestamp")
_LONG: Final = 1 << 63

Decoder: TypeAlias = "Callable[[bytes], dict[str, Any]]"


class View(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What payloads of some topics are."""

    name: str
    topics: str
    format: str
    fields: dict[str, str] = {}
    schema: str = ""
    """Avro: the schema itself, as JSON (in a description file: the name of its file)."""
    tenant: str = ""

    def columns(self) -> dict[str, str]:
        """Return the type of each column; with a question mark where it may be null."""
        return self.fields if self.format == "json" else avro_columns(json.loads(self.schema))


def read_views(path: Path) -> tuple[View, ...]:
    """Read a description. Raises BadView."""
    try:
        document = tomllib.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise BadView(f"the views cannot be read: {error}", file=path) from error
    _refuse_unknown(document, path)
    try:
        views = msgspec.convert(document["view"], list[View])
    except msgspec.ValidationError as error:
        raise BadView(f"a view is not described so: {error}", file=path) from error
    for nth, view in enumerate(views):
        if view.format == "avro":
            try:
                views[nth] = msgspec.structs.replace(
                    view, schema=(path.parent / view.schema).read_text()
                )
            except OSError as error:
                raise BadView(str(error), view=view.name) from error
    return checked(tuple(views))


def _refuse_unknown(document: dict[str, Any], path: Path) -> None:
    """Name what means nothing: a key that is skipped is a view that somebody misses."""
    strange = sorted(set(document) - {"view"})
    if strange:
        wanted = "a file of views has [[view]] tables and nothing else"
        raise BadView(wanted, file=path, unknown=", ".join(strange))
    views = document.get("view")
    if not isinstance(views, list) or not all(isinstance(each, dict) for each in views):
        raise BadView("a file of views has one or more [[view]] tables", file=path)
    known = View.__struct_fields__
    for view in views:
        if strange := sorted(set(view) - set(known)):
            raise BadView(
                f"a view has {', '.join(known)}",
                file=path,
                view=view.get("name", "?"),
                unknown=", ".join(strange),
            )


def checked(views: tuple[View, ...]) -> tuple[View, ...]:
    """Return views that make sense. Raises BadView."""
    if len({view.name for view in views}) != len(views):
        raise BadView("two views have one name")
    for view in views:
        if not _NAME.fullmatch(view.name):
            raise BadView("a view's name has small letters, digits and _", view=view.name)
        if view.format not in ("json", "avro"):
            raise BadView("a view's format is json or avro", view=view.name)
        useless = "schema" if view.format == "json" else "fields"
        if getattr(view, useless):
            raise BadView(f"a view of format {view.format} has no {useless}", view=view.name)
        try:
            columns = view.columns()
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise BadView("this is no Avro record", view=view.name, cause=error) from error
        strange = [name for name in columns if name in _PLACE or not name.isidentifier()]
        unknown = [kind for kind in columns.values() if kind.rstrip("?") not in _ARROW]
        if strange or unknown or not columns:
            raise BadView("these columns cannot be", view=view.name, columns=strange + unknown)
    return views


class Misfit(ValueError):
    """A payload is not what its view says."""


def decoder_of(view: View) -> Decoder:
    """Return what turns a payload into the view's columns, or raises Misfit."""
    if view.format == "avro":
        return _avro_decoder(view)
    fields = view.fields

    def decode(payload: bytes) -> dict[str, Any]:
        try:
            document = msgspec.json.decode(payload)
        except msgspec.DecodeError as error:
            raise Misfit(f"no JSON: {error}") from error
        if not isinstance(document, dict):
            raise Misfit("not an object")
        return {name: fitting(name, kind, document.get(name)) for name, kind in fields.items()}

    return decode


def fitting(name: str, kind: str, value: Any) -> Any:
    """Return a value that fits a column, or raise Misfit."""
    if value is None:
        if kind.endswith("?"):
            return None
        raise Misfit(f"{name} is missing")
    match kind.rstrip("?"):
        case "json":
            return json.dumps(value, sort_keys=True, default=str)
        case "string" if isinstance(value, str):
            return value
        case "boolean" if isinstance(value, bool):
            return value
        case "long" if type(value) is int and -_LONG <= value < _LONG:
            return value
        case "double" if isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
    raise Misfit(f"{name} is no {kind.rstrip('?')}")


_AVRO_KINDS: Final = {
    "string": "string",
    "int": "long",
    "long": "long",
    "float": "double",
    "double": "double",
    "boolean": "boolean",
    "enum": "string",
}


def avro_columns(schema: dict[str, Any]) -> dict[str, str]:
    """Return the columns of an Avro record; what is nested becomes JSON text."""
    return {each["name"]: _avro_kind(each["type"]) for each in schema["fields"]}


def _avro_kind(kind: Any) -> str:
    if isinstance(kind, list):
        others = [each for each in kind if each != "null"]
        inner = _avro_kind(others[0]) if len(others) == 1 else "json"
        return inner + "?" if "null" in kind else inner
    if isinstance(kind, dict):
        kind = "json" if "logicalType" in kind else kind["type"]
    return _AVRO_KINDS.get(kind, "json") if isinstance(kind, str) else "json"


def _avro_decoder(view: View) -> Decoder:
    try:
        import fastavro
    except ImportError as error:
        raise PackageMissing("Avro views need the package fastavro", view=view.name) from error
    schema = fastavro.parse_schema(json.loads(view.schema))
    columns = view.columns()

    def decode(payload: bytes) -> dict[str, Any]:
        stream = BytesIO(payload)
        try:
            record = fastavro.schemaless_reader(stream, schema, None)
        except Exception as error:  # it raises whatever its codec meets
            raise Misfit(f"no such Avro: {type(error).__name__}") from error
        if stream.tell() != len(payload) or not isinstance(record, dict):
            raise Misfit("there is more behind the record")
        return {name: fitting(name, kind, record[name]) for name, kind in columns.items()}

    return decode


_DEAD_SCHEMA: Final = pa.schema(
    [
        pa.field("tenant", pa.string()),
        pa.field("prg", pa.int32()),
        pa.field("raft_index", pa.int64()),
        pa.field("sub_index", pa.int32()),
        pa.field("topic", pa.string()),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("payload", pa.binary()),
        pa.field("view", pa.string()),
        pa.field("reason", pa.string()),
    ]
)


def view_schema(view: View) -> pa.Schema:
    """Return the columns of a view: where the message is, then its fields."""
    fields = [_DEAD_SCHEMA.field(name) for name in _PLACE]
    fields += [pa.field(name, _ARROW[kind.rstrip("?")]) for name, kind in view.columns().items()]
    return pa.schema(fields)


class ViewWriter:
    """Writes the views and the dead letters of one task."""

    def __init__(
        self, store: TableStore, prg: PrgId, views: tuple[View, ...], name_of: Any = None
    ) -> None:
        mine = [view for view in views if view.tenant in ("", prg.tenant)]
        self._views = [
            (
                view,
                decoder_of(view),
                RowSink(store, prg, kind=FileKind.TYPED, view=view.name, name_of=name_of),
            )
            for view in mine
        ]
        self._dead = RowSink(store, prg, kind=FileKind.DEAD, name_of=name_of)

    def write(self, batch: pa.RecordBatch) -> None:
        """Take raw rows; each goes to every view whose topics it has."""
        if not self._views or not batch.num_rows:
            return
        places = batch.select([*_PLACE, "payload"]).to_pylist()
        dead: list[dict[str, Any]] = []
        for view, decode, sink in self._views:
            wanted = view.topics.encode()
            typed: list[dict[str, Any]] = []
            for row in places:
                if row["topic"] is None or not matches(wanted, row["topic"].encode()):
                    continue
                try:
                    typed.append({**row, **decode(row["payload"])})
                except Misfit as misfit:
                    dead.append({**row, "view": view.name, "reason": str(misfit)})
            if typed:
                sink.write(pa.RecordBatch.from_pylist(typed, view_schema(view)))
        if dead:
            self._dead.write(pa.RecordBatch.from_pylist(dead, _DEAD_SCHEMA))

    def finish(self) -> list[DataFile]:
        files = [file for _, _, sink in self._views for file in sink.finish()]
        return files + self._dead.finish()
