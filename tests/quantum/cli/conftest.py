"""Clusters reserve room for their logs; a test gives it back, and keeps what its nodes said."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _gives_room_back(tmp_path: Path) -> Iterator[None]:
    yield
    for state in list(tmp_path.rglob("state")):
        shutil.rmtree(state, ignore_errors=True)
