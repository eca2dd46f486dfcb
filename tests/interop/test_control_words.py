"""Words of the control plane that nodes obey: bundles, moves that would not survive, alerts,
overrides that end by themselves, gates. One cluster for all; each test leaves it as it found it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from hashlib import sha256
from typing import Any

import pytest

from clustor.control import ArmBarrier, Command, DefineActivate, PublishBundle
from clustor.flow import LagNumbers
from clustor.runtime.admission import FlowNumbers
from clustor.runtime.development import node_directory
from clustor.runtime.kv_client import KvClient, KvRejected
from clustor.runtime.pki import NodeId
from quantum.cli.admin_client import fetch
from tests.interop.cluster_process import ClusterProcess
from tests.interop.control_process import all_healthy, insist, prepared

NODES = (1, 2, 3)
GROUP = 1
SMALL = json.dumps({"machine": "kv", "value_bytes_max": 1_000}).encode()
PLAIN = json.dumps({"machine": "kv"}).encode()
FLOW = FlowNumbers(
    lag=LagNumbers(
        slack_bytes=64 << 10,
        transient_bytes_max=512 << 10,
        structural_bytes=512 << 10,
        structural_stepdown_ms=600_000,
    )
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcess]:
    data = tmp_path_factory.mktemp("words") / "var"
    prepared(data, fault_injection=True, patience=4, flow=FLOW)
    with ClusterProcess(data) as running:
        running.until(lambda: all_healthy(running, groups=2), "everything is led and proven")
        yield running


def done(cluster: ClusterProcess, command: Command, name: str) -> dict[str, Any]:
    answer = insist(cluster, command, name)
    assert answer["outcome"] == "Done", answer
    return answer


def page(cluster: ClusterProcess, path: str, node: int = 1) -> dict[str, Any]:
    found: list[dict[str, Any]] = []

    def answered() -> bool:
        code, body = fetch(cluster.admin(node), path)
        found[:] = [body] if code in (200, 503) else []
        return bool(found)

    cluster.until(answered, f"node {node} shows {path}")
    return found[0]


# Bundles (clustor §9.7).


def publish(cluster: ClusterProcess, bundle: str, definition: bytes) -> None:
    digest = sha256(definition).digest()
    words = PublishBundle(bundle_id=bundle, version=1, sha256=digest, definition_blob=definition)
    done(cluster, words, f"publish-{bundle}")


def arm(cluster: ClusterProcess, barrier: str, bundle: str) -> None:
    armed = ArmBarrier(
        barrier_id=barrier,
        bundle_id=bundle,
        readiness_threshold=1_000_000,
        warmup_deadline_ms=600_000,
        readiness_window_ms=600_000,
        partitions=(GROUP,),
    )
    done(cluster, armed, f"arm-{barrier}")


def activate(cluster: ClusterProcess, barrier: str) -> None:
    """Activate a barrier as soon as the control plane lets it: every replica is warm then."""
    tries = 0

    def let() -> bool:
        nonlocal tries
        tries += 1
        answer = insist(cluster, DefineActivate(barrier_id=barrier), f"{barrier}-{tries}")
        assert answer["outcome"] == "Done" or answer["code"] == "NotReady", answer
        return bool(answer["outcome"] == "Done")

    cluster.until(let, "all replicas are warm")


async def refuses(cluster: ClusterProcess, value: bytes) -> bool:
    async with KvClient(cluster.admins(), timeout_seconds=60) as client:
        try:
            await client.put(b"words", value)
        except KvRejected as error:
            return "VALUE_TOO_LARGE" in str(error)
    return False


async def test_a_bundle_is_staged_tried_beside_and_in_force_once_every_replica_is_warm(
    cluster: ClusterProcess,
) -> None:
    large = bytes(2_000)
    assert not await refuses(cluster, large)  # and so what is there does not fit the definition
    publish(cluster, "small", SMALL)
    arm(cluster, "early", "small")

    def is_staged(node: int) -> bool:
        home = node_directory(cluster.data, NodeId(node))
        path = home / "state" / str(GROUP) / "definitions" / "small.blob"
        return path.exists() and path.read_bytes() == SMALL

    def ratio() -> float | None:
        found: float | None = page(cluster, "/readyz")["warmup_ready_ratio"]
        return found

    cluster.until(lambda: all(map(is_staged, NODES)), "every node has staged it")
    cluster.until(lambda: ratio() == 0.0, "shadows are reported")
    answer = insist(cluster, DefineActivate(barrier_id="early"), "too-early")
    assert (answer["outcome"], answer["code"]) == ("Refused", "NotReady"), answer
    assert not await refuses(cluster, large), "a trial changes nothing"
    async with KvClient(cluster.admins(), timeout_seconds=60) as client:
        await client.delete(b"words")
    arm(cluster, "in-time", "small")  # a new trial finds nothing that does not fit
    cluster.until(lambda: ratio() == 1.0, "every replica is warm")
    activate(cluster, "in-time")
    while not await refuses(cluster, large):
        pass

    def are_alike() -> bool:
        return len({cluster.wait_for_group(node)["state_digest"] for node in NODES}) == 1

    cluster.until(are_alike, "all replicas have switched alike")


async def test_a_definition_outlives_the_process_and_is_taken_back_by_another(
    cluster: ClusterProcess,
) -> None:
    leader = cluster.wait_for_leader()
    before = cluster.started(leader)
    cluster.kill(leader)
    cluster.until(lambda: cluster.started(leader) > before, "it is started again")
    assert await refuses(cluster, bytes(2_000)), "it is in the log, and in snapshots"
    publish(cluster, "plain", PLAIN)
    arm(cluster, "back", "plain")
    activate(cluster, "back")
    while await refuses(cluster, bytes(2_000)):
        pass
    cluster.until(lambda: all_healthy(cluster, groups=2), "everything is led and proven")
