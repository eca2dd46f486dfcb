"""`simulate`: a fleet's ring with every key in it (quantumqtt §§2.1, 14.2, 14.5).

Every session's client id is hashed with the broker's own ring, none is sampled away, so the load
of each partition is what that fleet would have. Growth of the ring is the same keys placed twice.
Publishes cost commits as §14.5 counts them: one where the topic is in the session's partition,
else two there and one in the topic's.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from quantum.lake.jobs.progress import Progress, Step, silence
from quantum.lake.jobs.runner import Runner, runner_of
from quantum.lake.refusals import BadOption

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JOB: Final = "simulate"
CHUNK_KEYS: Final = 1_000_000
SESSIONS_TARGET: Final = 50_000  # §14.2, per partition
SESSIONS_CAP: Final = 75_000
VARIANCE_MAX: Final = 0.15
_STEP: Final = np.uint64(2862933555777941757)

Counts = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Fleet:
    """What is simulated."""

    sessions: int = 100_000_000
    prgs: int = 2_000
    grown_prgs: int = 2_100
    cross_ratio: float = 0.5
    nodes: int = 300
    prg_commits_per_second: int = 500
    tenant: str = "fleet"
    seed: int = 0

    def check(self) -> None:
        """Raises BadOption for a fleet that cannot be."""
        if not 1 <= self.prgs <= self.grown_prgs:
            raise BadOption("a ring only grows, from one partition on", prgs=self.prgs)
        if self.sessions < 1 or not 0 <= self.cross_ratio <= 1 or self.nodes < 3:
            raise BadOption("sessions from 1, a ratio from 0 to 1, nodes from 3")
        if self.prgs == 1 and self.cross_ratio > 0:
            raise BadOption("with one partition nothing crosses")


@dataclass(frozen=True, slots=True)
class Simulated:
    """What the fleet would look like."""

    sessions: int
    prgs: int
    sessions_mean: float
    sessions_min: int
    sessions_max: int
    sessions_deviation: float
    """The standard deviation, as a part of the mean."""
    prgs_beyond_variance: int
    """Partitions more than 15 % away from the mean (§14.2)."""
    prgs_over_target: int
    prgs_over_cap: int
    grown_prgs: int
    moved: int
    moved_ratio: float
    moved_ratio_expected: float
    moved_between_old: int
    """Keys that growth moves to a partition that was there before: a consistent ring has none."""
    cross_ratio: float
    commits_per_publish: float
    tps_model: float
    """All partitions' commits over 1 + 2r."""
    tps_even: float
    """The same with the commits that were counted."""
    tps_hottest: float
    """What the fleet can take before its hottest partition has no commits left."""
    node_load_max_ratio: float
    """Sessions led by the busiest node over the mean."""
    loads: tuple[tuple[int, int, int], ...] = field(default=(), repr=False)
    """Of each partition after growth: sessions before, commits of a publish by each session before,
    sessions after. See `loads_of`."""


def jump_many(keys: Hashes, count: int) -> Counts:
    """Place many 64-bit keys among so many, as `quantum.routing.ring.jump` places one."""
    keys = keys.copy()
    place = np.full(len(keys), -1, np.int64)
    following = np.zeros(len(keys), np.int64)
    active = np.arange(len(keys))
    while len(active):
        place[active] = following[active]
        keys[active] = keys[active] * _STEP + np.uint64(1)
        draw = (keys[active] >> np.uint64(33)).astype(np.float64) + 1.0
        following[active] = ((place[active] + 1) * (2147483648.0 / draw)).astype(np.int64)
        active = active[following[active] < count]
    return place


def hash_clients(tenant: str, first: int, last: int, seed: int) -> Hashes:
    """Hash the client ids `c<first>` … `c<last - 1>` as the ring does."""
    name = tenant.encode()
    head = len(name).to_bytes(4, "little") + name
    digest = xxhash.xxh3_64_intdigest

    def hashes() -> Any:
        for number in range(first, last):
            client = b"c%d" % number
            yield digest(head + len(client).to_bytes(4, "little") + client, seed)

    return np.fromiter(hashes(), np.uint64, last - first)


