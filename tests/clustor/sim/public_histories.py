"""Readers for the two formats of the published histories, and where they are kept."""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Iterator
from pathlib import Path

from clustor.sim.history import CallHistory, HistoryOperation, Process
from clustor.sim.models import (
    Append,
    CasRegisterCall,
    CompareAndSet,
    KvCall,
    ModelGet,
    ModelPut,
    ModelWrite,
    Read,
)

_REGISTER_LINE = re.compile(r"INFO\s+jepsen\.util - (\d+)\s+:(\w+)\s+:(\w+)\s+(.+)")
_KV_LINE = re.compile(r'\{:process (\d+), :type :(\w+), :f :(\w+), :key "(.*)", :value (.*)\}')


def suites_folder() -> Path | None:
    """Return the folder of shared suites, or None where there is none."""
    named = os.environ.get("QUANTUM_SUITES")
    if named:
        return Path(named)
    for parent in Path(__file__).resolve().parents:
        if (parent / "shared" / "suites").is_dir():
            return parent / "shared" / "suites"
    return None


def verdicts(folder: Path) -> Iterator[tuple[str, bool]]:
    with (folder / "verdicts.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            yield row["history"], row["linearizable"] == "true"


def parse_register_history(text: str) -> tuple[HistoryOperation[CasRegisterCall], ...]:
    history = CallHistory[CasRegisterCall]()
    for line in text.splitlines():
        matched = _REGISTER_LINE.fullmatch(line.strip())
        if matched is None:
            raise ValueError(f"not a register event: {line!r}")
        number, kind, function, argument = matched.groups()
        _register_event(history, Process(int(number)), kind, function, argument)
    return history.operations()


def _register_event(
    history: CallHistory[CasRegisterCall], process: Process, kind: str, function: str, argument: str
) -> None:
    match kind, function:
        case "invoke", "read":
            history.invoke(process, Read())
        case "invoke", "write":
            history.invoke(process, ModelWrite(int(argument)))
        case "invoke", "cas":
            expected, value = argument.strip("[]").split()
            history.invoke(process, CompareAndSet(int(expected), int(value)))
        case "ok", "read":
            history.ok(process, None if argument == "nil" else int(argument))
        case "ok", "write":
            history.ok(process)
        case (("ok" | "fail"), "cas"):
            history.ok(process, kind == "ok")
        case "fail", "read":  # A read that timed out told nobody anything.
            history.did_not_happen(process)
        case "info", _:
            history.unknown(process)
        case _:
            raise ValueError(f"unknown event: {kind} {function}")


def parse_kv_history(text: str) -> tuple[HistoryOperation[KvCall], ...]:
    history = CallHistory[KvCall]()
    for line in text.splitlines():
        matched = _KV_LINE.fullmatch(line.strip())
        if matched is None:
            raise ValueError(f"not a key-value event: {line!r}")
        number, kind, function, key, value = matched.groups()
        process = Process(int(number))
        text_value = value[1:-1].encode() if value.startswith('"') else b""
        match kind, function:
            case "invoke", "get":
                history.invoke(process, ModelGet(key))
            case "invoke", "put":
                history.invoke(process, ModelPut(key, text_value))
            case "invoke", "append":
                history.invoke(process, Append(key, text_value))
            case "ok", "get":
                history.ok(process, text_value)
            case "ok", ("put" | "append"):
                history.ok(process)
            case _:
                raise ValueError(f"unknown event: {kind} {function}")
    return history.operations()
