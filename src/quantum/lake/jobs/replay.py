"""`replay`: every partition's log applied again, in parallel, by the broker's own machine.

Equal logs give equal states (quantumqtt §21.1). So the digest of a replay must be that of the
live cluster at the same index, and that of any other copy of the log. Where two copies disagree,
the first index at which they do is looked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from blake3 import blake3

from quantum.archive.types import IndexRange, PrgId
from quantum.broker import Delivery, Message
from quantum.broker.session import Session
from quantum.lake.archive import KeyProvider, LogSource
from quantum.lake.errors import BadAddress, LogGone, while_reading
from quantum.lake.jobs.errors import StateUnknown
from quantum.lake.jobs.log_reading import apply_through, machine_at
from quantum.lake.jobs.progress import Progress, Step, silence
from quantum.lake.jobs.runner import Runner, runner_of
from quantum.lake.jobs.sources import open_logs
from quantum.lake.judging import ReplayJudge
from quantum.lake.reader import offer_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JOB: Final = "replay"


@dataclass(frozen=True, slots=True)
class ReplayLimit:
    """Up to where a log is applied: an index, a time, both or neither (then all of it)."""

    index: int | None = None
    until_ms: int | None = None


@dataclass(frozen=True, slots=True)
class ReplayedPartition:
    """What a partition's log makes of it."""

    prg: str
    snapshot_index: int
    index: int
    digest: str
    sessions: int
    retained: int
    queued: int


@dataclass(frozen=True, slots=True)
class Divergence:
    """Two copies of a log, or a log and a cluster, that do not agree."""

    prg: str
    first_index: int
    """The first index after which they differ, where both could be asked; else the one known."""
    ours: str
    theirs: str
    is_first: bool


def replay(
    where: str | LogSource,
    *,
    spark: SparkSession | Runner | None = None,
    keys: str | KeyProvider = "directory",
    broker: str | None = None,
    at: ReplayLimit = ReplayLimit(),  # noqa: B008  # a frozen value
    indexes: Mapping[str, int] | None = None,
    progress: Progress = silence,
) -> list[ReplayedPartition]:
    """Apply every log again; `indexes` gives some partitions an index of their own.

    Raises LakeError where something cannot be read or believed.
    """
    source = open_logs(where, keys, broker)
    prgs = source.prgs()
    for prg in prgs:
        with while_reading(prg, 1):
            source.bounds(prg)  # so that what it learns travels with it
    wanted = indexes or {}
    moments = [(prg, ReplayLimit(wanted.get(str(prg), at.index), at.until_ms)) for prg in prgs]
    runner = runner_of(spark)
    found: list[ReplayedPartition] = []
    wave = 64
    for begin in range(0, len(moments), wave):
        found += runner.run(partial(replay_partition, source), moments[begin : begin + wave])
        sentence = f"{len(found)} of {len(prgs)} partitions replayed"
        progress(Step(JOB, sentence, len(found), len(prgs)))
    return found


def replay_partition(source: LogSource, wanted: tuple[PrgId, ReplayLimit]) -> ReplayedPartition:
    """Replay one partition. Runs where Spark says."""
    prg, at = wanted
    machine, snapshot_index, index = machine_of(source, prg, at)
    state = machine.state
    return ReplayedPartition(
        str(prg),
        snapshot_index,
        index,
        machine.digest().hex(),
        len(state.sessions),
        len(state.retained),
        sum(len(session.outbound) for session in state.sessions.values()),
    )