def _scrambled(first: int, last: int, salt: int) -> Hashes:
    """Draw a number for each key that depends on nothing else (SplitMix64)."""
    mixed = np.arange(first, last, dtype=np.uint64) + np.uint64(salt)
    mixed = (mixed + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


@dataclass(frozen=True, slots=True)
class _Part:
    sessions: Counts
    grown: Counts
    commits: Counts
    moved: int
    moved_between_old: int
    crossing: int


def simulate_chunk(fleet: Fleet, span: tuple[int, int]) -> _Part:
    """Place some of the sessions, let each publish once, and count. Runs where Spark says."""
    first, last = span
    hashes = hash_clients(fleet.tenant, first, last, fleet.seed)
    place = jump_many(hashes, fleet.prgs)
    grown = jump_many(hashes, fleet.grown_prgs)
    moved = place != grown
    draw = _scrambled(first, last, 1).astype(np.float64) / 2.0**64
    crosses = draw < fleet.cross_ratio
    topic = place.copy()
    if fleet.prgs > 1:
        away = (_scrambled(first, last, 2) % np.uint64(fleet.prgs - 1)).astype(np.int64)
        others = np.where(away >= place, away + 1, away)
        topic = np.where(crosses, others, place)
    count = fleet.prgs
    commits = np.bincount(topic, minlength=count) + 2 * np.bincount(place[crosses], minlength=count)
    return _Part(
        np.bincount(place, minlength=count),
        np.bincount(grown, minlength=fleet.grown_prgs),
        commits,
        int(moved.sum()),
        int((moved & (grown < fleet.prgs)).sum()),
        int(crosses.sum()),
    )


def simulate(
    fleet: Fleet = Fleet(),  # noqa: B008  # a frozen value
    *,
    spark: SparkSession | Runner | None = None,
    progress: Progress = silence,
    chunk_keys: int = CHUNK_KEYS,
) -> Simulated:
    """Place every session of a fleet and say what comes of it. Raises BadOption."""
    fleet.check()
    runner = runner_of(spark)
    spans = [
        (first, min(first + chunk_keys, fleet.sessions))
        for first in range(0, fleet.sessions, chunk_keys)
    ]
    sessions, commits = np.zeros(fleet.prgs, np.int64), np.zeros(fleet.prgs, np.int64)
    grown = np.zeros(fleet.grown_prgs, np.int64)
    moved = between = crossing = 0
    wave = 16
    for begin in range(0, len(spans), wave):
        for part in runner.run(partial(simulate_chunk, fleet), spans[begin : begin + wave]):
            sessions += part.sessions
            commits += part.commits
            grown += part.grown
            moved, between = moved + part.moved, between + part.moved_between_old
            crossing += part.crossing
        done = spans[min(begin + wave, len(spans)) - 1][1]
        progress(Step(JOB, f"{done:,} of {fleet.sessions:,} sessions placed", done, fleet.sessions))
    found = _summed(fleet, sessions, commits, (moved, between, crossing))
    more = (0, fleet.grown_prgs - fleet.prgs)
    columns = (np.pad(sessions, more), np.pad(commits, more), grown)
    return replace(found, loads=tuple(zip(*(each.tolist() for each in columns), strict=True)))


def loads_of(found: Simulated) -> pa.Table:
    """Return the load of each partition as a table, for Parquet, plots and `report`."""
    names = ("sessions", "commits", "sessions_grown")
    columns = zip(*found.loads, strict=True) if found.loads else ((), (), ())
    arrays = [pa.array(column, pa.int64()) for column in columns]
    return pa.table([pa.array(range(len(found.loads)), pa.int32()), *arrays], ["prg", *names])


def _summed(
    fleet: Fleet, sessions: Counts, commits: Counts, counted: tuple[int, int, int]
) -> Simulated:
    moved, between, crossing = counted
    mean = fleet.sessions / fleet.prgs
    ratio = crossing / fleet.sessions
    capacity = fleet.prgs * fleet.prg_commits_per_second
    per_publish = float(commits.sum()) / fleet.sessions
    hottest = float(commits.max())
    led = np.bincount(np.arange(fleet.prgs) % fleet.nodes, weights=sessions, minlength=fleet.nodes)
    return Simulated(
        sessions=fleet.sessions,
        prgs=fleet.prgs,
        sessions_mean=mean,
        sessions_min=int(sessions.min()),
        sessions_max=int(sessions.max()),
        sessions_deviation=float(sessions.std()) / mean,
        prgs_beyond_variance=int((np.abs(sessions - mean) > VARIANCE_MAX * mean).sum()),
        prgs_over_target=int((sessions > SESSIONS_TARGET).sum()),
        prgs_over_cap=int((sessions > SESSIONS_CAP).sum()),
        grown_prgs=fleet.grown_prgs,
        moved=moved,
        moved_ratio=moved / fleet.sessions,
        moved_ratio_expected=1 - fleet.prgs / fleet.grown_prgs,
        moved_between_old=between,
        cross_ratio=ratio,
        commits_per_publish=per_publish,
        tps_model=capacity / (1 + 2 * fleet.cross_ratio),
        tps_even=capacity / per_publish,
        tps_hottest=fleet.sessions * fleet.prg_commits_per_second / hottest,
        node_load_max_ratio=float(led.max()) * min(fleet.nodes, fleet.prgs) / fleet.sessions,
    )
