"""The checker's verdicts on histories written by hand, and against a brute-force twin."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations, permutations
from typing import TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clustor.sim.history import CallHistory, HistoryMisuse, HistoryOperation, Process
from clustor.sim.linearizability import Ok, Undecided, Violation, check
from clustor.sim.models import (
    Append,
    Cas,
    CasRegister,
    CasRegisterCall,
    CompareAndSet,
    KeyValue,
    KvCall,
    ModelDelete,
    ModelGet,
    ModelPut,
    ModelWrite,
    Read,
    Register,
    RegisterCall,
)

# One event of a story: (process, call) opens; (process, "ok", result) or (process, "lost") ends.
Event: TypeAlias = tuple[int, KvCall | str] | tuple[int, str, Hashable]


def story(*events: Event) -> tuple[HistoryOperation[KvCall], ...]:
    history = CallHistory[KvCall]()
    for event in events:
        process = Process(event[0])
        if event[1] == "ok":
            history.ok(process, event[2] if len(event) == 3 else None)
        elif event[1] == "lost":
            history.unknown(process)
        else:
            assert not isinstance(event[1], str)
            history.invoke(process, event[1])
    return history.operations()


GOOD: dict[str, tuple[HistoryOperation[KvCall], ...]] = {
    "nothing happened": story(),
    "a read beside a write may see either": story(
        (1, ModelPut("x", b"a")), (2, ModelGet("x")), (2, "ok", None), (2, ModelGet("x")),
        (2, "ok", b"a"),
        (1, "ok", None),
    ),
    "a lost write took effect after a read that missed it": story(
        (1, ModelPut("x", b"a")), (1, "lost"), (2, ModelGet("x")), (2, "ok", None),
        (2, ModelGet("x")), (2, "ok", b"a"),
    ),
    "a lost write never took effect": story(
        (1, ModelPut("x", b"a")), (1, "lost"), (2, ModelGet("x")), (2, "ok", None),
        (2, ModelPut("x", b"b")), (2, "ok", None), (2, ModelGet("x")), (2, "ok", b"b"),
    ),
    "a call still open at the end took effect": story(
        (1, Append("x", b"a")), (2, ModelGet("x")), (2, "ok", b"a"),
    ),
    "two equal lost appends both took effect, late": story(
        (1, Append("x", b"a")), (1, "lost"), (3, Append("x", b"a")), (3, "lost"),
        (2, ModelGet("x")), (2, "ok", b"a"), (2, ModelGet("x")), (2, "ok", b"aa"),
    ),
    "racing compare-and-sets: one wins": story(
        (1, Cas("x", None, b"a")), (2, Cas("x", None, b"b")), (2, "ok", True), (1, "ok", False),
    ),
    "a delete between two reads": story(
        (1, ModelPut("x", b"a")), (1, "ok", None), (1, ModelDelete("x")), (2, ModelGet("x")),
        (2, "ok", b"a"),
        (1, "ok", True), (2, ModelGet("x")), (2, "ok", None), (1, ModelDelete("x")),
        (1, "ok", False),
    ),
    "a write of the value that is there is needed again later": story(
        (1, ModelPut("x", b"a")), (2, ModelPut("x", b"a")), (2, "ok", None),
        (2, ModelPut("x", b"b")),
        (2, "ok", None), (2, ModelGet("x")), (1, "ok", None), (2, "ok", b"a"),
    ),
    "keys are judged apart": story(
        (1, ModelPut("x", b"a")), (2, ModelPut("y", b"b")), (3, ModelGet("y")), (3, "ok", b"b"),
        (3, ModelGet("x")), (3, "ok", None), (1, "ok", None), (2, "ok", None),
    ),
}  # fmt: skip

# The story, and the number (by call) of the operation that cannot be explained.
BAD: dict[str, tuple[tuple[HistoryOperation[KvCall], ...], int]] = {
    "stale read": (
        story(
            (1, ModelPut("x", b"a")), (1, "ok", None), (1, ModelPut("x", b"b")), (1, "ok", None),
            (2, ModelGet("x")), (2, "ok", b"a"),
        ),
        2,
    ),
    "lost update": (
        story(
            (1, Append("x", b"a")), (2, Append("x", b"b")), (1, "ok", None), (2, "ok", None),
            (3, ModelGet("x")), (3, "ok", b"a"),
        ),
        2,
    ),
    "read from the future": (
        story((2, ModelGet("x")), (2, "ok", b"a"), (1, ModelPut("x", b"a")), (1, "ok", None)),
        0,
    ),
    "split brain: two sides each answer from their own copy": (
        story(
            (1, Cas("x", None, b"a")), (2, Cas("x", None, b"b")), (1, "ok", True),
            (2, "ok", True),
        ),
        1,
    ),
    "readers disagree on the order of two writes": (
        story(
            (1, ModelPut("x", b"a")), (2, ModelPut("x", b"b")), (3, ModelGet("x")), (3, "ok", b"a"),
            (4, ModelGet("x")), (4, "ok", b"b"), (3, ModelGet("x")), (3, "ok", b"a"),
            (1, "ok", None), (2, "ok", None),
        ),
        4,
    ),
    "a lost write took effect and was then unseen": (
        story(
            (1, ModelPut("x", b"a")), (1, "lost"), (2, ModelGet("x")), (2, "ok", b"a"),
            (2, ModelGet("x")), (2, "ok", None),
        ),
        2,
    ),
    "one lost append took effect twice": (
        story((1, Append("x", b"a")), (1, "lost"), (2, ModelGet("x")), (2, "ok", b"aa")),
        1,
    ),
    "a deleted key came back": (
        story(
            (1, ModelPut("x", b"a")), (1, "ok", None), (1, ModelDelete("x")), (1, "ok", True),
            (2, ModelGet("x")), (2, "ok", b"a"),
        ),
        2,
    ),
}  # fmt: skip


@pytest.mark.parametrize("history", GOOD.values(), ids=GOOD.keys())
def test_an_honest_history_is_ok(history: tuple[HistoryOperation[KvCall], ...]) -> None:
    assert isinstance(check(history, KeyValue(), budget=1_000), Ok)


@pytest.mark.parametrize(("history", "culprit"), BAD.values(), ids=BAD.keys())
def test_a_known_anomaly_is_named(
    history: tuple[HistoryOperation[KvCall], ...], culprit: int
) -> None:
    verdict = check(history, KeyValue(), budget=1_000)
    assert isinstance(verdict, Violation)
    assert verdict.culprit == history[culprit]
    assert verdict.key == "x"
    assert f"process {verdict.culprit.process}" in verdict.explanation


def test_a_violation_names_its_key_and_leaves_the_others_out() -> None:
    verdict = check(
        story(
            (1, ModelPut("good", b"a")), (1, "ok", None), (1, ModelPut("bad", b"a")),
            (1, "ok", None),
            (2, ModelGet("good")), (2, "ok", b"a"), (2, ModelGet("bad")), (2, "ok", b"b"),
            (2, ModelGet("bad")), (2, "ok", b"a"),
        ),
        KeyValue(),
        budget=1_000,
    )  # fmt: skip
    assert isinstance(verdict, Violation)
    assert [each.call for each in verdict.prefix] == [ModelPut("bad", b"a"), ModelGet("bad")]
    assert [each.call for each in verdict.longest_order] == [ModelPut("bad", b"a")]
    assert verdict.shortened
    assert verdict.explanation.splitlines() == [
        "key 'bad': no order of 2 operations explains [process 2: ModelGet(key='bad') → b'b', 7–8]",
        "what came before it can be explained: "
        "[process 1: ModelPut(key='bad', value=b'a') → None, 3–4]",
        "which leaves the state b'a'",
        "open, or without a place: nothing",
    ]


def test_the_answer_that_comes_last_is_the_culprit_even_if_the_search_knows_it_before() -> None:
    history = story(
        (1, Cas("x", None, b"a")), (2, Cas("x", None, b"a")), (1, "ok", False), (2, "ok", False)
    )  # fmt: skip
    verdict = check(history, KeyValue(), budget=100)
    assert isinstance(verdict, Violation)
    assert verdict.culprit == history[1]
    assert verdict.longest_order[0] == replace(history[1], returned=None, result=None)


def test_a_violation_that_the_budget_leaves_long_says_so() -> None:
    history = BAD["stale read"][0]
    verdict = check(history, KeyValue(), budget=3)
    assert isinstance(verdict, Violation)
    assert not verdict.shortened
    assert verdict.prefix == history
    assert verdict.states == 3


def _racing_appends(key: str, count: int) -> list[Event]:
    """Many appends at once and an answer that none of their orders gives."""
    events: list[Event] = [(n, Append(key, bytes([97 + n]))) for n in range(count)]
    events += [(n, "ok", None) for n in range(count)]
    return [*events, (0, ModelGet(key)), (0, "ok", b"impossible")]


@pytest.mark.parametrize("budget", [0, 1, 100, 5_000])
def test_a_budget_that_ends_first_is_said_and_kept(budget: int) -> None:
    verdict = check(story(*_racing_appends("x", 9)), KeyValue(), budget=budget)
    assert isinstance(verdict, Undecided)
    assert verdict.keys == ("x",)
    assert verdict.states <= budget


def test_a_hard_key_does_not_hide_the_violation_of_another() -> None:
    hard = _racing_appends("hard", 5)
    filler: list[Event] = []
    for _ in range(8):
        filler += [(1, ModelGet("bad")), (1, "ok", None)]
    stale: list[Event] = [(1, ModelGet("bad")), (1, "ok", b"never written")]
    history = story(*hard, *filler, *stale)
    assert len(hard) < len(filler + stale), "the hard key is looked at first"
    verdict = check(history, KeyValue(), budget=200)
    assert isinstance(verdict, Violation)
    assert verdict.key == "bad"


def test_a_plain_register_reads_what_was_written() -> None:
    history = CallHistory[RegisterCall]()
    one = Process(1)
    history.invoke(one, ModelWrite(7))
    history.ok(one)
    history.invoke(one, Read())
    history.ok(one, 7)
    assert isinstance(check(history.operations(), Register(), budget=10), Ok)
    history.invoke(one, Read())
    history.ok(one, 8)
    assert isinstance(check(history.operations(), Register(), budget=10), Violation)


def test_a_process_has_at_most_one_call_open() -> None:
    history = CallHistory[RegisterCall]()
    history.invoke(Process(1), Read())
    with pytest.raises(HistoryMisuse):
        history.invoke(Process(1), Read())
    with pytest.raises(HistoryMisuse):
        history.ok(Process(2), None)


def test_what_certainly_did_not_happen_is_left_out() -> None:
    history = CallHistory[RegisterCall]()
    history.invoke(Process(1), ModelWrite(1))
    history.did_not_happen(Process(1))
    assert history.operations() == ()


# --- the brute-force twin -----------------------------------------------------------------


def _brute_force(operations: Sequence[HistoryOperation[CasRegisterCall]]) -> bool:
    """Try every order of every choice of unanswered operations."""
    answered = [each for each in operations if each.returned is not None]
    unanswered = [each for each in operations if each.returned is None]
    return any(
        _explains(order)
        for count in range(len(unanswered) + 1)
        for happened in combinations(unanswered, count)
        for order in permutations([*answered, *happened])
    )


def _explains(order: Sequence[HistoryOperation[CasRegisterCall]]) -> bool:
    state: Hashable = None
    latest_call = 0
    for operation in order:
        latest_call = max(latest_call, operation.invoked)
        if operation.returned is not None and operation.returned < latest_call:
            return False
        state, result = CasRegister().apply(state, operation.call)
        if operation.returned is not None and result != operation.result:
            return False
    return True


_values = st.integers(0, 2)
_calls = st.one_of(
    st.just(Read()),
    st.builds(ModelWrite, _values),
    st.builds(CompareAndSet, st.none() | _values, _values),
)


def _results(call: CasRegisterCall) -> st.SearchStrategy[Hashable]:
    match call:
        case Read():
            return st.none() | _values
        case ModelWrite():
            return st.none()
        case CompareAndSet():
            return st.booleans()


@st.composite
def _histories(draw: st.DrawFn) -> tuple[HistoryOperation[CasRegisterCall], ...]:
    history = CallHistory[CasRegisterCall]()
    open_calls: dict[Process, CasRegisterCall] = {}
    for _ in range(draw(st.integers(0, 6))):
        for process in [each for each in open_calls if draw(st.booleans())]:
            _finish(draw, history, process, open_calls.pop(process))
        process = Process(draw(st.integers(0, 3)))
        if process in open_calls:
            _finish(draw, history, process, open_calls.pop(process))
        open_calls[process] = draw(_calls)
        history.invoke(process, open_calls[process])
    for process, call in open_calls.items():
        _finish(draw, history, process, call)
    return history.operations()


def _finish(
    draw: st.DrawFn, history: CallHistory[CasRegisterCall], process: Process, call: CasRegisterCall
) -> None:
    if draw(st.integers(0, 3)) == 0:
        history.unknown(process)
    else:
        history.ok(process, draw(_results(call)))


def _without_last_return(
    verdict: Violation,
) -> Iterator[HistoryOperation[CasRegisterCall]]:
    for each in verdict.prefix:
        if each.invoked == verdict.culprit.invoked:
            yield replace(each, returned=None, result=None)
        else:
            yield each


@settings(max_examples=600, deadline=None)
@given(_histories())
def test_the_checker_agrees_with_brute_force(
    operations: tuple[HistoryOperation[CasRegisterCall], ...],
) -> None:
    verdict = check(operations, CasRegister(), budget=100_000)
    assert isinstance(verdict, Ok | Violation)
    assert isinstance(verdict, Ok) == _brute_force(operations)


@settings(max_examples=300, deadline=None)
@given(_histories())
def test_a_violation_shows_the_shortest_prefix(
    operations: tuple[HistoryOperation[CasRegisterCall], ...],
) -> None:
    verdict = check(operations, CasRegister(), budget=100_000)
    if isinstance(verdict, Violation):
        assert not _brute_force(verdict.prefix)
        shorter = list(_without_last_return(verdict))
        assert _brute_force(shorter)
