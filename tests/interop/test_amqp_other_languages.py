"""AMQP's stock clients of JavaScript, Go and Java: on one node, and over the end of a leader.

Their programs are built with libraries of a registry, which takes minutes the first time: they run
with QUANTUM_EXAMPLES=all.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from quantum.cli.admin_client import fetch
from tests.interop.broker_process import HOST, BrokerProcess
from tests.interop.built_programs import (
    SECONDS,
    builds,
    run_steps,
    skip_where_it_cannot_be_built,
)
from tests.interop.cluster_process import UNHURRIED, ClusterProcess
from tests.interop.mqtt_places import all_served

AMQP_PLACE: Final = 5
"""Behind a node's admin port."""
STEPS: Final = ["send", "outcomes", "credit", "selectors"]
PROGRAMS: Final = {
    "rhea": (("node", "steps.js"), STEPS),
    "go_amqp": (("go", "run", "."), STEPS),
    "qpid_jms": (
        ("mvn", "-B", "-q", "compile", "exec:java", "-Dexec.mainClass=AmqpSteps"),
        [*STEPS, "transactions"],
    ),
}
pytestmark = pytest.mark.timeout(2 * SECONDS)
__all__ = ["builds"]  # a fixture of this file's tests


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("languages") / "var", partitions=3) as made:
        yield made


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcess]:
    data = tmp_path_factory.mktemp("languages3")
    with ClusterProcess(data, tenant_prgs=3, patience=UNHURRIED) as made:
        yield made


@pytest.mark.parametrize("language", PROGRAMS)
def test_on_one_node(
    language: str, tmp_path: Path, request: pytest.FixtureRequest, *, builds: bool
) -> None:
    skip_where_it_cannot_be_built(PROGRAMS, language, builds=builds)
    broker: BrokerProcess = request.getfixturevalue("broker")
    arguments = [f"{HOST}:{broker.amqp}", language]
    assert run_steps(PROGRAMS, language, arguments, tmp_path) == PROGRAMS[language][1]


@pytest.mark.parametrize("language", PROGRAMS)
def test_over_the_end_of_a_leader(
    language: str, tmp_path: Path, request: pytest.FixtureRequest, *, builds: bool
) -> None:
    """When half is sent, the node that leads the queue is killed; everything arrives."""
    skip_where_it_cannot_be_built(PROGRAMS, language, builds=builds)
    cluster: ClusterProcess = request.getfixturevalue("cluster")
    cluster.until(lambda: all_served(cluster), "every partition is served")
    addresses = [f"{HOST}:{each.port + AMQP_PLACE}" for each in cluster.admins()]
    queue = f"survive-{language}"
    killed: list[int] = []

    def on_line(line: str) -> None:
        if line == "half":
            _, page = fetch(cluster.admins()[0], f"/v1/tenants/dev/queues/{queue}")
            killed.append(page["leader"] or 1)
            cluster.kill(killed[0])

    arguments = [",".join(addresses), queue, "survive"]
    lines = run_steps(PROGRAMS, language, arguments, tmp_path, on_line)
    assert lines == ["half", "survive"]
    assert killed
