"""Run a whole cluster in one thread, and judge what its clients saw."""

from __future__ import annotations

from clustor.sim.history import History, HistoryMisuse, Operation, Process
from clustor.sim.linearizability import Ok, Undecided, Verdict, Violation, check
from clustor.sim.network import Arrival, Fate, Link, Network, NodeId
from clustor.sim.timeline import Microseconds, Timeline

__all__ = [
    "Arrival",
    "Fate",
    "History",
    "HistoryMisuse",
    "Link",
    "Microseconds",
    "Network",
    "NodeId",
    "Ok",
    "Operation",
    "Process",
    "Timeline",
    "Undecided",
    "Verdict",
    "Violation",
    "check",
]
