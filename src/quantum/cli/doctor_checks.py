"""What the facts of nodes mean: findings with a sentence and what to do. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Final

DAY_MS: Final = 86_400_000
CERTIFICATE_WARN_MS: Final = 7 * DAY_MS
CERTIFICATE_ILL_MS: Final = DAY_MS
SKEW_WARN_MS: Final = 500
SKEW_ILL_MS: Final = 5_000
DISK_WARN_SHARE: Final = 0.10
AGE_ROWS_MAX: Final = 20
SNAPSHOT_WARN_ENTRIES: Final = 5_000_000
COPY_AGE_WARN_MS: Final = 60_000
SCRUB_DAYS_MAX: Final = 7.0
"""Within which every byte is read again (clustor §9.4)."""
BACKUP_INTERVALS_MAX: Final = 2
"""So many intervals old the newest verified backup may be: one attempt may fail."""
DRILL_DAYS_MAX: Final = 90
"""Within which a restore is practised."""

_LAGS_MAX: Final = 5
"""So many groups are named that nobody reads for."""


class Severity(StrEnum):
    WARN = "warn"
    ILL = "ill"


@dataclass(frozen=True, slots=True)
class DoctorFinding:
    """Something that is not as it should be. `node` 0: the cluster as a whole."""

    node: int
    check: str
    severity: Severity
    what: str
    todo: str

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class ExaminedNode:
    """One node: its facts, when the question left and the answer came, what else it said."""

    node: int
    facts: dict[str, Any] | None  # None: it did not answer
    asked_ms: int = 0
    answered_ms: int = 0
    ready: dict[str, Any] | None = None
    control: dict[str, Any] | None = None
    incidents: tuple[dict[str, Any], ...] = ()
    unreachable: tuple[str, ...] = ()
    """Listeners that take no connection."""
    lags: tuple[dict[str, Any], ...] = ()
    """How far the consumer groups that it coordinates are behind."""
    backups: dict[str, Any] | None = None
    """How its schedule of backups stands; None: it has none."""


CHECKS: Final = (
    "answers",
    "clocks",
    "disks",
    "certificates",
    "versions",
    "listeners",
    "exposure",
    "groups",
    "snapshots",
    "scrub",
    "copies",
    "readiness",
    "alerts",
    "gates",
    "overrides",
    "lag",
    "backups",
)


def examine(nodes: list[ExaminedNode], now_ms: int) -> list[DoctorFinding]:
    """Judge a cluster by what its nodes say; an empty list: nothing is wrong."""
    found: list[DoctorFinding] = []
    for each in nodes:
        found += _of_node(each, now_ms)
    found += _of_cluster([each for each in nodes if each.facts is not None])
    found += _backups([each.backups for each in nodes if each.backups is not None], now_ms)
    return found


def _of_node(each: ExaminedNode, now_ms: int) -> Iterator[DoctorFinding]:
    node, facts = each.node, each.facts
    if facts is None:
        todo = "start it, or look at its journal; with a quorum of others nothing is lost meanwhile"
        yield DoctorFinding(node, "answers", Severity.ILL, "it does not answer", todo)
        return
    yield from _clock(each, facts)
    yield from _disk(node, facts["disk"])
    yield from _certificates(node, facts["certificates"], now_ms)
    yield from _listeners(node, facts["listeners"], each.unreachable)
    yield from _groups(node, facts["groups"])
    yield from _copy(node, each.control)
    yield from _ready(node, each.ready)
    for incident in each.incidents:
        # What was may be over: what still is wrong shows in the other checks.
        kind = "safety-critical: " if incident.get("safety_critical") else ""
        what = f"{kind}{incident['class']} of groups {incident['partitions']}"
        yield DoctorFinding(node, "alerts", Severity.WARN, what, "ask `quantum why GROUP`")
    yield from _lags(node, each.lags)


def _lags(node: int, rows: tuple[dict[str, Any], ...]) -> Iterator[DoctorFinding]:
    """Tell of consumer groups that are behind while nobody reads for them."""
    behind: dict[tuple[str, str], int] = {}
    for row in rows:
        if row["lag"] and not row["members"]:
            key = (row["tenant"], row["group"])
            behind[key] = behind.get(key, 0) + row["lag"]
    worst = sorted(behind.items(), key=lambda each: -each[1])
    for (tenant, group), lag in worst[:_LAGS_MAX]:
        what = f"group {group} of tenant {tenant} has no consumer and is {lag} records behind"
        todo = "start its consumers, or end it: `quantum kafka groups --delete`"
        yield DoctorFinding(node, "lag", Severity.WARN, what, todo)
    if len(worst) > _LAGS_MAX:
        what = f"{len(worst) - _LAGS_MAX} more groups are behind and have no consumer"
        yield DoctorFinding(node, "lag", Severity.WARN, what, "ask `quantum kafka lag`")


def _clock(each: ExaminedNode, facts: dict[str, Any]) -> Iterator[DoctorFinding]:
    todo = "see to the time service of this machine (chrony, PTP)"
    if facts["clock_alarm"]:
        what = f"{facts['clock_alarm']}: it leads nothing"
        yield DoctorFinding(each.node, "clocks", Severity.ILL, what, todo)
    off_ms = _off_ms(each, facts)
    if off_ms > SKEW_WARN_MS:
        severity = Severity.ILL if off_ms > SKEW_ILL_MS else Severity.WARN
        what = f"its clock is at least {off_ms} ms off this machine's"
        yield DoctorFinding(each.node, "clocks", severity, what, todo)


def _off_ms(each: ExaminedNode, facts: dict[str, Any]) -> int:
    """Return by how much its clock must be wrong, whatever the way took."""
    said_ms = int(facts["wall_ms"])
    return max(each.asked_ms - said_ms, said_ms - each.answered_ms, 0)


def _disk(node: int, disk: dict[str, Any]) -> Iterator[DoctorFinding]:
    todo = "make room, move partitions away, or lower what is kept"
    free, size = disk["free_bytes"], disk["bytes"]
    if disk["level"] != "None":
        yield DoctorFinding(node, "disks", Severity.ILL, f"the disk is {disk['level']}", todo)
    elif size and free / size < DISK_WARN_SHARE:
        what = f"{100 * free // size} % of the disk is free"
        yield DoctorFinding(node, "disks", Severity.WARN, what, todo)
    elif free is None:
        what = "the disk does not say how full it is"
        yield DoctorFinding(node, "disks", Severity.WARN, what, "look at the mount of its data")


def _certificates(
    node: int, certificates: list[dict[str, Any]], now_ms: int
) -> Iterator[DoctorFinding]:
    for each in certificates:
        left_ms = each["ends_ms"] - now_ms
        if left_ms > CERTIFICATE_WARN_MS:
            continue
        severity = Severity.ILL if left_ms <= CERTIFICATE_ILL_MS else Severity.WARN
        ends = "has ended" if left_ms <= 0 else f"ends in {left_ms // 3_600_000} h"
        todo = "renew it: `quantum cert`, or `quantum keys tend` for an authority"
        yield DoctorFinding(node, "certificates", severity, f"{each['file']} {ends}", todo)


def _listeners(
    node: int, listeners: list[dict[str, Any]], unreachable: tuple[str, ...]
) -> Iterator[DoctorFinding]:
    for each in listeners:
        name = f"{each['kind']} on {each['address']}"
        if not each["tls"] and not each["loopback"]:
            todo = "bind it to loopback, or turn TLS on"
            yield DoctorFinding(node, "exposure", Severity.ILL, f"{name} is plaintext", todo)
        if each["address"] in unreachable:
            todo = "look at firewalls, and at its journal"
            yield DoctorFinding(
                node, "listeners", Severity.ILL, f"{name} takes no connection", todo
            )


def _groups(node: int, groups: list[dict[str, Any]]) -> Iterator[DoctorFinding]:
    for each in groups:
        name = f"group {each['partition_id']}"
        why = f"ask `quantum why {each['partition_id']}`"
        if each["failed"]:
            yield DoctorFinding(
                node, "groups", Severity.ILL, f"{name} stopped: {each['failed']}", why
            )
        elif not each["has_leader"]:
            yield DoctorFinding(
                node, "groups", Severity.ILL, f"{name} has no leader it knows of", why
            )
        if each["fence"]:
            todo = "promote the standby, or lift the fence: `quantum admin fences lift`"
            what = f"{name} is fenced by {each['fence']}"
            yield DoctorFinding(node, "groups", Severity.WARN, what, todo)
        if each["lag_class"] == "Structural":
            what = f"{name}: a follower is {each['lag_bytes_max']} bytes behind"
            yield DoctorFinding(node, "groups", Severity.ILL, what, why)
        if each["entries_since_snapshot"] > SNAPSHOT_WARN_ENTRIES:
            what = f"{name}: {each['entries_since_snapshot']} entries since its snapshot"
            yield DoctorFinding(node, "snapshots", Severity.WARN, what, why)
        yield from _ages(node, each)


def _ages(node: int, group: dict[str, Any]) -> Iterator[DoctorFinding]:
    number, age_ms = group["partition_id"], group.get("snapshot_age_ms") or 0
    bound_ms, days = group.get("snapshot_bound_ms"), group.get("scrub_age_days")
    if bound_ms is not None and age_ms > bound_ms:
        what = f"group {number}: its snapshot is {age_ms // 1000} s old, {bound_ms // 1000} may be"
        todo = f"ask `quantum why {number}` what keeps it from being emitted; see its disk and load"
        yield DoctorFinding(node, "snapshots", Severity.ILL, what, todo)
    if days is not None and days > SCRUB_DAYS_MAX:
        what = f"group {number}: bytes were not read again for {days:.1f} days, 7 may pass"
        todo = f"read them now: `quantum scrub --group {number} --node {node}`; see its disk's load"
        yield DoctorFinding(node, "scrub", Severity.ILL, what, todo)


def age_rows(node: int, facts: dict[str, Any]) -> Iterator[str]:
    """Say how old each group's snapshot and scrub are, the oldest first, as many as can be read."""
    groups = sorted(facts["groups"], key=lambda each: -(each.get("snapshot_age_ms") or 0))
    for each in groups[:AGE_ROWS_MAX]:
        age_ms, days = each.get("snapshot_age_ms") or 0, each.get("scrub_age_days")
        snapshot = f"snapshot {age_ms // 1000} s old" if age_ms else "snapshot misses nothing"
        scrub = "not scrubbed now" if days is None else f"scrubbed within {days:.1f} days"
        yield f"node {node} group {each['partition_id']}: {snapshot}, {scrub}"
    if len(groups) > AGE_ROWS_MAX:
        yield f"node {node}: {len(groups) - AGE_ROWS_MAX} more groups; --json has them all"


