"""Who needs old keys for what is not below a node's `state/`: archives, copies."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from clustor.runtime.data_directory import write_durably
from clustor.security import RegistryUnreadable
from clustor.wall_clock import wall_clock_ms

HOLDS_FILE: Final = "key-holds.json"


class HoldsFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Who needs old keys, and since when."""

    holds: dict[str, int]


def read_holds(directory: Path) -> dict[str, int]:
    """Return who holds the keys of a store; raises RegistryUnreadable."""
    path = directory / HOLDS_FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=HoldsFile).holds
    except FileNotFoundError:
        return {}
    except msgspec.MsgspecError as error:
        raise RegistryUnreadable("who holds keys cannot be read", file=str(path)) from error


def hold_keys(directory: Path, name: str) -> None:
    """Let no key of a store be zeroized until `release_keys`: something elsewhere needs them.

    An archive's segments are sealed with the keys of their time, for as long as it is kept.
    """
    holds = read_holds(directory)
    if name not in holds:
        file = HoldsFile({**holds, name: wall_clock_ms()})
        write_durably(directory / HOLDS_FILE, msgspec.json.encode(file) + b"\n")


def release_keys(directory: Path, name: str) -> bool:
    """Take a hold back: what it was for is gone, or has its keys elsewhere."""
    holds = read_holds(directory)
    if holds.pop(name, None) is None:
        return False
    write_durably(directory / HOLDS_FILE, msgspec.json.encode(HoldsFile(holds)) + b"\n")
    return True
