"""However much is thrown at a port, its journal stays short."""

from __future__ import annotations

from clustor.runtime.telemetry.few_lines import LINES_PER_SECOND_MAX, FewLines


def test_a_second_has_few_lines_and_the_next_says_how_many_were_left_out() -> None:
    said: list[str] = []
    lines = FewLines(said.append)
    for number in range(100):
        lines.add(f"refused {number}", 5.0 + number / 1000)
    assert said == [f"refused {number}" for number in range(LINES_PER_SECOND_MAX)]
    lines.add("refused again", 6.5)
    assert said[-2:] == ["and 90 more like the last", "refused again"]