def _copy(node: int, control: dict[str, Any] | None) -> Iterator[DoctorFinding]:
    if control is None:
        return
    state, age_ms = control["cache_state"], control["cache_age_ms"]
    if state in ("Stale", "Expired"):
        what, todo = f"its copy of the control plane is {state}", "see that a quorum of it runs"
        yield DoctorFinding(node, "copies", Severity.ILL, what, todo)
    elif age_ms is not None and age_ms > COPY_AGE_WARN_MS:
        what = f"its copy of the control plane is {age_ms} ms old"
        yield DoctorFinding(node, "copies", Severity.WARN, what, "see that a quorum of it runs")


def _ready(node: int, ready: dict[str, Any] | None) -> Iterator[DoctorFinding]:
    if ready is None or ready.get("ready"):
        return
    reasons = ", ".join(f"{count} x {why}" for why, count in ready.get("reasons", {}).items())
    what = f"it is not ready: {reasons or ready.get('mode', 'unknown')}"
    todo = "a drained or starting node is no case; else ask `quantum why GROUP`"
    severity = Severity.WARN if ready.get("mode") != "Serving" else Severity.ILL
    yield DoctorFinding(node, "readiness", severity, what, todo)


def _backups(rows: list[dict[str, Any]], now_ms: int) -> Iterator[DoctorFinding]:
    """Judge the cluster's backups once, by the node that knows best how old the newest is."""
    if not rows:
        return
    best = min(rows, key=lambda row: int(row["age_seconds"]))
    age, interval = int(best["age_seconds"]), int(best["interval_seconds"])
    if age > BACKUP_INTERVALS_MAX * interval:
        none = f"there is no verified backup after {age} s"
        late = f"the newest verified backup began {age} s ago"
        said = none if best["verified_ms"] is None else late
        cause, todo = _why_late(rows)
        what = f"{said}, and {interval} s is the interval: {cause}"
        yield DoctorFinding(0, "backups", Severity.ILL, what, todo)
    for name in sorted({each for row in rows for each in row["without_streams"]}):
        what = f"{name} holds streams, which backups have no copy of: a restore refuses it"
        todo = "copy its streams elsewhere, too: `quantum streams read`, or Spark"
        yield DoctorFinding(0, "backups", Severity.WARN, what, todo)
    if best["verified_ms"] is not None:
        yield from _drill([int(row["drilled_ms"] or 0) for row in rows], now_ms)


