"""What tests with real processes share: brokers to meet, and room that is given back."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.mqtt_places import PLACES, Place

TIMEOUT_SECONDS = 900
"""For whole clusters on a machine that is busy with something else; each wait in a test has a
deadline of its own, which says what it waited for."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TIMEOUT_SECONDS))


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
