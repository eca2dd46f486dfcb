"""An error that nobody foresaw ends what it belongs to, is counted and told once, and no more."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from clustor.runtime.containment import (
    DIGESTS_MAX,
    Contained,
    contained,
    end_alone,
    guarded,
    on_loop_error,
)

SECRET = "the client's own words"


class Line:
    """A connection that fails as it is told."""

    def __init__(self, *, ends_badly: bool = False) -> None:
        self.ended = 0
        self.ends_badly = ends_badly

    def whom(self) -> str:
        return "lamp\n10.0.0.1"

    def abort(self) -> None:
        self.ended += 1
        if self.ends_badly:
            raise RuntimeError("it cannot even end")

    @guarded("line")
    def received(self, data: bytes) -> None:
        if data:
            raise AssertionError(SECRET, data)


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contained, "counts", {})
    monkeypatch.setattr(contained, "raising", False)
    monkeypatch.setattr(contained, "_logged", set())
    monkeypatch.setattr(contained, "tell", None)


def test_an_error_ends_its_own_line_and_is_counted_and_told(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[str, str, str]] = []
    monkeypatch.setattr(contained, "tell", lambda *words: told.append(words))
    line, other = Line(), Line()
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            line.received(b"x")
        other.received(b"")
    assert (line.ended, other.ended) == (3, 0)
    assert contained.counts == {"line": 3}
    assert len(caplog.records) == 1, "one cause is one line"
    assert SECRET not in caplog.text and "\n" not in caplog.records[0].getMessage()
    assert {(place, who) for place, who, _ in told} == {("line", "lamp?10.0.0.1")}
    assert len({error for _, _, error in told}) == 1 and len(told) == 3


def test_what_cannot_even_end_is_contained_too() -> None:
    Line(ends_badly=True).received(b"x")
    assert contained.counts == {"line": 1, "line end": 1}


def test_who_cannot_be_named_ends_all_the_same() -> None:
    class Nameless(Line):
        def whom(self) -> str:
            raise AttributeError("not made yet")

    nameless = Nameless()
    end_alone("line", nameless, ValueError())
    assert nameless.ended == 1


def test_the_causes_that_are_remembered_are_bounded() -> None:
    found = Contained()
    for number in range(3 * DIGESTS_MAX):
        found.caught("line", "", type(f"Error{number}", (Exception,), {})())
    assert len(found._logged) <= DIGESTS_MAX


async def test_a_task_that_nobody_awaits_ends_alone() -> None:
    async def fails() -> None:
        raise KeyError(SECRET)

    await contained.spawn("task", fails(), who="somebody")
    assert contained.counts == {"task": 1}


async def test_a_lasting_duty_begins_anew() -> None:
    begun = 0

    async def duty() -> None:
        nonlocal begun
        begun += 1
        if begun < 3:
            raise OSError

    await contained.lasting("duty", duty, pause_seconds=0)
    assert begun == 3 and contained.counts == {"duty": 2}


@pytest.mark.parametrize(
    ("context", "dies"),
    {
        "a transport's": ({"exception": ValueError(), "transport": Line()}, False),
        "a task's": ({"exception": ValueError(), "task": object()}, False),
        "a callback's": ({"exception": ValueError(), "handle": object()}, True),
        "nobody knows whose": ({"exception": ValueError()}, True),
        "no error at all": ({"message": "something is slow"}, False),
    }.values(),
)
def test_the_loops_handler_ends_the_process_for_what_serves_all(
    context: dict[str, Any], dies: bool
) -> None:
    died: list[str] = []
    on_loop_error(context, lambda message, _error: died.append(message))
    assert bool(died) == dies
    if isinstance(context.get("transport"), Line):
        assert context["transport"].ended == 1


async def test_cancelling_is_no_error() -> None:
    task = contained.spawn("task", asyncio.sleep(60))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert contained.counts == {}
