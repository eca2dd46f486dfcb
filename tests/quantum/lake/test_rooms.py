"""Each room of the lake can be imported first: none needs another one to have been there before."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("room", ["archive", "feed", "jobs", "table"])
def test_a_room_is_imported_first(room: str) -> None:
    command = [sys.executable, "-c", f"import quantum.lake.{room}"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
