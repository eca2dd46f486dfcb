"""Issue 20: SUBSCRIBE on three nodes, counted by the entries that the partitions' logs took.

Which of them SUBACK waits for, `tests/quantum/serving/test_subscribe_rounds.py` says.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from quantum.cli.admin_client import AdminUnreachable, fetch
from tests.interop import luck
from tests.interop.cluster_process import PATIENT, ClusterProcess
from tests.interop.mqtt_places import all_served
from tests.interop.test_half_open import Port
from tests.quantum.serving.client import V5, connect

TRIES = 5
CLIENT = "counted"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcess]:
    data = tmp_path_factory.mktemp("rounds")
    with ClusterProcess(data, tenant_prgs=3, patience=PATIENT) as made:
        made.until(lambda: all_served(made), "every partition is served")
        yield made


def indexes(cluster: ClusterProcess) -> dict[int, int]:
    """How far each partition's newest replica is."""
    found: dict[int, int] = {}
    for node in range(1, cluster.nodes + 1):
        try:
            code, page = fetch(cluster.admin(node), "/v1/broker/status")
        except AdminUnreachable:
            continue
        for row in page["partitions"] if code == 200 else ():
            number = row["partition"]
            found[number] = max(found.get(number, 0), int(row["applied_index"]))
    return found


def at_rest(cluster: ClusterProcess) -> dict[int, int]:
    """Wait until no log has grown between two looks."""
    looks = [indexes(cluster)]

    def same() -> bool:
        looks.append(indexes(cluster))
        return looks[-1] == looks[-2] and len(looks[-1]) == 3

    cluster.until(same, "nothing is under way")
    return looks[-1]


@pytest.mark.skipif(bool(luck.ROAMS), reason="a new leader writes entries of its own")
def test_a_subscription_is_one_entry_of_each_partition(cluster: ClusterProcess) -> None:
    client = connect(Port(cluster.base_port + 12), V5, client_id=CLIENT)
    client.subscribe(b"first", 1)  # the session's own beginning
    session: dict[str, Any] = {}

    def known() -> bool:
        """Another node may lead it: this one's copy hears of it a moment later."""
        code, page = fetch(cluster.admin(1), f"/v1/tenants/dev/sessions/{CLIENT}")
        session.update(page if code == 200 else {})
        return code == 200

    cluster.until(known, "the session is known")
    fewest: dict[int, int] = {}
    for number in range(TRIES):  # whatever else happens to be written, happens not every time
        before = at_rest(cluster)
        client.subscribe(b"counted/%d/#" % number, 1)
        after = at_rest(cluster)
        for partition, index in after.items():
            grown = index - before[partition]
            fewest[partition] = min(grown, fewest.get(partition, grown))
    own = fewest.pop(session["partition"])
    assert set(fewest.values()) == {1}, "the interest, and nothing else"
    assert 1 <= own <= 3, "the subscription; behind SUBACK, that the two others have it"
    client.cut()
