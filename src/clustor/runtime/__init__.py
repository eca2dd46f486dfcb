"""The runtime carries out what the pure rooms decide, on clocks, sockets and files."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clustor.runtime.control.records import operator_of, steward_of
    from clustor.runtime.control.service import ControlService
    from clustor.runtime.errors import ControlUnavailable

__all__ = ["ControlService", "ControlUnavailable", "operator_of", "steward_of"]

_HOMES = {
    "ControlService": "clustor.runtime.control.service",
    "ControlUnavailable": "clustor.runtime.errors",
    "operator_of": "clustor.runtime.control.records",
    "steward_of": "clustor.runtime.control.records",
}


def __getattr__(name: str) -> object:
    """Import late: the command line uses small parts of this room, and shall start quickly."""
    from importlib import import_module

    if name not in _HOMES:
        raise AttributeError(name)
    return getattr(import_module(_HOMES[name]), name)
