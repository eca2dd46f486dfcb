"""Go's and Java's own clients: topics, groups of both protocols, transactions, users, quotas.

Their programs are built with libraries of a registry, which takes minutes the first time: they run
with QUANTUM_EXAMPLES=all.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.interop.broker_process import HOST, BrokerProcess
from tests.interop.cluster_process import UNHURRIED, ClusterProcess
from tests.interop.kafka_clients import kafka_of, make_topic

HERE: Final = Path(__file__).parent
SECONDS: Final = 800
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


_COLOURS: Final = re.compile(r"\x1b\[[0-9;]*m")
WANTED: Final = "QUANTUM_EXAMPLES"


@pytest.fixture(scope="module", autouse=True)
def builds() -> Iterator[bool]:
    """Say whether programs are built; a broker is not told: it would take it for a setting."""
    wanted = os.environ.get(WANTED) == "all"
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(WANTED, raising=False)
        yield wanted


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("languages") / "var", partitions=2) as made:
        yield made


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcess]:
    data = tmp_path_factory.mktemp("languages3")
    with ClusterProcess(data, tenant_prgs=3, patience=UNHURRIED) as made:
        yield made


def steps(language: str, address: str, tmp_path: Path) -> list[str]:
    """Build a program and let it run against a broker; return the steps that went well."""
    place = tmp_path / language
    shutil.copytree(HERE / language, place)
    command = list(PROGRAMS[language][0])
    command += [f"-Dexec.args={address}"] if command[0] == "mvn" else [address]
    done = subprocess.run(
        command, cwd=place, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = _COLOURS.sub("", done.stdout).splitlines()  # mvn paints whatever it is told
    return [each for each in lines if each]


def skip_where_it_cannot_be_built(language: str, *, builds: bool) -> None:
    if not builds:
        pytest.skip("it takes libraries of a registry: QUANTUM_EXAMPLES=all builds and runs it")
    program = PROGRAMS[language][0][0]
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")


@pytest.mark.parametrize("language", PROGRAMS)
def test_on_one_node(
    language: str, tmp_path: Path, request: pytest.FixtureRequest, *, builds: bool
) -> None:
    skip_where_it_cannot_be_built(language, builds=builds)
    broker: BrokerProcess = request.getfixturevalue("broker")
    assert steps(language, f"{HOST}:{broker.kafka}", tmp_path) == PROGRAMS[language][1]


@pytest.mark.parametrize("language", PROGRAMS)
def test_on_three_nodes(
    language: str, tmp_path: Path, request: pytest.FixtureRequest, *, builds: bool
) -> None:
    skip_where_it_cannot_be_built(language, builds=builds)
    cluster: ClusterProcess = request.getfixturevalue("cluster")
    for each in kafka_of(cluster).split(","):
        make_topic(each, "ready")  # every node serves
    assert steps(language, kafka_of(cluster), tmp_path) == PROGRAMS[language][1]
