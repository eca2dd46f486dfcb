"""From what a user names to logs that the broker's machine can be run over."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from clustor.log.types import Entry
from quantum.archive.types import Bounds, IndexRange, PrgId, SnapshotRef
from quantum.lake.archive import KeyProvider, LogSource
from quantum.lake.keys_option import key_provider
from quantum.lake.opening import open_source
from quantum.lake.options import keys_named
from quantum.lake.settings import tenant_entry
from quantum.tenants.broker_file import BROKER_FILE, TenantEntry

_DIRECTORY: Final = "directory:"


@dataclass
class SettledSource:
    """A source, and how its tenants are set; workers need no `broker.json`."""

    below: LogSource
    tenants: dict[str, TenantEntry]

    def prgs(self) -> list[PrgId]:
        return self.below.prgs()

    def bounds(self, prg: PrgId) -> Bounds:
        return self.below.bounds(prg)

    def entries(self, span: IndexRange) -> Iterator[Entry]:
        return self.below.entries(span)

    def snapshots(self, prg: PrgId) -> list[SnapshotRef]:
        return self.below.snapshots(prg)

    def open_snapshot(self, ref: SnapshotRef) -> Iterator[bytes]:
        return self.below.open_snapshot(ref)

    def tenant_entry(self, name: str) -> TenantEntry | None:
        return self.tenants.get(name)


def open_logs(
    where: str | LogSource, keys: str | KeyProvider = "directory", broker: str | None = None
) -> LogSource:
    """Open what a user named; a source is taken as it is.

    `broker` is a directory with a `broker.json`: which publishes a full queue refused depends on
    it. Where it is not said and the keys lie in such a directory, that one is taken.
    """
    keys = keys_named(keys) if isinstance(keys, str) else keys
    if not isinstance(where, str):
        source = where
    else:
        source = open_source(where, key_provider(keys, where) if isinstance(keys, str) else keys)
    if broker is None and isinstance(keys, str) and keys.startswith(_DIRECTORY):
        beside = Path(keys.removeprefix(_DIRECTORY)).expanduser()
        broker = str(beside) if (beside / BROKER_FILE).is_file() else None
    if broker is None:
        return source
    names = {prg.tenant for prg in source.prgs()}
    found = {name: tenant_entry(source, PrgId(name, 0), broker) for name in names}
    return SettledSource(source, {name: each for name, each in found.items() if each is not None})