def machine_of(source: LogSource, prg: PrgId, at: ReplayLimit) -> tuple[ReplayJudge, int, int]:
    """Return the broker at a moment, the snapshot it began with, and the last index applied."""
    offer = offer_of(source, prg)
    last = offer.bounds.last if at.index is None else at.index
    if last > offer.bounds.last:
        raise LogGone("the log does not go so far", prg=prg, first=offer.bounds.last + 1, last=last)
    for anchor in reversed([each for each in offer.anchors if each <= last]):
        machine = machine_at(source, prg, anchor)
        if at.until_ms is not None and machine.state.now_ms > at.until_ms:
            continue  # the snapshot is of a later time
        reached = anchor
        if anchor < last:
            entries = source.entries(IndexRange(prg, anchor + 1, last))
            reached = apply_through(machine, entries, at.until_ms) or anchor
        return machine, anchor, reached
    raise StateUnknown(
        "no snapshot is old enough, and the log's beginning is gone", prg=prg, index=last
    )


# Disagreement.


def compare_digests(
    ours: list[ReplayedPartition], theirs: Mapping[str, tuple[int, str]]
) -> list[Divergence]:
    """Name the partitions whose digest at the same index is another one elsewhere."""
    found: list[Divergence] = []
    for each in ours:
        there = theirs.get(each.prg)
        if there is not None and there[0] == each.index and there[1] != each.digest:
            found.append(Divergence(each.prg, each.index, each.digest, there[1], is_first=False))
    return found


def uncompared(ours: list[ReplayedPartition], theirs: Mapping[str, tuple[int, str]]) -> list[str]:
    """Name the partitions that are there, and not here at the same index: nothing is known."""
    here = {(each.prg, each.index) for each in ours}
    return sorted(prg for prg, (index, _) in theirs.items() if (prg, index) not in here)


def find_divergences(
    where: str | LogSource,
    other: str | LogSource,
    *,
    spark: SparkSession | Runner | None = None,
    keys: str | KeyProvider = "directory",
    broker: str | None = None,
    other_keys: str | KeyProvider | None = None,
) -> list[Divergence]:
    """Compare two copies of the logs; of each partition name the first index that differs.

    Without `other_keys` the same provider has the keys of both; `directory` is beside each copy.
    """
    other_keys = keys if other_keys is None else other_keys
    source, second = open_logs(where, keys, broker), open_logs(other, other_keys, broker)
    shared = sorted({*source.prgs()} & {*second.prgs()})
    if not shared:
        raise BadAddress("the two copies have no partition in common: nothing can be compared")
    for prg in shared:
        source.bounds(prg), second.bounds(prg)
    found = runner_of(spark).run(partial(diverge, source, second), shared)
    return [each for each in found if each is not None]


def diverge(source: LogSource, second: LogSource, prg: PrgId) -> Divergence | None:
    """Find the first index after which two copies of a log differ, by halving."""
    ours, theirs = offer_of(source, prg), offer_of(second, prg)
    last = min(ours.bounds.last, theirs.bounds.last)
    first = max(ours.bounds.first, theirs.bounds.first)
    if last < first:
        return None
    start = _shared_start(ours.anchors, theirs.anchors, first - 1)

    def names(index: int) -> tuple[str, str]:
        return (fingerprint(source, prg, start, index), fingerprint(second, prg, start, index))

    ours_last, theirs_last = names(last)
    if ours_last == theirs_last:
        return None
    index = first_difference(lambda at: len(set(names(at))) > 1, start, last)
    mine, other = names(index)
    return Divergence(str(prg), index, mine, other, is_first=True)


def _shared_start(ours: tuple[int, ...], theirs: tuple[int, ...], at_least: int) -> int:
    """Return where both can begin; each from its own snapshot where they share none."""
    shared = [each for each in set(ours) & set(theirs) if each >= at_least]
    return min(shared, default=at_least)


def first_difference(differs: Callable[[int], bool], low: int, high: int) -> int:
    """Return the smallest index above `low` at which `differs`, knowing that `high` does."""
    while high - low > 1:
        middle = (low + high) // 2
        if differs(middle):
            high = middle
        else:
            low = middle
    return high


