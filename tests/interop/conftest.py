"""What tests with real processes share: brokers to meet, and room that is given back."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.mqtt_places import PLACES, Place


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
