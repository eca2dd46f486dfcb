"""Answers of the admin API for people: tables of lists, one line for each fact of an object."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Final

from rich.table import Table

_MOMENTS: Final = frozenset({"at", "since", "redirect_until", "warmup_deadline"})
_CELL_MAX: Final = 60


def list_table(title: str, columns: tuple[str, ...], items: list[dict[str, Any]]) -> Table:
    """Show the items of a page, these columns first; without any, all that are short."""
    names = columns or tuple(items[0] if items else ())
    table = Table(title=title)
    for name in names:
        table.add_column(name.rpartition(".")[2].replace("_", " "))
    for item in items:
        table.add_row(*(cell(name, _at(item, name)) for name in names))
    return table


def facts_table(facts: Iterable[tuple[str, Any]]) -> Table:
    """Show one object: a line for each fact."""
    table = Table(box=None, show_header=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in facts:
        table.add_row(name.replace("_", " "), cell(name, value, long=True))
    return table


def _at(item: Any, path: str) -> Any:
    for part in path.split("."):
        item = item.get(part) if isinstance(item, dict) else None
    return item


def cell(name: str, value: Any, *, long: bool = False) -> str:
    """Write one value: a moment as a time, a list by commas, an object as JSON."""
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    last = name.rpartition(".")[2]
    if isinstance(value, str) and value.isdigit() and (last.endswith("_at") or last in _MOMENTS):
        return _moment(int(value))
    if isinstance(value, list) and all(isinstance(each, str | int) for each in value):
        text = ", ".join(map(str, value)) or "-"
    elif isinstance(value, dict | list):
        text = json.dumps(value)
    else:
        text = str(value)
    return text if long or len(text) <= _CELL_MAX else f"{text[: _CELL_MAX - 1]}…"


def _moment(milliseconds: int) -> str:
    try:
        return f"{datetime.fromtimestamp(milliseconds / 1000, UTC):%Y-%m-%d %H:%M:%S}"
    except (OverflowError, ValueError, OSError):
        return str(milliseconds)
