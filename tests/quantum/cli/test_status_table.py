"""`quantum cluster status` fits 80 columns, whatever the numbers are, and hides nothing."""

from __future__ import annotations

from typing import Any

from quantum.cli.status_table import WIDTH, status_lines

BIG = 12_345_678_901


def replica(role: str, **changes: Any) -> dict[str, Any]:
    """Return a group as a node's status gives it."""
    return {
        "partition_id": 1,
        "role": role,
        "term": 7,
        "leader_id": 1,
        "voters": [1, 2, 3],
        "outgoing": [],
        "learners": [],
        "commit_index": BIG,
        "durable_index": BIG,
        "applied_index": BIG - 5,
        "durability_mode": "STRICT",
        "gate": "Shut",
        "failed_clause": "ControlPlaneCacheNotFresh",
        "members": [],
        "membership_phase": "Idle",
        "flow": None,
        "state": "Running",
        "rejoining": False,
        "problem": None,
        **changes,
    }


def cluster(*groups: dict[str, Any]) -> dict[str, Any]:
    nodes = [{"node_id": at, "groups": [group]} for at, group in enumerate(groups, start=1)]
    silent = {"node_id": 9, "error": "cannot reach 127.0.0.1:7091"}
    return {"cluster_id": "dev", "nodes": [*nodes, silent]}


def test_a_busy_cluster_fits_and_says_everything() -> None:
    flow = {"credit_share": 0.25, "reason": "FollowerLag"}
    leader = replica(
        "Leader",
        outgoing=[1, 2, 3],
        learners=[4],
        membership_phase="Joint",
        flow=flow,
        members=[{"replica_id": 2, "lag_class": "Structural"}],
    )
    lines = list(status_lines(cluster(leader, replica("PreCandidate"), replica("Follower"))))
    text = "\n".join(lines)
    assert max(map(len, lines)) <= WIDTH, text
    for said in (
        *("leader 1", "term 7", "Strict", "voters 1,2,3", "outgoing 1,2,3", "learners 4"),
        *("members: Joint", "gate shut: ControlPlaneCacheNotFresh", "credits 25%"),
        *("slowed: FollowerLag", "Structural lag", "PreCandidate", str(BIG), "node 9 does not"),
    ):
        assert said in text, text


def test_a_replica_says_what_is_wrong_with_it() -> None:
    lines = list(
        status_lines(
            cluster(
                replica("Follower", state="Failed", problem="the disk failed"),
                replica("Follower", rejoining=True),
                replica("Follower", state="Mending"),
            )
        )
    )
    assert "no leader" in lines[2]
    first = next(at for at, line in enumerate(lines) if line.startswith("  node")) + 1
    assert [line.rpartition("  ")[2] for line in lines[first : first + 3]] == [
        "the disk failed",
        "Rejoining",
        "Mending",
    ]


def test_the_control_plane_stands_behind_the_groups_with_the_age_of_each_copy() -> None:
    found = cluster(replica("Leader"), replica("Follower"))
    for at, (state, age_ms) in enumerate((("Fresh", 2_400), ("Expired", None))):
        group = replica("Leader" if at else "Follower", partition_id=10**9)
        found["nodes"][at]["control"] = {
            "group": group,
            "cache_state": state,
            "cache_age_ms": age_ms,
        }
    lines = list(status_lines(found))
    assert max(map(len, lines)) <= WIDTH
    start = next(at for at, line in enumerate(lines) if line.startswith("Control plane"))
    assert lines[start + 1 :].count("  copies  node 1 Fresh, 2 s  node 2 Expired, never heard") == 1


def test_what_nodes_say_of_themselves_is_shown_with_its_age_where_it_counts_no_more() -> None:
    found = cluster(replica("Leader"), replica("Follower"))
    for at, revision in enumerate((4, 5)):
        reports = [
            {"node_id": 1, "age_ms": 900, "stale": False, "utilization": 414_000},
            {"node_id": 2, "age_ms": 45_000, "stale": True, "utilization": 120_000},
        ]
        found["nodes"][at]["control"] = {
            "group": replica("Leader" if at else "Follower", partition_id=10**9),
            "cache_state": "Fresh",
            "cache_age_ms": 1,
            "revision": revision,
            "reports": reports if revision == 5 else [],
        }
    lines = list(status_lines(found))
    assert "  reports  node 1 41% full  node 2 12% full, stale: 45 s" in lines
    assert max(map(len, lines)) <= WIDTH


def test_a_node_that_does_not_answer_has_its_row_in_every_group_of_its() -> None:
    ours = replica("Leader", voters=[1, 2, 9])
    lines = list(status_lines(cluster(ours, replica("Follower"))))
    (row,) = (line for line in lines if line.split()[:1] == ["9"])
    assert row.endswith("does not answer")
    others = list(status_lines(cluster(replica("Leader"), replica("Follower"))))
    assert not [line for line in others if line.split()[:1] == ["9"]]


def test_a_leader_that_has_stopped_leads_nothing() -> None:
    stopped = replica("Leader", state="Failed", problem="the disk failed")
    text = "\n".join(status_lines(cluster(stopped)))
    assert "no leader" in text and "the disk failed" in text
