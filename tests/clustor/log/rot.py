"""Small logs at rest, damage done to them, and the one question: was anything lost in silence?

The truth is what the log's user was told. A damaged log may refuse to open, may open fenced, or
may open healthy with exactly the truth; nothing else is allowed.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum, auto

from clustor.log.config import LogConfig
from clustor.log.errors import CorruptLog, LogError
from clustor.log.frame import RUN_HEADER_BYTES
from clustor.log.ledger import LEDGER_FILE, RECORD_BYTES
from clustor.log.metadata import METADATA_FILE
from clustor.log.reader import LogReader, read_entries
from clustor.log.recovery import Recovery, RecoveryFindingKind, recover
from clustor.log.segment import SEGMENT_HEADER_BYTES, TRAILER_BYTES
from clustor.log.steps import Create, DeleteFile, FileName, Plan, Sync, Truncate, WriteFile
from clustor.log.types import DurabilityMode, DurabilityModeEpoch, LogIndex, LogState
from clustor.sim.disk import CrashChoice, SimDisk
from tests.clustor.log.harness import (
    MODE,
    Contents,
    Moment,
    Operation,
    World,
    append,
    check_after_crash,
    compact,
    install,
    now,
    overwrite,
    read_back,
    rotate_key,
    run,
    seal,
)

TINY = LogConfig(
    segment_bytes=4096,
    reservation_blocks=2,
    zero_ahead_bytes=64,
    fs_block_bytes=64,
    ledger_zero_ahead_bytes=64,
    ledger_rewrite_bytes=4096,
)


def compact_everything() -> Operation:
    """Compact up to the end, as after a snapshot of everything."""

    def plan(world: World) -> tuple[Plan, Callable[[], None], list[Contents]]:
        base = int(world.log.last_index)
        steps = world.log.plan_compact(LogIndex(base + 1))

        def done() -> None:
            world.contents = (base, ())

        return steps, done, [world.contents, (base, ())]

    return plan


def restart() -> Operation:
    """Stop without a word and recover: counters are given up on the way."""

    def plan(world: World) -> tuple[Plan, Callable[[], None], list[Contents]]:
        after = check_after_crash(now(world), TINY)
        world.log, world.witness = after.log, after.witness
        return (), lambda: None, [world.contents]

    return plan


def lost_append(*sizes: int) -> Operation:
    """Write a batch and lose power before its sync: its counters are used, its bytes are gone."""

    def plan(world: World) -> tuple[Plan, Callable[[], None], list[Contents]]:
        steps, _, _ = append(*sizes, tag=55)(world)
        written = next(
            nth for nth, step in enumerate(steps) if isinstance(step, Sync) and "seg" in step.file
        )
        world.witness.watch(steps[:written])
        world.disk.execute(steps[:written])
        disk = world.disk.crash(CrashChoice())
        after = check_after_crash(Moment(disk, world.keys, world.witness, [world.contents]), TINY)
        world.disk, world.log, world.witness = after.disk, after.log, after.witness
        return (), lambda: None, [world.contents]

    return plan


def transition() -> Operation:
    """Change the durability mode, under the next epoch."""

    def plan(world: World) -> tuple[Plan, Callable[[], None], list[Contents]]:
        epoch = DurabilityModeEpoch(world.log.durability_mode_epoch + 1)
        modes = DurabilityMode.STRICT, DurabilityMode.GROUP_FSYNC
        log = world.log
        steps = log.plan_transition(log.last_term, log.last_index, *modes, epoch)
        return steps, lambda: None, [world.contents]

    return plan


def drop(back: int) -> Operation:
    """Void the last `back` entries and put nothing in their place."""

    def plan(world: World) -> tuple[Plan, Callable[[], None], list[Contents]]:
        base, held = world.contents
        after = (base, held[: len(held) - back])
        steps = world.log.plan_truncate(LogIndex(base + len(after[1]) + 1))

        def done() -> None:
            world.contents = after

        return steps, done, [world.contents, after]

    return plan


HISTORIES: dict[str, list[Operation]] = {
    "one open segment": [append(10), append(20, 5), append(3)],
    "closed and open": [append(10), seal(), append(20), seal(), append(5, 5)],
    "all closed": [append(10), seal(), append(20), seal()],
    "more than a block": [append(4200), append(5)],
    "suffix replaced": [append(10, 10, 10), overwrite(2, 20), append(7)],
    "suffix replaced across segments": [append(9, 9), seal(), append(8), overwrite(2, 20)],
    "keys rotated": [append(10), rotate_key(), append(20), rotate_key(), append(5)],
    "compacted": [append(10), seal(), append(10), seal(), append(5), compact(0), append(5)],
    "ledger just rewritten": [append(9), seal(), append(8), seal(), append(5), compact(0)],
    "closed, ledger just rewritten": [append(9), seal(), append(8, 8), seal(), compact(0)],
    "closed after a lost append, ledger just rewritten": [
        append(9),
        seal(),
        append(8),
        lost_append(8),
        seal(),
        compact(0),
    ],
    "replaced, then compacted": [
        append(9),
        seal(),
        append(9, 9),
        overwrite(1, 20),
        append(4),
        compact(1),
    ],
    "snapshot installed": [append(10, 10), install(3), append(5)],
    "snapshot installed, nothing behind it": [append(10, 10), install(3)],
    "mode changed": [append(10), transition(), append(5)],
    "restarted": [append(10), restart(), append(5)],
    "restarted, nothing since": [append(10), append(5), restart()],
}


@dataclass
class Rest:
    """A log at rest on its disk, with the ledgers it has had."""

    world: World
    ledgers: list[bytes] = field(default_factory=list)
    written: set[tuple[int, int, bytes]] = field(default_factory=set)  # every entry ever

    @classmethod
    def after(cls, history: list[Operation]) -> Rest:
        rest = cls(World.new(TINY))
        rest._look()
        for operation in history:
            run(rest.world, operation)
            rest._look()
        return rest

    def _look(self) -> None:
        self.ledgers.append(contents_of(self.world.disk, LEDGER_FILE))
        base, held = self.world.contents
        self.written |= {(base + 1 + n, term, data) for n, (term, data) in enumerate(held)}


def contents_of(disk: SimDisk, file: FileName) -> bytes:
    return disk.read(file, 0, disk.size(file))


def files_of(disk: SimDisk) -> list[FileName]:
    below = [FileName(f"wal/{name}") for name in disk.names("wal")]
    return [METADATA_FILE, *below]


def replaced(disk: SimDisk, file: FileName, data: bytes) -> SimDisk:
    """Return a copy of the disk in which `file` holds other bytes."""
    twin = disk.copy()
    twin.execute((DeleteFile(file), Create(file), WriteFile(file, 0, data)))
    return twin


def removed(disk: SimDisk, file: FileName) -> SimDisk:
    twin = disk.copy()
    twin.execute((DeleteFile(file),))
    return twin


def shortened(disk: SimDisk, file: FileName, size_bytes: int) -> SimDisk:
    twin = disk.copy()
    twin.execute((Truncate(file, size_bytes),))
    return twin


def flipped(disk: SimDisk, file: FileName, position: int, bit: int) -> SimDisk:
    twin = disk.copy()
    twin.flip_bit(file, position, bit)
    return twin


@dataclass(frozen=True)
class Outcome:
    """What became of a damaged log. `state` is None where it would not even open."""

    state: LogState | None
    found: frozenset[RecoveryFindingKind] = frozenset()
    error: LogError | None = None
    durability_mode_epoch: DurabilityModeEpoch = DurabilityModeEpoch(0)


def outcome_of(rest: Rest, disk: SimDisk) -> Outcome:
    """Open a damaged log; raise AssertionError if anything was lost or invented in silence."""
    world = rest.world
    try:
        recovery = recover(disk, world.keys, TINY, MODE)
    except LogError as error:
        return Outcome(None, error=error)
    assert recovery is not None, "a log that was there counts as never created"
    kinds = frozenset(finding.kind for finding in recovery.findings)
    if recovery.state is LogState.HEALTHY:
        _check_healthy(rest, disk, recovery)
        epoch = recovery.log.durability_mode_epoch
        return Outcome(recovery.state, kinds, durability_mode_epoch=epoch)
    assert recovery.log.fenced is not None
    assert recovery.plan == ()
    assert RecoveryFindingKind.DAMAGE in kinds
    _check_readable_part(rest, disk, recovery)
    return Outcome(recovery.state, kinds, recovery.problem)


def _check_healthy(rest: Rest, disk: SimDisk, recovery: Recovery) -> None:
    world = rest.world
    truth = world.contents
    assert read_back(disk, world.keys, recovery.log) == truth, recovery.findings
    witness = world.witness.copy()
    witness.watch(recovery.plan)
    disk.execute(recovery.plan)
    assert recovery.log.durable_index == recovery.log.last_index
    after = World(disk, recovery.log, world.keys, witness, truth)
    run(after, append(33, tag=99))  # its counters must be new, and it must be found again
    reader = LogReader.open(disk, world.keys)
    assert reader.image.problem is None
    held = [(int(entry.term), entry.payload) for entry in reader.entries()]
    assert (int(reader.image.entries.base_index), tuple(held)) == after.contents


def _check_readable_part(rest: Rest, disk: SimDisk, recovery: Recovery) -> None:
    """What a fenced log still yields was written once; damage never becomes data."""
    entries = recovery.log.entries
    held = read_entries(
        disk, rest.world.keys, entries, entries.base_index + 1, recovery.log.last_index
    )
    try:
        for entry in held:
            assert (entry.index, entry.term, entry.payload) in rest.written
    except CorruptLog:
        pass


class Place(Enum):
    """What a byte of a log is for; it decides how damage to it is classified (§9.4)."""

    METADATA = auto()
    INDEX = auto()
    LEDGER_START = auto()  # whose log it is and where it starts
    LEDGER_PROVEN = auto()  # a record that a later write follows
    LEDGER_LAST_WRITE = auto()  # looks like a torn write; the segments prove the same anew
    LEDGER_ZEROS = auto()
    SEGMENT_HEADER = auto()
    RUN_HEADER = auto()
    SEALED = auto()
    TRAILER_MAGIC = auto()
    TRAILER = auto()
    SEGMENT_ZEROS = auto()


def places(disk: SimDisk, file: FileName) -> Iterator[Place]:
    """Yield the place of each byte of a file, by a walk of its own."""
    data = contents_of(disk, file)
    if file == METADATA_FILE:
        yield from [Place.METADATA] * len(data)
    elif file.endswith(".idx"):
        yield from [Place.INDEX] * len(data)
    elif file == LEDGER_FILE:
        yield from _ledger_places(data)
    else:
        yield from _segment_places(data)


def _ledger_places(data: bytes) -> Iterator[Place]:
    starts = [at for at in range(0, len(data), RECORD_BYTES) if any(data[at : at + RECORD_BYTES])]
    nth_in_write = [struct.unpack_from("<H", data, at + 2)[0] for at in starts]
    # What came by a rename was never torn, so damage to it is damage.
    head_records = struct.unpack_from("<I", data, 16 + 28)[0]
    last_write = max(len(starts) - 1 - nth_in_write[-1], head_records)
    for nth in range(len(starts)):
        place = Place.LEDGER_PROVEN if nth < last_write else Place.LEDGER_LAST_WRITE
        yield from [Place.LEDGER_START if nth < 2 else place] * RECORD_BYTES
    yield from [Place.LEDGER_ZEROS] * (len(data) - len(starts) * RECORD_BYTES)


def _segment_places(data: bytes) -> Iterator[Place]:
    yield from [Place.SEGMENT_HEADER] * SEGMENT_HEADER_BYTES
    position = SEGMENT_HEADER_BYTES
    while data[position : position + 4] == b"CRUN":
        plaintext_bytes = struct.unpack_from("<I", data, position + 4)[0]
        sealed_bytes = plaintext_bytes + 16 * -(-plaintext_bytes // 4096)
        yield from [Place.RUN_HEADER] * RUN_HEADER_BYTES
        yield from [Place.SEALED] * sealed_bytes
        position += RUN_HEADER_BYTES + sealed_bytes
    if data[position : position + 4] == b"CEND":
        yield from [Place.TRAILER_MAGIC] * 4
        yield from [Place.TRAILER] * (TRAILER_BYTES - 4)
        assert len(data) == position + TRAILER_BYTES
    else:
        yield from [Place.SEGMENT_ZEROS] * (len(data) - position)
