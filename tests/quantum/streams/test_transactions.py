"""The coordinator: one decision for each transaction, and nobody acts under another's epoch."""

from __future__ import annotations

from typing import Any

import pytest

from quantum.broker.streams import (
    AddToTransaction,
    EndArrived,
    EndTransaction,
    ExpireTransactions,
    InitProducer,
    ProducerGiven,
    StreamRefusal,
    TransactionCoordinator,
    TransactionState,
    decode_transaction_command,
    encode_command,
)

R = StreamRefusal
FIRST = (3 << 48) | 1
SECOND = (3 << 48) | 2
T0, T1 = ("t", 0), ("t", 1)


def init(claim: tuple[int, int] | None = None, *, at: int = 0, timeout: int = 1000) -> InitProducer:
    return InitProducer(at, "tx", timeout, *(claim or (-1, -1)))


def add(epoch: int, *partitions: Any, producer: int = FIRST, at: int = 0, groups: Any = ()) -> Any:
    return AddToTransaction(at, "tx", producer, epoch, partitions, groups)


def end(epoch: int, commit: bool = True, *, producer: int = FIRST, bump: bool = True) -> Any:
    return EndTransaction(0, "tx", producer, epoch, commit, bump)


def arrived(epoch: int, partition: Any = T0, *, producer: int = FIRST, group: Any = None) -> Any:
    return EndArrived(0, "tx", producer, epoch, None if group else partition, group)


def given(epoch: int, producer: int = FIRST) -> ProducerGiven:
    return ProducerGiven(producer, epoch)


BEGUN = [(init(), given(0)), (add(0, T0), given(0))]
STORIES: dict[str, list[tuple[Any, Any]]] = {
    "ids without a name are never the same": [
        (InitProducer(0, None, 0), given(0)),
        (InitProducer(0, None, 0), given(0, SECOND)),
    ],
    "a time-out has bounds": [
        (init(timeout=0), R.BAD_TIMEOUT),
        (init(timeout=900_001), R.BAD_TIMEOUT),
        (init(timeout=900_000), given(0)),
    ],
    "a commit is answered when it is decided": [
        *BEGUN,
        (end(0), given(1)),
        (add(1, T0), R.TRANSACTION_ENDING),
        (init(), R.TRANSACTION_ENDING),
        (arrived(1), None),
        (add(1, T0), given(1)),
    ],
    "a lost answer is given again": [
        *BEGUN,
        (end(0), given(1)),
        (end(0), given(1)),
        (arrived(1), None),
        (end(0), given(1)),
        (end(0, commit=False), R.FENCED),
        (end(1), R.WRONG_TRANSACTION_STATE),
    ],
    "all markers must arrive": [
        (init(), given(0)),
        (add(0, T0, T1, groups=("g",)), given(0)),
        (end(0, commit=False), given(1)),
        (arrived(1, T0), None),
        (arrived(1, T1), None),
        (arrived(0, group="g"), None),
        (add(1), R.TRANSACTION_ENDING),
        (arrived(1, group="g"), None),
        (add(1), given(1)),
    ],
    "without a bump the epoch stays": [
        *BEGUN,
        (end(0, bump=False), given(0)),
        (end(0, bump=False), given(0)),
        (end(0, commit=False, bump=False), R.TRANSACTION_ENDING),
        (arrived(0), None),
        (end(0, bump=False), given(0)),
        (end(0, commit=False, bump=False), R.WRONG_TRANSACTION_STATE),
        (add(0, T1), given(0)),
    ],
    "a new instance fences the old one": [
        (init(), given(0)),
        (init(), given(1)),
        (add(0, T0), R.FENCED),
        (end(0), R.FENCED),
        (init((FIRST, 0)), R.FENCED),
        (init((FIRST, 1)), given(2)),
    ],
    "a new instance aborts what is open": [
        *BEGUN,
        (init(), R.TRANSACTION_ENDING),
        (end(0), R.FENCED),
        (arrived(1), None),
        (init(), given(2)),
        (end(1), R.FENCED),
        (init((FIRST, 0)), R.FENCED),
        (init((FIRST, 1)), R.FENCED),
    ],
    "who has the newest epoch goes on after an error": [
        (init(), given(0)),
        (init((FIRST, 0)), given(1)),
        (init((FIRST, 0)), given(1)),
        (init((FIRST, 9)), R.FENCED),
        (init((SECOND, 0)), R.FENCED),
    ],
    "a time-out aborts and fences, and the client may go on": [
        (init(at=5), given(0)),
        (add(0, T0, at=10), given(0)),
        (ExpireTransactions(1009), None),
        (add(0, T0), given(0)),
        (ExpireTransactions(1010), None),
        (end(0), R.FENCED),
        (end(0, commit=False), given(1)),
        (init((FIRST, 0)), R.TRANSACTION_ENDING),
        (arrived(1), None),
        (init((FIRST, 0)), given(1)),
    ],
    "an abort of nothing ends the epoch": [
        (init(), given(0)),
        (end(0), R.WRONG_TRANSACTION_STATE),
        (end(0, commit=False), given(1)),
        (end(0, commit=False), given(1)),
        (add(0, T0), R.FENCED),
    ],
    "who is unknown is told": [
        (add(0, T0), R.UNKNOWN_PRODUCER),
        (init((FIRST, 0)), R.UNKNOWN_PRODUCER),
        (init(), given(0)),
        (add(0, T0, producer=99), R.UNKNOWN_PRODUCER),
    ],
    "an id that nobody uses is forgotten": [
        (init(at=100), given(0)),
        (ExpireTransactions(604_800_099), None),
        (init((FIRST, 0), at=0), given(1)),
        (ExpireTransactions(2 * 604_800_099), None),
        (add(1, T0), R.UNKNOWN_PRODUCER),
    ],
}


