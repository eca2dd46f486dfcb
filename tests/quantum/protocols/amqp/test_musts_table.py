"""The page of MUSTs names every test of one, so that it can be trusted to be whole."""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).parent
PAGE = HERE.parents[3] / "docs/amqp-musts.md"


def test_every_must_with_a_test_is_in_the_table() -> None:
    sources = "".join(path.read_text() for path in sorted(HERE.glob("test_musts_*.py")))
    tests = set(re.findall(r"^def (test_must_\w+)\(", sources, re.MULTILINE))
    named = set(re.findall(r"::(test_must_\w+)`", PAGE.read_text()))
    assert tests == named
    assert len(tests) > 100
