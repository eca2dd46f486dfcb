"""What tests with real processes share: brokers to meet, and room that is given back."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from clustor.runtime.admin_caller import NOBODY
from quantum.cli.credentials import speak_as
from tests.interop.mqtt_places import PLACES, Place

HERE: Final = Path(__file__).parent
TIMEOUT_SECONDS: Final = 900
"""For whole clusters on a machine that is busy with something else; each wait in a test has a
deadline of its own, which says what it waited for."""
NOTHING_LOST: Final = frozenset(
    {
        "test_archive",
        "test_catch_up",
        "test_cluster",
        "test_control_plane",
        "test_durability_mode",
        "test_lake",
        "test_lake_rows",
        "test_lake_stream",
        "test_members",
        "test_mqtt_failover",
        "test_mqtt_replay",
        "test_mqtt_restart",
        "test_mqtt_torture",
        "test_partitions",
        "test_placed_moves",
        "test_reads",
        "test_reads_parted",
        "test_rebalance",
        "test_rotation",
        "test_rotation_due",
        "test_snapshots_in_time",
    }
)
"""What counts acknowledged messages is never asked twice: one loss in a thousand runs is a loss."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Ask once more where an election on a busy machine may make a fact late; it is reported."""
    for item in items:
        if not item.path.is_relative_to(HERE):
            continue
        if item.path.stem not in NOTHING_LOST:
            item.add_marker(pytest.mark.flaky(reruns=1))
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TIMEOUT_SECONDS))


@pytest.fixture(autouse=True)
def _speaks_for_nobody() -> Iterator[None]:
    """Commands run in this process: as whom one of them spoke is forgotten with its test."""
    yield
    speak_as(NOBODY)


@pytest.fixture(autouse=True)
def _gives_room_back(tmp_path: Path) -> Iterator[None]:
    """Clusters reserve room for their logs; what their nodes said is kept."""
    yield
    for state in list(tmp_path.rglob("state")):
        shutil.rmtree(state, ignore_errors=True)


@pytest.fixture(scope="session", params=PLACES, ids=lambda name: name.replace(" ", "-"))
def place(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Place]:
    """A broker for all tests that need no broker of their own."""
    with PLACES[request.param](tmp_path_factory.mktemp("place") / "var") as found:
        yield found
