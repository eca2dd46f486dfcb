"""Streams of the whole broker under drawn faults; every world of the other tests has them too."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import pytest

from quantum.broker import capturing, publishing, restoring
from quantum.broker.frames import FrozenStreams
from quantum.broker.state import BrokerState
from quantum.broker.stream_table import Stream
from quantum.sim import run_broker_seed

Patch: TypeAlias = pytest.MonkeyPatch
Bug: TypeAlias = Callable[[Patch], None]
SEEDS = range(12)


def test_the_seeds_reach_what_they_are_for() -> None:
    captured = [run_broker_seed(seed).events["captured"] for seed in range(3)]
    assert all(captured), captured


def one_message_in_ten_is_not_captured(patch: Patch) -> None:
    capture = capturing.capture

    def forgetful(state: BrokerState, streams: list[Stream], record: bytes) -> None:
        if state.applied_index % 10:
            capture(state, streams, record)

    patch.setattr(publishing, "capture", forgetful)


def a_message_is_captured_twice_now_and_then(patch: Patch) -> None:
    capture = capturing.capture

    def generous(state: BrokerState, streams: list[Stream], record: bytes) -> None:
        for _ in range(1 if state.applied_index % 10 else 2):
            capture(state, streams, record)

    patch.setattr(publishing, "capture", generous)


def a_restored_replica_captures_nothing(patch: Patch) -> None:
    patch.setattr(restoring, "watch_filters", lambda *_: None)


def a_stream_is_answered_before_the_others_have_it(patch: Patch) -> None:
    patch.setattr(capturing, "_awaited", lambda _state: [])


def the_others_are_not_told(patch: Patch) -> None:
    patch.setattr(capturing, "_others", lambda _state: [])


def offsets_go_back_where_a_replica_begins_anew(patch: Patch) -> None:
    restore = restoring.restore_streams

    def wrong(state: BrokerState, frozen: FrozenStreams) -> None:
        restore(state, frozen)
        for stream in state.streams:
            stream.next_offset = max(stream.start_offset, stream.next_offset - 1)

    patch.setattr(restoring, "restore_streams", wrong)


BUGS: list[Bug] = [
    one_message_in_ten_is_not_captured,
    a_message_is_captured_twice_now_and_then,
    a_restored_replica_captures_nothing,
    a_stream_is_answered_before_the_others_have_it,
    the_others_are_not_told,
    offsets_go_back_where_a_replica_begins_anew,
]


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_planted_bug_is_noticed(bug: Bug, monkeypatch: Patch) -> None:
    bug(monkeypatch)
    assert any(run_broker_seed(seed).violation is not None for seed in SEEDS)