def fingerprint(source: LogSource, prg: PrgId, start: int, index: int) -> str:
    """Name a log and its state at an index.

    The chain of entries is in it, because a state can become equal again (a retained message that
    is overwritten), and a chain cannot.
    """
    machine, _, _ = machine_of(source, prg, ReplayLimit(index=index))
    chain = blake3(machine.digest())
    if start < index:
        for entry in source.entries(IndexRange(prg, start + 1, index)):
            head = f"{entry.index}/{int(entry.kind)}/{len(entry.payload)}/".encode()
            chain.update(head + entry.payload)
    return chain.hexdigest()


# The state as tables.


def state_rows(
    source: LogSource, at: ReplayLimit, prg: PrgId
) -> tuple[int, dict[str, list[dict[str, Any]]]]:
    """Return the sessions, subscriptions, retained messages and queues of a partition, and when."""
    machine, _, index = machine_of(source, prg, at)
    place = {"tenant": prg.tenant, "prg": prg.number, "raft_index": index}
    tables: dict[str, list[dict[str, Any]]] = {name: [] for name in STATE_TABLES}
    for client_id, session in sorted(machine.state.sessions.items()):
        client = {**place, "client_id": client_id.decode("utf-8", "replace")}
        tables["sessions"].append(
            {
                **client,
                "session_epoch": session.epoch,
                "connected": session.connected,
                "expiry_seconds": session.expiry_seconds,
                "unreleased": len(session.received),
                "queued": len(session.outbound),
                "queued_bytes": session.outbound.weight,
            }
        )
        tables["subscriptions"] += [
            {**client, "filter": key.decode("utf-8", "replace"), "qos": spec.qos}
            for key, spec in sorted(session.subscriptions.items())
        ]
        tables["queues"] += [
            {**client, "place": nth, "in_flight": in_flight, **_message(delivery.message)}
            for nth, (in_flight, delivery) in enumerate(_deliveries(session))
        ]
    for _, message in machine.state.retained.match(b"#"):
        tables["retained"].append({**place, **_message(message)})
    return index, tables


def _deliveries(session: Session) -> Iterator[tuple[bool, Delivery]]:
    for delivery in session.outbound.in_flight.values():
        yield True, delivery
    for delivery in session.outbound.queue:
        yield False, delivery


def _message(message: Message) -> dict[str, Any]:
    return {
        "topic": message.topic.decode("utf-8", "replace"),
        "payload": message.payload,
        "qos": message.qos,
        "publisher": message.client_id.decode("utf-8", "replace"),
    }


STATE_TABLES: Final[dict[str, str]] = {
    "sessions": "tenant STRING, prg INT, raft_index BIGINT, client_id STRING, "
    "session_epoch BIGINT, connected BOOLEAN, expiry_seconds BIGINT, unreleased BIGINT, "
    "queued BIGINT, queued_bytes BIGINT",
    "subscriptions": "tenant STRING, prg INT, raft_index BIGINT, client_id STRING, "
    "filter STRING, qos INT",
    "retained": "tenant STRING, prg INT, raft_index BIGINT, topic STRING, payload BINARY, "
    "qos INT, publisher STRING",
    "queues": "tenant STRING, prg INT, raft_index BIGINT, client_id STRING, place BIGINT, "
    "in_flight BOOLEAN, topic STRING, payload BINARY, qos INT, publisher STRING",
}


def state_at(
    where: str | LogSource,
    *,
    spark: SparkSession | Runner | None = None,
    keys: str | KeyProvider = "directory",
    broker: str | None = None,
    at: ReplayLimit = ReplayLimit(),  # noqa: B008  # a frozen value
) -> dict[str, list[dict[str, Any]]]:
    """Return the state of all partitions at a moment, as rows of `STATE_TABLES`."""
    source = open_logs(where, keys, broker)
    tables: dict[str, list[dict[str, Any]]] = {name: [] for name in STATE_TABLES}
    for _, found in runner_of(spark).run(partial(state_rows, source, at), source.prgs()):
        for name, rows in found.items():
            tables[name] += rows
    return tables
