"""Storms are counted, not written: the first few lines, and one with the number of the rest."""

from __future__ import annotations

import pytest

from clustor.security import AuditEvent, StormGuard, events_per_window
from clustor.security.storm_guard import WINDOW_MS


def refusal(at_ms: int, what: str = "ConnectRefused", tenant: str = "acme") -> AuditEvent:
    return AuditEvent(who=f"client-{at_ms}", what=what, outcome="No", at_ms=at_ms, tenant=tenant)


def test_a_storm_is_a_few_lines_and_a_number() -> None:
    guard = StormGuard(5)
    written = [each for at in range(1_000) for each in guard.admit(refusal(at))]
    assert [event.at_ms for event in written] == [0, 1, 2, 3, 4]
    assert guard.flush(999) == ()
    (summary,) = guard.flush(WINDOW_MS)
    assert (summary.who, summary.what, summary.tenant) == ("(many)", "ConnectRefused", "acme")
    assert summary.facts == {"suppressed": "995", "since_ms": "0"}
    assert guard.flush(WINDOW_MS) == ()


def test_the_next_window_begins_with_the_number_of_the_last() -> None:
    guard = StormGuard(1)
    for at in range(3):
        guard.admit(refusal(at))
    summary, event = guard.admit(refusal(WINDOW_MS))
    assert summary.facts["suppressed"] == "2" and event.at_ms == WINDOW_MS


def test_kinds_and_tenants_do_not_silence_each_other() -> None:
    guard = StormGuard(1)
    assert guard.admit(refusal(1)) and guard.admit(refusal(2, tenant="rival"))
    assert guard.admit(refusal(3, what="PUBLISH_REFUSED"))
    assert not guard.admit(refusal(4))


def test_names_without_end_do_not_fill_memory() -> None:
    guard = StormGuard(5)
    written = sum(len(guard.admit(refusal(1, what=f"kind-{n}"))) for n in range(5_000))
    assert written == 1_024 + 5
    assert len(guard._windows) == 1_025
    assert len(guard.flush(0, everything=True)) == 1


@pytest.mark.parametrize(("partitions", "expected"), [(0, 5), (1_250, 5), (1_251, 6), (5_000, 20)])
def test_how_many_is_the_texts_number(partitions: int, expected: int) -> None:
    assert events_per_window(partitions) == expected
