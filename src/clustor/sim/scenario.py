"""What one seed means: the size of a cluster, how its world behaves, and what goes wrong when.

A scenario is data. It can be printed, replayed, and made smaller: the faults are a list, each
with a salt of its own, so that taking one out leaves the others as they were.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from random import Random

from clustor.sim.chance import generator
from clustor.sim.network import SimLink
from clustor.sim.timeline import Microseconds

MS = 1_000
SECOND = 1_000_000


class FaultKind(StrEnum):
    KILL = "kill"
    POWER_LOSS = "power_loss"
    POWER_LOSS_OF_ALL = "power_loss_of_all"
    SLOW_DISK = "slow_disk"
    STALLED_DISK = "stalled_disk"
    SYNC_ERROR = "sync_error"
    DISK_FULL = "disk_full"
    FLIP_IN_LOG = "flip_in_log"
    FLIP_IN_LEDGER = "flip_in_ledger"
    FLIP_IN_SNAPSHOT = "flip_in_snapshot"
    FLIP_IN_METADATA = "flip_in_metadata"
    DISK_LOST = "disk_lost"
    PARTITION = "partition"
    ONE_WAY = "one_way_partition"
    ISOLATED_LEADER = "isolated_leader"
    BAD_LINKS = "bad_links"
    CLOCK_JUMP = "clock_jump"
    CLOCK_RATE = "clock_rate"
    CONTROL_OUTAGE = "control_plane_outage"
    MEMBERSHIP = "membership_change"
    TRANSFER = "leadership_transfer"
    KEY_ROTATION = "key_rotation"
    SNAPSHOT = "snapshot_on_demand"


DAMAGE = frozenset(
    {
        FaultKind.FLIP_IN_LOG,
        FaultKind.FLIP_IN_LEDGER,
        FaultKind.FLIP_IN_SNAPSHOT,
        FaultKind.FLIP_IN_METADATA,
        FaultKind.DISK_LOST,
    }
)
"""Faults that take data away; no more than a minority of a group suffers them at a time."""

_PER_SECOND: dict[FaultKind, float] = {
    FaultKind.KILL: 0.6,
    FaultKind.POWER_LOSS: 0.6,
    FaultKind.POWER_LOSS_OF_ALL: 0.15,
    FaultKind.SLOW_DISK: 0.4,
    FaultKind.STALLED_DISK: 0.3,
    FaultKind.SYNC_ERROR: 0.3,
    FaultKind.DISK_FULL: 0.2,
    FaultKind.FLIP_IN_LOG: 0.25,
    FaultKind.FLIP_IN_LEDGER: 0.2,
    FaultKind.FLIP_IN_SNAPSHOT: 0.25,
    FaultKind.FLIP_IN_METADATA: 0.2,
    FaultKind.DISK_LOST: 0.2,
    FaultKind.PARTITION: 0.5,
    FaultKind.ONE_WAY: 0.5,
    FaultKind.ISOLATED_LEADER: 0.4,
    FaultKind.BAD_LINKS: 0.5,
    FaultKind.CLOCK_JUMP: 0.4,
    FaultKind.CLOCK_RATE: 0.3,
    FaultKind.CONTROL_OUTAGE: 0.3,
    FaultKind.MEMBERSHIP: 0.5,
    FaultKind.TRANSFER: 0.5,
    FaultKind.KEY_ROTATION: 0.3,
    FaultKind.SNAPSHOT: 0.4,
}


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that goes wrong at `at`; `salt` decides where, how hard and for how long."""

    at: Microseconds
    kind: FaultKind
    salt: int


@dataclass(frozen=True, slots=True)
class Scenario:
    """One run. Equal scenarios have equal courses, event by event."""

    seed: int
    size: int
    spares: int
    groups: int
    clients: int
    operations_max: int
    keys: int
    duration: Microseconds
    link: SimLink
    disk_latency_max: Microseconds
    snapshot_log_bytes: int
    reorder_directory_ops: bool
    faults: tuple[Fault, ...]
    delta_ms: int = 0  # how often time makes a delta due, and five times that a full one; 0: never

    @classmethod
    def drawn(cls, seed: int) -> Scenario:
        """Draw the sizes, the rates (many of them zero) and the times of the faults."""
        rng = generator("scenario", seed)
        duration = Microseconds(rng.randint(1_500, 4_000) * MS)
        return cls(
            seed=seed,
            size=rng.choice((3, 3, 3, 3, 5, 5, 7)),
            spares=rng.choice((0, 0, 1, 2)),
            groups=rng.choice((1, 1, 1, 2)),
            clients=rng.randint(2, 4),
            operations_max=rng.randint(30, 90),
            keys=rng.randint(1, 4),
            duration=duration,
            link=_draw_link(rng),
            disk_latency_max=Microseconds(rng.choice((500, 2_000, 8_000))),
            snapshot_log_bytes=rng.choice((1_500, 4_000, 1 << 20)),
            reorder_directory_ops=rng.random() < 0.5,
            faults=_draw_faults(rng, duration),
            delta_ms=rng.choice((0, 0, 100, 300)),
        )

    def smaller(
        self,
        *,
        faults: tuple[Fault, ...] | None = None,
        duration: Microseconds | None = None,
        operations_max: int | None = None,
    ) -> Scenario:
        """Return the same run with less of something."""
        duration = duration or self.duration
        kept = self.faults if faults is None else faults
        return replace(
            self,
            duration=duration,
            operations_max=operations_max or self.operations_max,
            faults=tuple(fault for fault in kept if fault.at < duration),
        )


def _draw_link(rng: Random) -> SimLink:
    return SimLink(
        latency_min=Microseconds(100),
        latency_max=Microseconds(rng.choice((500, 3_000, 20_000))),
        tail_ppm=rng.choice((0, 0, 10_000)),
        tail_max=Microseconds(150_000),
        loss_ppm=rng.choice((0, 0, 5_000, 50_000)),
        duplicate_ppm=rng.choice((0, 0, 20_000)),
        reorder_ppm=rng.choice((0, 0, 50_000)),
    )


def _draw_faults(rng: Random, duration: Microseconds) -> tuple[Fault, ...]:
    """Draw which kinds happen at all, when, and which of them come in pairs."""
    active = [kind for kind in FaultKind if rng.random() < 0.35]
    faults: list[Fault] = []
    for kind in active:
        expected = _PER_SECOND[kind] * duration / SECOND * rng.choice((0.5, 1.0, 2.5))
        for _ in range(_poisson(rng, expected)):
            at = rng.randrange(duration)
            faults.append(Fault(Microseconds(at), kind, rng.getrandbits(48)))
            if rng.random() < 0.3:  # the second of a pair, while the first still hurts
                late = min(duration - 1, at + rng.choice((0, 5 * MS, 60 * MS)))
                faults.append(Fault(Microseconds(late), rng.choice(active), rng.getrandbits(48)))
    return tuple(sorted(faults, key=lambda fault: (fault.at, fault.salt)))


def _poisson(rng: Random, expected: float) -> int:
    whole = int(expected)
    return whole + (rng.random() < expected - whole)
