"""Run a whole cluster in one thread, and judge what its clients saw."""

from __future__ import annotations

from clustor.sim.history import History, HistoryMisuse, Operation, Process
from clustor.sim.linearizability import Ok, Undecided, Verdict, Violation, check

__all__ = [
    "History",
    "HistoryMisuse",
    "Ok",
    "Operation",
    "Process",
    "Undecided",
    "Verdict",
    "Violation",
    "check",
]
