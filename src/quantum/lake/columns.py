"""From what rows share to Arrow's columns; and the row that stands for what is gone. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from quantum.archive.types import PrgId
from quantum.broker.message import BEFORE_V5, FROM_V5
from quantum.lake.schema import GAP, LOGGED, MESSAGE, SCHEMA_VERSION, WILL, arrow_schema

NO_SEQUENCE: Final = -1


class RowRun(NamedTuple):
    """What rows of one command share. `forward_from` is added to a row's number in it."""

    rows: int
    raft_index: int
    now_ms: int
    origin: int
    term: int
    forward_from: int
    sub_from: int
    is_will: int = 0


class SharedColumns:
    """The columns that follow from runs and numbers."""

    def __init__(
        self, prg: PrgId, runs: list[RowRun], numbers: list[int], *, is_exact: bool
    ) -> None:
        self._prg = prg
        self._is_exact = is_exact
        self._numbers = np.asarray(numbers, np.int64)
        table = np.asarray(runs, np.int64).reshape(len(runs), len(RowRun._fields))
        self._runs = {name: table[:, nth] for nth, name in enumerate(RowRun._fields)}

    def _each(self, name: str) -> Any:
        """Spread what runs share over their rows."""
        return np.repeat(self._runs[name], self._runs["rows"])

    def array(self, field: pa.Field) -> pa.Array:
        count = len(self._numbers)
        match field.name:
            case "tenant":
                return pa.repeat(pa.scalar(self._prg.tenant, field.type), count)
            case "prg":
                return pa.repeat(pa.scalar(self._prg.number, field.type), count)
            case "raft_index":
                return pa.array(self._each("raft_index"), field.type)
            case "sub_index":
                return pa.array(self._each("sub_from") + self._numbers).cast(field.type)
            case "forward_seq":
                begin = self._each("forward_from")
                return pa.array(begin + self._numbers, field.type, mask=begin == NO_SEQUENCE)
            case "timestamp":
                return pa.array(self._each("now_ms") * 1000).cast(field.type)
            case "origin_prg":
                return pa.array(self._each("origin")).cast(field.type)
            case "origin_term":
                term = self._each("term")
                return pa.array(term, field.type, mask=term == NO_SEQUENCE)
            case "row_kind":
                return self._kinds(field.type)
            case _:  # of streams, and of gaps
                return pa.nulls(count, field.type)

    def _kinds(self, type_: pa.DataType) -> pa.Array:
        if not self._is_exact or not self._runs["is_will"].any():
            kind = MESSAGE if self._is_exact else LOGGED
            return pa.repeat(pa.scalar(kind, type_), len(self._numbers))
        return _named(self._each("is_will"), [MESSAGE, WILL])


def gap_row(
    prg: PrgId, first: int, last: int, names: Sequence[str], version: int = SCHEMA_VERSION
) -> pa.RecordBatch:
    """Make the row that stands for entries that are gone."""
    known = {
        "tenant": prg.tenant,
        "prg": prg.number,
        "raft_index": first,
        "row_kind": GAP,
        "gap_through": last,
    }
    schema = arrow_schema(names, version)
    arrays = [pa.array([known.get(field.name)], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def text_array(values: list[bytes]) -> pa.Array:
    """Make text of UTF-8; what is none (nothing that a listener lets in) is shown as such."""
    array = pa.array(values, pa.binary())
    try:
        return array.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([value.decode("utf-8", "replace") for value in values], pa.string())


def _named(numbers: Any, names: list[str | None]) -> pa.Array:
    """Write for each number its name."""
    indices = pa.array(np.asarray(numbers, np.int8))
    return pa.DictionaryArray.from_arrays(indices, pa.array(names, pa.string())).cast(pa.string())


def protocols(flags: list[int], properties: list[bytes]) -> pa.Array:
    """Say what records tell of the connections that they came through."""
    told = np.asarray(flags, np.int32)
    is_five = (told & FROM_V5 != 0) | np.fromiter(map(bool, properties), np.bool_, len(properties))
    return _named(
        np.where(is_five, 2, np.where(told & BEFORE_V5 != 0, 1, 0)), [None, "mqtt3", "mqtt5"]
    )


def guessed_protocols(properties: list[bytes]) -> pa.Array:
    """Say `mqtt5` where a publish shows that it is, else `mqtt`, as version 1 did."""
    return _named(np.fromiter(map(bool, properties), np.bool_, len(properties)), ["mqtt", "mqtt5"])
