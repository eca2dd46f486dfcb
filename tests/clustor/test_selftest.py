"""The self-test passes, and can fail."""

from __future__ import annotations

import pytest

from clustor import selftest
from clustor.selftest import run_selftest, selftest_digest


def test_every_vector_comes_out() -> None:
    assert [check for check in run_selftest() if not check.passed] == []


def test_a_wrong_constant_and_a_raising_check_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    before = selftest_digest(run_selftest())
    monkeypatch.setattr(selftest, "wal_block_iv", lambda *_: bytes(12))
    monkeypatch.setattr(selftest, "segment_mac", lambda *_: 1 // 0)
    checks = run_selftest()
    failed = {check.name: check.detail for check in checks if not check.passed}
    assert set(failed) == {"WAL block IV", "Segment MAC"}
    assert failed["Segment MAC"].startswith("ZeroDivisionError")
    assert selftest_digest(checks) != before
