"""What a running cluster does without being asked, and what it does not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.interop.cluster_process import ClusterProcess

NODES = (1, 2, 3)
ROUNDS = 2
"""So many times the copies of all nodes are confirmed; each is some seconds after the last."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcess]:
    data = tmp_path_factory.mktemp("duties") / "var"
    with ClusterProcess(data, tenant_prgs=2, patience=4) as running:
        for partition in (1, 2, 3):
            running.wait_for_leader(partition)
        yield running


def statuses(cluster: ClusterProcess) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []

    def answered() -> bool:
        answers = [cluster.status(node) for node in NODES]
        found[:] = [each for each in answers if each is not None]
        return len(found) == len(NODES)

    cluster.until(answered, "all nodes answer")
    return found


def last_indexes(cluster: ClusterProcess) -> list[list[int]]:
    """Return how long the log of every group is, the control plane's too, on every node."""
    return [
        [group["last_index"] for group in (*status["groups"], status["control"]["group"])]
        for status in statuses(cluster)
    ]


def confirmations(cluster: ClusterProcess) -> int:
    return sum(int(status["control"]["confirmations_led"]) for status in statuses(cluster))


def test_a_cluster_at_rest_writes_nothing_and_its_copies_stay_fresh(
    cluster: ClusterProcess,
) -> None:
    """Who leads is confirmed by a quorum's word, liveness by questions: no entry for either."""
    before = last_indexes(cluster)
    for _ in range(8):  # a start has something to record, and so has an election
        before, confirmed = last_indexes(cluster), confirmations(cluster)
        cluster.until(
            lambda at=confirmed: confirmations(cluster) >= at + ROUNDS,  # type: ignore[misc]
            "the copies are confirmed again",
        )
        if last_indexes(cluster) == before:
            break
    else:
        raise AssertionError(f"it never rests: {before}, then {last_indexes(cluster)}")
    assert {each["control"]["cache_state"] for each in statuses(cluster)} == {"Fresh"}
