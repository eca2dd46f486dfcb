"""The wall clock is read in one place: who wants the time asks `clustor.wall_clock`."""

from __future__ import annotations

import re
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src"
_BY_HAND = re.compile(r"time_ns\(\)\s*//|\btime\(\)\s*\*\s*1_?000\b")


def test_nobody_computes_the_time_of_day_by_hand() -> None:
    found = [
        str(file.relative_to(SOURCE))
        for file in sorted(SOURCE.rglob("*.py"))
        if _BY_HAND.search(file.read_text().replace("loop.time()", "monotonic()"))
    ]
    assert found == ["clustor/wall_clock.py"]