@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES.keys())
def test_what_a_coordinator_says(story: list[tuple[Any, Any]]) -> None:
    coordinator = TransactionCoordinator(3)
    for step, (command, answer) in enumerate(story):
        assert decode_transaction_command(encode_command(command)) == command
        twin = TransactionCoordinator(0)
        twin.restore(coordinator.snapshot())
        result = coordinator.apply(command)
        assert result.answer == answer, step
        assert twin.apply(command) == result, step
        assert twin.digest() == coordinator.digest(), step


def test_a_producer_id_is_given_up_before_its_last_epoch() -> None:
    coordinator = TransactionCoordinator(3)
    coordinator.apply(init())
    for epoch in range(32_765):
        assert coordinator.apply(init((FIRST, epoch))).answer == given(epoch + 1)
    coordinator.apply(add(32_765, T0))
    result = coordinator.apply(end(32_765))
    assert result.answer == given(32_766)
    assert [(each.producer_id, each.epoch) for each in result.markers] == [(FIRST, 32_766)]
    coordinator.apply(arrived(32_766))
    coordinator.apply(add(32_766, T0))
    result = coordinator.apply(end(32_766))
    assert result.answer == given(0, SECOND)
    assert [(each.producer_id, each.epoch) for each in result.markers] == [(FIRST, 32_767)]
    assert coordinator.apply(end(32_766)).answer == given(0, SECOND)
    coordinator.apply(arrived(32_767))
    assert coordinator.apply(add(32_766, T0)).answer is R.FENCED
    assert coordinator.apply(add(0, T0, producer=SECOND)).answer == given(0, SECOND)


def test_admissions_and_markers_go_to_everybody_once() -> None:
    coordinator = TransactionCoordinator(3)
    coordinator.apply(init())
    first = coordinator.apply(add(0, T0, T0, T1)).admissions
    assert [(each.partition, each.epoch) for each in first] == [(T0, 0), (T1, 0)]
    again = coordinator.apply(add(0, T1, groups=("g",))).admissions
    assert [(each.partition, each.group) for each in again] == [(None, "g")]
    markers = coordinator.apply(end(0)).markers
    assert [(each.partition, each.group, each.epoch, each.commit) for each in markers] == [
        (T0, None, 1, True),
        (T1, None, 1, True),
        (None, "g", 1, True),
    ]
    assert coordinator.apply(end(0)).markers == ()


def test_the_next_time_out_is_known() -> None:
    coordinator = TransactionCoordinator(3)
    coordinator.apply(init(at=5))
    assert coordinator.next_expiry_ms() is None
    coordinator.apply(add(0, T0, at=50))
    coordinator.apply(add(0, T1, at=70))
    assert coordinator.next_expiry_ms() == 1050
    markers = coordinator.apply(ExpireTransactions(1050)).markers
    assert len(markers) == 2
    assert coordinator.next_expiry_ms() is None
    known = coordinator.get("tx")
    assert known is not None
    assert known.state is TransactionState.PREPARE_ABORT
    assert coordinator.ids() == ["tx"]