def _why_late(rows: list[dict[str, Any]]) -> tuple[str, str]:
    """Return one cause and one next step."""
    carriers = [row for row in rows if row["carries_out"]]
    if not carriers:
        cause = "no node that was asked leads the control plane, which makes them"
        return cause, "examine all of them: `quantum doctor --cluster HOST:PORT`"
    state, reason = carriers[0]["state"], carriers[0]["reason"]
    if state == "stopped":
        return reason, "restart the node that leads the control plane"
    if state == "retrying":
        return reason, "mend that; it is tried again by itself: `quantum admin backups show`"
    return reason or f"it is {state}", "see what the archive waits for: `quantum archive status`"


def _drill(drilled_ms: list[int], now_ms: int) -> Iterator[DoctorFinding]:
    last_ms = max(drilled_ms)
    days = (now_ms - last_ms) // DAY_MS
    if days <= DRILL_DAYS_MAX:
        return
    ago = f"was practised {days} days ago, {DRILL_DAYS_MAX} may pass"
    what = f"a restore {ago if last_ms else 'was never practised'}"
    todo = "practise it: `quantum drill restore --from URL --keys DIR`"
    yield DoctorFinding(0, "backups", Severity.WARN, what, todo)


def _of_cluster(nodes: list[ExaminedNode]) -> Iterator[DoctorFinding]:
    facts = [each.facts for each in nodes if each.facts is not None]
    versions = sorted({each["version"] for each in facts})
    if len(versions) > 1:
        what = f"nodes run different versions: {', '.join(versions)}"
        yield DoctorFinding(0, "versions", Severity.WARN, what, "finish the upgrade")
    if len({str(sorted(each["gates"].items())) for each in facts}) > 1:
        what = "nodes see different feature gates"
        yield DoctorFinding(
            0, "gates", Severity.WARN, what, "wait a moment; else look at their copies"
        )
    yield from _said(facts)
    led: dict[int, int] = {}
    for each in facts:
        for group in each["groups"]:
            led[group["partition_id"]] = led.get(group["partition_id"], 0) + group["leads"]
    for partition in sorted(number for number, leaders in led.items() if not leaders):
        what = f"nobody leads group {partition}"
        yield DoctorFinding(0, "groups", Severity.ILL, what, f"ask `quantum why {partition}`")


def _said(facts: list[dict[str, Any]]) -> Iterator[DoctorFinding]:
    """Tell of what the control plane has on record, once for all nodes that say so."""
    overrides = {
        (row["override_id"], row["scope"], row["ends_ms"], each["wall_ms"])
        for each in facts[:1]
        for row in each.get("overrides", ())
    }
    for name, scope, ends_ms, now_ms in sorted(overrides):
        left_s = max(0, ends_ms - now_ms) // 1_000
        what = f"override {name} ({scope}) is obeyed for {left_s} s more"
        todo = "it ends by itself; `quantum admin overrides revoke` ends it now"
        yield DoctorFinding(0, "overrides", Severity.WARN, what, todo)
    lags = {
        (row["partition_id"], tuple(row["followers"]))
        for each in facts
        for row in each.get("lag_alerts", ())
    }
    for partition, followers in sorted(lags):
        what = f"group {partition}: replicas {list(followers)} are structurally behind"
        todo = "see to their disks and networks; `quantum why GROUP` tells what is held back"
        yield DoctorFinding(0, "alerts", Severity.WARN, what, todo)
