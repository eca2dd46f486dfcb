"""WhyDurabilityMode: the clause, the sentence and what to do, for each way a mode can differ."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clustor.log.group_fsync import GroupFsyncClause
from clustor.log.types import DurabilityMode
from clustor.telemetry import ModeReading, explain_mode
from clustor.telemetry.why import ExplanationPlace, plain

STRICT, GROUP = DurabilityMode.STRICT, DurabilityMode.GROUP_FSYNC
PLACE = ExplanationPlace(1, 7, 3, 0, "trace")
AT_REST = ModeReading(
    leads=True,
    leader_id=1,
    mode=STRICT,
    epoch=0,
    placed_mode=STRICT,
    placed_epoch=0,
    clause=GroupFsyncClause.NONE,
    clamped=False,
)
WANTED = replace(AT_REST, placed_mode=GROUP, placed_epoch=1)
RUNS = replace(AT_REST, mode=GROUP, epoch=1, placed_mode=GROUP, placed_epoch=1)

CASES = {
    "as placed": (AT_REST, "None", "is in Strict"),
    "no control plane": (replace(AT_REST, placed_mode=None), "None", "is in Strict"),
    "in Group-Fsync": (RUNS, "None", "is in Group-Fsync"),
    "on its way": (WANTED, "FenceUnderWay", "on its way"),
    "back to Strict": (
        replace(RUNS, placed_mode=STRICT, placed_epoch=2),
        "FenceUnderWay",
        "Strict (epoch 2) is placed",
    ),
    "clamped": (
        replace(RUNS, clamped=True, clause=GroupFsyncClause.DOWNGRADE_BACKOFF),
        "DowngradeBackoff",
        "writes in Strict all the same",
    ),
    "a follower": (
        replace(WANTED, leads=False, leader_id=2, clause=None, recorded_clause="DeviceLatency"),
        "DeviceLatency",
        "node 2 leads",
    ),
    "a follower of nobody": (
        replace(WANTED, leads=False, leader_id=None, clause=None),
        "NotLeader",
        "nobody leads it",
    ),
    **{
        str(clause): (replace(WANTED, clause=clause), clause.value, f"{clause} forbids it")
        for clause in GroupFsyncClause
        if clause is not GroupFsyncClause.NONE
    },
}


@pytest.mark.parametrize(("facts", "clause", "words"), CASES.values(), ids=CASES.keys())
def test_why_durability_mode(facts: ModeReading, clause: str, words: str) -> None:
    why = explain_mode(facts)
    assert why.clause == clause
    assert words in why.sentence
    assert why.holds is (clause != "None")
    assert plain(PLACE, why)["question"] == "WhyDurabilityMode"  # type: ignore[index]


def test_every_refusal_has_a_remedy() -> None:
    for clause in GroupFsyncClause:
        if clause is not GroupFsyncClause.NONE:
            assert explain_mode(replace(WANTED, clause=clause)).remedy
