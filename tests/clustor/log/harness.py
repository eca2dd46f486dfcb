"""Runs a log on a simulated disk, crashes it anywhere, and checks what recovery makes of it.

The checks know nothing of how the log works: they see the steps that were planned, the receipts
that were earned, and the entries that can be read afterwards.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random

from clustor.log.config import LogConfig
from clustor.log.keys import KeyRing
from clustor.log.ledger import LedgerIdentity
from clustor.log.log import Log, create_log
from clustor.log.reader import LogReader, read_entries
from clustor.log.recovery import Recovery, recover
from clustor.log.segment import SEGMENT_HEADER_BYTES, segment_seq_of
from clustor.log.steps import Plan, Step, WriteFile
from clustor.log.types import (
    DekEpoch,
    Entry,
    IoWriterMode,
    LogId,
    LogIndex,
    LogState,
    MacEpoch,
    PartitionId,
    Term,
)
from clustor.sim.disk import SimDisk

IDENTITY = LedgerIdentity(PartitionId(7), LogId(bytes(range(16))))
SMALL = LogConfig(
    segment_bytes=4096,
    reservation_blocks=2,
    zero_ahead_bytes=512,
    fs_block_bytes=512,
    ledger_zero_ahead_bytes=128,
    ledger_rewrite_bytes=1024,
)
MODE = IoWriterMode.BLOCKING

Contents = tuple[int, tuple[tuple[int, bytes], ...]]
"""What a log holds: its base index, then the term and payload of every entry behind it."""


def new_keys(deks: int = 1) -> KeyRing:
    keys = KeyRing()
    keys.add_mac(MacEpoch(1), b"M" * 32)
    for epoch in range(1, deks + 1):
        keys.add_dek(DekEpoch(epoch), bytes([epoch]) * 32)
    return keys


def entries_from(first: int, term: int, *sizes: int, tag: int = 0) -> list[Entry]:
    """Make entries whose bytes no other call makes."""
    return [
        Entry(
            Term(term),
            LogIndex(first + nth),
            (f"{first + nth}@{term}.{tag}/".encode() * (size // 4 + 1))[:size],
        )
        for nth, size in enumerate(sizes)
    ]


class NonceWitness:
    """Sees every block that was sent to a disk, and that no counter sealed two of them."""

    def __init__(self) -> None:
        self.sealed: dict[tuple[int, int, int], bytes] = {}
        self._dek_epochs: dict[int, int] = {}

    def copy(self) -> NonceWitness:
        twin = NonceWitness()
        twin.sealed = self.sealed.copy()
        twin._dek_epochs = self._dek_epochs.copy()
        return twin

    def watch(self, plan: Plan) -> None:
        for step in plan:
            if isinstance(step, WriteFile):
                seq = segment_seq_of(step.file.rpartition("/")[2])
                if seq is not None:
                    self._watch_segment(seq, step)

    def _watch_segment(self, seq: int, step: WriteFile) -> None:
        if step.offset == 0:
            assert len(step.data) == SEGMENT_HEADER_BYTES
            self._dek_epochs[seq] = struct.unpack_from("<I", step.data, 12)[0]
            return
        if step.data[:4] != b"CRUN":
            return
        plaintext_bytes, counter = struct.unpack_from("<IQ", step.data, 4)
        position = 36
        while plaintext_bytes > 0:
            size = min(plaintext_bytes, 4096) + 16
            block = step.data[position : position + size]
            place = (self._dek_epochs[seq], seq, counter)
            assert self.sealed.setdefault(place, block) == block, f"counter used twice: {place}"
            position += size
            plaintext_bytes -= 4096
            counter += 1


@dataclass
class World:
    """A log on a disk, and what its user was told."""

    disk: SimDisk
    log: Log
    keys: KeyRing
    witness: NonceWitness
    contents: Contents = (0, ())

    @classmethod
    def new(cls, config: LogConfig = SMALL, *, reorder: bool = False) -> World:
        keys = new_keys()
        log, plan = create_log(IDENTITY, keys, config, MODE)
        disk = SimDisk(reorder_directory_ops=reorder)
        disk.execute(plan)
        return cls(disk, log, keys, NonceWitness())


@dataclass
class Moment:
    """A disk between two steps: what was sent to it, and what it may hold after a crash."""

    disk: SimDisk
    keys: KeyRing
    witness: NonceWitness
    allowed: list[Contents]

    def crashed(self, disk: SimDisk) -> Moment:
        return Moment(disk, self.keys, self.witness, self.allowed)


class Distinct:
    """Lets each state through once: crashes at different steps often leave the same disk.

    For disks after a loss of power only, on which nothing waits for a sync. What was sealed until
    then is part of the state: the same disk with more behind it is checked again.
    """

    def __init__(self) -> None:
        self._seen: set[tuple[bytes, int, str]] = set()

    def crashed(self, moment: Moment, disks: Iterator[SimDisk]) -> Iterator[Moment]:
        sealed = hash(frozenset(moment.witness.sealed.items()))
        allowed = repr(moment.allowed)
        for disk in disks:
            state = (disk.digest(), sealed, allowed)
            if state not in self._seen:
                self._seen.add(state)
                yield moment.crashed(disk)


Operation = Callable[[World], tuple[Plan, Callable[[], None], list[Contents]]]
"""Plans something; returns the plan, what to do when it is done, and what a crash may leave."""


def append(*sizes: int, term: int | None = None, tag: int = 0) -> Operation:
    def plan(world: World) -> tuple[Plan, Callable[[], None], list[Contents]]:
        batch = entries_from(
            world.log.last_index + 1, term or max(world.log.last_term, 1), *sizes, tag=tag
        )
        return _appended(world, batch, world.log.last_index)

    return plan


def overwrite(back: int, *sizes: int, tag: int = 0) -> Operation:
    """Replace the last `back` entries, as a follower does when a new leader disagrees."""

    def plan(world: World) -> tuple[Plan, Callable[[], None], list[Contents]]:
        keep = world.log.last_index - min(back, len(world.contents[1]))
        batch = entries_from(keep + 1, world.log.last_term + 1, *sizes, tag=tag)
        return _appended(world, batch, keep)

    return plan


def _appended(
    world: World, batch: list[Entry], keep: int
) -> tuple[Plan, Callable[[], None], list[Contents]]:
    base, held = world.contents
    kept = held[: keep - base]
    added = tuple((int(entry.term), entry.payload) for entry in batch)
    planned = world.log.plan_append(batch)

    def done() -> None:
        world.log.stored(planned.receipt)
        assert world.log.durable_index == batch[-1].index
        world.contents = (base, kept + added)

    prefixes = [(base, kept + added[:count]) for count in range(len(added) + 1)]
    return planned.steps, done, [world.contents, *prefixes]


def seal() -> Operation:
    return lambda world: (world.log.plan_seal(), lambda: None, [world.contents])


def rotate_key() -> Operation:
    def plan(world: World) -> tuple[Plan, Callable[[], None], list[Contents]]:
        epoch = world.keys.dek_epoch + 1
        world.keys.add_dek(DekEpoch(epoch), bytes([epoch % 256]) * 32)
        return (), lambda: None, [world.contents]

    return plan


def compact(behind: int) -> Operation:
    """Compact all but the last `behind` entries, as far as whole segments allow."""

    def plan(world: World) -> tuple[Plan, Callable[[], None], list[Contents]]:
        floor = LogIndex(max(1, world.log.durable_index - behind))
        steps = world.log.plan_compact(floor)
        base, held = world.contents
        new_base = int(world.log.entries.base_index)
        after = (new_base, held[new_base - base :])

        def done() -> None:
            world.contents = after

        return steps, done, [world.contents, after]

    return plan


def install(ahead: int) -> Operation:
    def plan(world: World) -> tuple[Plan, Callable[[], None], list[Contents]]:
        base = world.log.last_index + ahead
        steps = world.log.plan_install(LogIndex(base), Term(world.log.last_term + 1))
        after: Contents = (base, ())

        def done() -> None:
            world.contents = after

        return steps, done, [world.contents, after]

    return plan


def run(world: World, operation: Operation) -> None:
    """Carry an operation out without a fault."""
    plan, done, _ = operation(world)
    world.witness.watch(plan)
    world.disk.execute(plan)
    done()


def crash_points(world: World, operation: Operation) -> Iterator[Moment]:
    """Carry an operation out, yielding the moment before its first step and after each."""
    plan, done, allowed = operation(world)
    for nth, disk in enumerate(world.disk.crash_points(plan)):
        world.witness.watch(plan[max(nth - 1, 0) : nth])
        possible = allowed if nth < len(plan) else [allowed[-1]]
        yield Moment(disk, world.keys, world.witness.copy(), possible)
    done()


def read_back(disk: SimDisk, keys: KeyRing, log: Log) -> Contents:
    base = log.entries.base_index
    held = read_entries(disk, keys, log.entries, base + 1, log.last_index)
    return int(base), tuple((int(entry.term), entry.payload) for entry in held)


def start(moment: Moment, config: LogConfig = SMALL) -> Recovery:
    """Open the log that a crash left, and do not mend it yet."""
    recovery = recover(moment.disk, moment.keys, config, MODE)
    assert recovery is not None, "a log that was created is gone"
    assert recovery.state is LogState.HEALTHY, recovery.findings
    return recovery


def check_after_crash(moment: Moment, config: LogConfig = SMALL) -> World:
    """Start on the disk, mend it, and see that it holds one of the allowed contents."""
    recovery = start(moment, config)
    found = read_back(moment.disk, moment.keys, recovery.log)
    assert found in moment.allowed, (found, moment.allowed, recovery.findings)
    witness = moment.witness.copy()
    witness.watch(recovery.plan)
    moment.disk.execute(recovery.plan)
    world = World(moment.disk, recovery.log, moment.keys, witness, found)
    assert world.log.durable_index == world.log.last_index
    reader = LogReader.open(moment.disk, moment.keys)
    assert reader.image.problem is None
    assert reader.proven_index == world.log.last_index, "the ledger proves less than was kept"
    return world


def now(world: World) -> Moment:
    """The world at rest: a crash may leave only what it holds."""
    return Moment(world.disk, world.keys, world.witness, [world.contents])


def draw_operation(rng: Random, tag: int) -> Operation:
    """Draw an operation; small appends are the most likely."""
    sizes = [rng.choice((0, 1, 40, 200, 700)) for _ in range(rng.randint(1, 4))]
    return rng.choice(
        [append(*sizes, tag=tag)] * 6
        + [overwrite(rng.randint(1, 5), *sizes, tag=tag)] * 2
        + [
            append(rng.choice((3000, 9000)), tag=tag),
            seal(),
            rotate_key(),
            compact(rng.randint(0, 6)),
            install(rng.randint(0, 3)),
        ]
    )


def step_names(plan: Plan) -> list[str]:
    """Name the steps of a plan, for tests of their order."""

    def name(step: Step) -> str:
        file = getattr(step, "file", getattr(step, "directory", ""))
        return f"{type(step).__name__} {file}".strip()

    return [name(step) for step in plan]
