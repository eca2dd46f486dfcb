"""The checker agrees with every published verdict: 102 register and 6 key-value histories."""

from __future__ import annotations

from pathlib import Path

import pytest

from clustor.sim.linearizability import Ok, Violation, check
from clustor.sim.models import CasRegister, KeyValue
from tests.clustor.sim.public_histories import (
    parse_kv_history,
    parse_register_history,
    suites_folder,
    verdicts,
)

# The hardest published history takes about 24,000; an eightfold rise is a regression.
_BUDGET = 200_000


def _folder() -> Path | None:
    suites = suites_folder()
    folder = suites / "linearizability" if suites is not None else None
    return folder if folder is not None and folder.is_dir() else None


_FOLDER = _folder()
_CASES = list(verdicts(_FOLDER)) if _FOLDER is not None else []
pytestmark = pytest.mark.skipif(
    _FOLDER is None, reason="no shared/suites/linearizability above this tree (QUANTUM_SUITES)"
)


def test_the_published_set_is_whole() -> None:
    assert sum(name.startswith("jepsen/") for name, _ in _CASES) == 102
    assert sum(name.startswith("kv/") for name, _ in _CASES) == 6
    assert {linearizable for _, linearizable in _CASES} == {True, False}


@pytest.mark.parametrize(("name", "linearizable"), _CASES, ids=[name for name, _ in _CASES])
def test_a_published_history_gets_its_published_verdict(name: str, linearizable: bool) -> None:
    assert _FOLDER is not None
    text = (_FOLDER / name).read_text()
    if name.startswith("kv/"):
        verdict = check(parse_kv_history(text), KeyValue(absent=b""), budget=_BUDGET)
    else:
        verdict = check(parse_register_history(text), CasRegister(), budget=_BUDGET)
    assert isinstance(verdict, Ok if linearizable else Violation), verdict
