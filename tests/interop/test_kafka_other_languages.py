"""Go's and Java's own clients: topics, groups of both protocols, transactions, users, quotas.

Their programs are built with libraries of a registry, which takes minutes the first time: they run
with QUANTUM_EXAMPLES=all.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.interop.broker_process import HOST, BrokerProcess
from tests.interop.built_programs import (
    SECONDS,
    builds,
    run_steps,
    skip_where_it_cannot_be_built,
)
from tests.interop.cluster_process import UNHURRIED, ClusterProcess
from tests.interop.kafka_clients import kafka_of, make_topic

PROGRAMS: Final = {
    "franz": (("go", "run", "."), ["admin", "produce", "group", "transactions", "users", "quotas"]),
    "kafka_java": (
        ("mvn", "-B", "-q", "compile", "exec:java", "-Dexec.mainClass=Steps"),
        [
            *("admin", "produce", "group classic", "group consumer"),
            *("transactions", "users", "quotas"),
        ],
    ),
}
pytestmark = pytest.mark.timeout(2 * SECONDS)
__all__ = ["builds"]  # a fixture of this file's tests


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("languages") / "var", partitions=2) as made:
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
    address = f"{HOST}:{broker.kafka}"
    assert run_steps(PROGRAMS, language, [address], tmp_path) == PROGRAMS[language][1]


@pytest.mark.parametrize("language", PROGRAMS)
def test_on_three_nodes(
    language: str, tmp_path: Path, request: pytest.FixtureRequest, *, builds: bool
) -> None:
    skip_where_it_cannot_be_built(PROGRAMS, language, builds=builds)
    cluster: ClusterProcess = request.getfixturevalue("cluster")
    for each in kafka_of(cluster).split(","):
        make_topic(each, "ready")  # every node serves
    address = kafka_of(cluster)
    assert run_steps(PROGRAMS, language, [address], tmp_path) == PROGRAMS[language][1]
