"""Publishes that did not reach the log are not answered, nor is anything behind them."""

from __future__ import annotations

from quantum.partition.batches import OpenBatches, PublishBatch
from quantum.partition.reasons import RefusalReason


class Publisher:
    """A connection, as far as batches know it."""

    def __init__(self) -> None:
        self.finished = 0
        self.lost = 0
        self.refused: list[tuple[object, int, RefusalReason]] = []

    def batch_finished(self) -> None:
        self.finished += 1

    def batch_refused(self, batch: PublishBatch, number: int, reason: RefusalReason) -> None:
        self.refused.append((batch.token, number, reason))

    def batch_lost(self) -> None:
        self.lost += 1


def batch_of(publisher: Publisher, count: int, token: object = None) -> PublishBatch:
    return PublishBatch(publisher, token, count)


def test_a_command_that_fails_is_not_answered_by_the_next_one() -> None:
    lost, kept = Publisher(), Publisher()
    batches = OpenBatches(0)
    for publisher in (lost, kept):
        batches.add(batch_of(publisher, 3))
    batches.lose(0, 2)
    batches.finish(5, [], 9)
    assert lost.lost and not lost.finished
    assert kept.finished == 1 and not kept.lost
    assert len(batches) == 0


def test_a_batch_that_lost_a_part_is_not_answered_at_all() -> None:
    """A long batch is cut into several commands; one of them may fail alone."""
    publisher = Publisher()
    batches = OpenBatches(10)
    batches.add(batch_of(publisher, 4))
    batches.lose(12, 13)
    batches.finish(13, [], 9)
    assert publisher.lost and not publisher.finished


def test_an_owner_hears_which_of_its_publishes_were_refused_and_by_its_own_token() -> None:
    first, second = Publisher(), Publisher()
    batches = OpenBatches(1)
    batches.add(batch_of(first, 2, "one"))
    batches.add(batch_of(second, 3, "two"))
    batches.finish(5, [(4, int(RefusalReason.QUOTA_EXCEEDED)), (5, 0x7777)], 9)
    assert not first.refused and first.finished == second.finished == 1
    assert second.refused == [
        ("two", 1, RefusalReason.QUOTA_EXCEEDED),
        ("two", 2, RefusalReason.SESSION_GONE),  # a number of a newer build is a refusal
    ]
