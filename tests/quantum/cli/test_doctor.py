"""What the doctor says of facts: each thing that may be wrong, and nothing of a healthy cluster."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest

from quantum.cli.doctor_checks import CHECKS, DAY_MS, ExaminedNode, Severity, age_rows, examine

NOW_MS = 1_700_000_000_000
GROUP: dict[str, Any] = {
    "partition_id": 1,
    "leads": True,
    "has_leader": True,
    "failed": "",
    "fence": "",
    "lag_bytes_max": 0,
    "lag_class": "None",
    "entries_since_snapshot": 10,
    "snapshot_age_ms": 30_000,
    "snapshot_bound_ms": 600_000,
    "scrub_age_days": 6.9,
    "strict_fallback": "Healthy",
}
FACTS: dict[str, Any] = {
    "node_id": 1,
    "version": "1.0",
    "mode": "Serving",
    "wall_ms": NOW_MS,
    "clock_alarm": "",
    "disk": {"level": "None", "bytes": 1_000, "free_bytes": 500, "writer": "FIXED_URING"},
    "certificates": [{"file": "node.pem", "ends_ms": NOW_MS + 30 * DAY_MS}],
    "listeners": [{"kind": "mqtt", "address": "127.0.0.1:1", "tls": False, "loopback": True}],
    "groups": [GROUP],
    "gates": {},
    "overrides": [],
    "lag_alerts": [],
}
READY = {"ready": True, "mode": "Serving", "reasons": {}}
CONTROL = {"cache_state": "Fresh", "cache_age_ms": 1_000}


def node(number: int = 1, **changes: Any) -> ExaminedNode:
    facts = copy.deepcopy(FACTS) | {"node_id": number} | changes
    return ExaminedNode(number, facts, NOW_MS - 5, NOW_MS + 5, READY, CONTROL)


def group(**changes: Any) -> list[dict[str, Any]]:
    return [GROUP | changes]


def disk(**changes: Any) -> dict[str, Any]:
    return {**FACTS["disk"], **changes}


def listener(**changes: Any) -> list[dict[str, Any]]:
    return [FACTS["listeners"][0] | changes]


def certificate(left_ms: int) -> list[dict[str, Any]]:
    return [{"file": "node.pem", "ends_ms": NOW_MS + left_ms}]


def test_of_a_healthy_cluster_nothing_is_said() -> None:
    follower = group(leads=False)
    assert examine([node(1), node(2, groups=follower), node(3, groups=follower)], NOW_MS) == []


ILL, WARN = Severity.ILL, Severity.WARN
OVERRIDE = {"override_id": "o1", "scope": "Credit", "ends_ms": NOW_MS + 5_000}
WRONG = {
    "an override": (node(overrides=[OVERRIDE]), "overrides", WARN),
    "a structural lag": (node(lag_alerts=[{"partition_id": 1, "followers": [2]}]), "alerts", WARN),
    "no answer": (ExaminedNode(1, None), "answers", ILL),
    "an alarm of its clock": (node(clock_alarm="the time of day jumped"), "clocks", ILL),
    "a clock that is off": (node(wall_ms=NOW_MS + 1_000), "clocks", WARN),
    "a clock that is far behind": (node(wall_ms=NOW_MS - 10_000), "clocks", ILL),
    "a disk that is full": (node(disk=disk(level="DiskHard")), "disks", ILL),
    "a disk that is nearly full": (node(disk=disk(free_bytes=50)), "disks", WARN),
    "a certificate that ends": (node(certificates=certificate(3 * DAY_MS)), "certificates", WARN),
    "a certificate that ended": (node(certificates=certificate(-1)), "certificates", ILL),
    "plaintext for everybody": (node(listeners=listener(loopback=False)), "exposure", ILL),
    "a group that stopped": (node(groups=group(failed="the disk failed")), "groups", ILL),
    "a fence": (node(groups=group(fence="f1")), "groups", WARN),
    "a lag": (node(groups=group(lag_class="Structural")), "groups", ILL),
    "many entries since": (node(groups=group(entries_since_snapshot=10**7)), "snapshots", WARN),
    "an old snapshot": (node(groups=group(snapshot_age_ms=600_001)), "snapshots", ILL),
    "an old scrub": (node(groups=group(scrub_age_days=7.1)), "scrub", ILL),
}


@pytest.mark.parametrize(("examined", "check", "severity"), WRONG.values(), ids=WRONG.keys())
def test_what_is_wrong_is_said_with_what_to_do(
    examined: ExaminedNode, check: str, severity: Severity
) -> None:
    found = examine([examined], NOW_MS)
    assert [(each.check, each.severity) for each in found] == [(check, severity)]
    assert all(each.what and each.todo and each.check in CHECKS for each in found)


HOUR_S = 3_600
BACKUPS: dict[str, Any] = {
    "interval_seconds": HOUR_S,
    "carries_out": True,
    "state": "waiting",
    "reason": "",
    "verified_ms": str(NOW_MS - 2 * HOUR_S * 1_000),
    "age_seconds": str(2 * HOUR_S),
    "without_streams": [],
    "drilled_ms": str(NOW_MS - 90 * DAY_MS),
}
LATE = {"age_seconds": str(2 * HOUR_S + 1)}
RETRYING = LATE | {"state": "retrying", "reason": "the store is away"}


def backing_up(*changes: dict[str, Any]) -> list[ExaminedNode]:
    """A cluster whose first node makes the backups."""
    first = group(leads=True), group(leads=False), group(leads=False)
    rows = [BACKUPS | {"carries_out": not nth} | each for nth, each in enumerate(changes)]
    return [replace(node(nth + 1, groups=first[nth]), backups=row) for nth, row in enumerate(rows)]


def test_of_backups_in_time_nothing_is_said() -> None:
    assert examine(backing_up({}, {}, {}), NOW_MS) == []
    none_yet = {"verified_ms": None, "age_seconds": "60", "drilled_ms": None}
    assert examine(backing_up(none_yet), NOW_MS) == [], "there is nothing to practise with yet"


BACKUPS_WRONG = {
    "late": (backing_up(RETRYING, LATE), ILL, "3600 s is the interval: the store is away", "mend"),
    "stopped": (backing_up(LATE | {"state": "stopped", "reason": "bug"}), ILL, "bug", "restart"),
    "never": (backing_up(RETRYING | {"verified_ms": None}), ILL, "no verified backup", "mend"),
    "behind its archive": (
        backing_up(LATE | {"state": "backing up", "reason": "waits for dev/0"}),
        ILL,
        "waits for dev/0",
        "quantum archive status",
    ),
    "elsewhere": (backing_up(LATE | {"carries_out": False}), ILL, "no node that was asked", "all"),
    "streams": (backing_up({"without_streams": ["dev/0"]}, {}), WARN, "dev/0 holds", "Spark"),
    "not practised": (
        backing_up({"drilled_ms": str(NOW_MS - 91 * DAY_MS)}, {"drilled_ms": None}),
        WARN,
        "practised 91 days ago",
        "quantum drill restore",
    ),
    "never practised": (backing_up({"drilled_ms": None}), WARN, "never practised", "drill"),
}


@pytest.mark.parametrize(
    ("nodes", "severity", "what", "todo"), BACKUPS_WRONG.values(), ids=BACKUPS_WRONG.keys()
)
def test_of_backups_one_cause_and_one_next_step_is_said(
    nodes: list[ExaminedNode], severity: Severity, what: str, todo: str
) -> None:
    (found,) = examine(nodes, NOW_MS)
    assert (found.node, found.check, found.severity) == (0, "backups", severity)
    assert what in found.what and todo in found.todo


def test_a_node_that_cannot_see_the_store_does_not_make_the_others_backups_late() -> None:
    assert examine(backing_up({}, LATE), NOW_MS) == []


def test_what_has_no_bound_or_is_not_watched_is_not_late() -> None:
    quiet = group(snapshot_bound_ms=None, snapshot_age_ms=10**9, scrub_age_days=None)
    assert examine([node(groups=quiet)], NOW_MS) == []


def test_ages_are_shown_for_each_group_and_what_to_do_names_it() -> None:
    (late,) = examine([node(groups=group(scrub_age_days=9.0))], NOW_MS)
    assert "quantum scrub --group 1 --node 1" in late.todo
    rows = list(age_rows(1, FACTS | {"groups": group() + group(partition_id=2, snapshot_age_ms=0)}))
    assert rows == [
        "node 1 group 1: snapshot 30 s old, scrubbed within 6.9 days",
        "node 1 group 2: snapshot misses nothing, scrubbed within 6.9 days",
    ]
    many = FACTS | {"groups": [GROUP | {"partition_id": number} for number in range(30)]}
    assert list(age_rows(1, many))[-1] == "node 1: 10 more groups; --json has them all"


def test_nodes_are_compared_with_each_other() -> None:
    two = [node(1), node(2, version="1.1", gates={"GroupFsync": "Enabled"}, groups=[])]
    assert {each.check for each in examine(two, NOW_MS)} == {"versions", "gates"}


def test_a_group_that_nobody_leads_is_the_clusters_illness() -> None:
    found = examine([node(1, groups=group(leads=False))], NOW_MS)
    assert [(each.node, each.what) for each in found] == [(0, "nobody leads group 1")]


def test_pages_beside_the_facts_are_judged_too() -> None:
    sick = ExaminedNode(
        1,
        FACTS,
        NOW_MS,
        NOW_MS,
        {"ready": False, "mode": "Serving", "reasons": {"NoLeader": 2}},
        {"cache_state": "Expired", "cache_age_ms": None},
        ({"class": "LogDamaged", "partitions": [4], "safety_critical": True},),
        ("127.0.0.1:1",),
    )
    found = {each.check: each.severity for each in examine([sick], NOW_MS)}
    assert found == dict.fromkeys(("listeners", "copies", "readiness"), ILL) | {"alerts": WARN}


def test_groups_that_are_behind_while_nobody_reads_are_named_the_worst_first() -> None:
    def lag(group: str, records: int, members: int = 0) -> dict[str, Any]:
        return {"tenant": "dev", "group": group, "lag": records, "members": members}

    lags = (lag("a", 5), lag("a", 7), lag("read", 99, members=1), lag("even", 0), lag("b", 40))
    found = examine([replace(node(), lags=lags)], NOW_MS)
    assert [(each.check, each.severity) for each in found] == [("lag", Severity.WARN)] * 2
    assert "group b of tenant dev has no consumer and is 40 records behind" in found[0].what
    assert "12 records" in found[1].what
    many = tuple(lag(f"g{number}", number + 1) for number in range(9))
    said = examine([replace(node(), lags=many)], NOW_MS)
    assert len(said) == 6 and said[-1].what.startswith("4 more groups")
