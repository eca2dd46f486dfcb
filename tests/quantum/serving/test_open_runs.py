"""Publishes that did not reach the log are not answered, nor is anything behind them."""

from __future__ import annotations

from typing import cast

from quantum.partition.batches import OpenRuns, Run
from quantum.protocols.mqtt.codec import ReasonCode
from quantum.protocols.mqtt.session.connection import Connection


class Publisher:
    """A connection, as far as runs know it."""

    def __init__(self) -> None:
        self.released = 0
        self.ended: list[str] = []

    def release_answers(self) -> None:
        self.released += 1

    def end_soon(self, _reason: ReasonCode, why: str) -> None:
        self.ended.append(why)


def run_of(publisher: Publisher, count: int) -> Run:
    return Run(cast("Connection", publisher), b"", count)


def test_a_command_that_fails_is_not_answered_by_the_next_one() -> None:
    lost, kept = Publisher(), Publisher()
    runs = OpenRuns(0)
    for publisher in (lost, kept):
        runs.add(run_of(publisher, 3))
    runs.lose(0, 2)
    runs.finish(5, [])
    assert lost.ended and not lost.released
    assert kept.released == 1 and not kept.ended
    assert len(runs) == 0


def test_a_run_that_lost_a_part_is_not_answered_at_all() -> None:
    """A long run is cut into several commands; one of them may fail alone."""
    publisher = Publisher()
    runs = OpenRuns(10)
    runs.add(run_of(publisher, 4))
    runs.lose(12, 13)
    runs.finish(13, [])
    assert publisher.ended and not publisher.released
