"""A chain of snapshots becomes a state: the full one is restored, each delta goes on from there."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from clustor.log.keys import KeyRing
from clustor.log.steps import Storage
from clustor.replica.header import SnapshotHeader, split_header
from clustor.replica.machine import DeltaMachine, StateMachine
from clustor.snapshot.catalog import Catalog, read_content
from clustor.snapshot.errors import CorruptSnapshot


def restore_contents(
    machine: StateMachine,
    contents: Iterable[Iterable[bytes]],
    check: Callable[[int], None] = lambda _: None,
) -> SnapshotHeader | None:
    """Restore a full snapshot's content, then each delta's; return the last one's header.

    `check` is called with the number of each link once the machine has it, and may raise.
    """
    header: SnapshotHeader | None = None
    for nth, content in enumerate(contents):
        is_first = header is None
        header, rest = split_header(content)
        if is_first:
            machine.restore(rest)
        elif isinstance(machine, DeltaMachine):
            machine.restore_delta(rest)
        else:
            raise CorruptSnapshot("a delta for a machine that has none")
        check(nth)
    return header


def restore_newest(
    machine: StateMachine, storage: Storage, catalog: Catalog, keys: KeyRing
) -> SnapshotHeader | None:
    """Restore the newest snapshot with its chain; None where there is none."""
    if catalog.newest is None:
        return None
    contents = (
        map(bytes, read_content(storage, each.manifest, keys, catalog.partition))
        for each in catalog.chain(catalog.newest)
    )
    header = restore_contents(machine, contents)
    mark(machine, catalog.newest.manifest.base_index)
    return header


def mark(machine: StateMachine, base_index: int) -> None:
    """Let a delta begin at the state that the machine has now, where it makes deltas."""
    if isinstance(machine, DeltaMachine):
        machine.mark(base_index)
