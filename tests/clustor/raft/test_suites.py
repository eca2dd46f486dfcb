"""The public data-driven cases for quorums and configuration changes pass whole."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from clustor.log.types import LogIndex
from clustor.raft.errors import MembershipRefused
from clustor.raft.membership import (
    Change,
    ChangeKind,
    MemberKind,
    Membership,
    change_simply,
    enter_joint,
    leave_joint,
)
from clustor.raft.progress import Progress, adopt_members
from clustor.raft.quorum import UNBOUNDED, joint_vote, majority_vote, reached_by_joint
from clustor.raft.types import ReplicaId
from tests.clustor.raft.suites import Case, numbers, read_cases, suite_files

QUORUM = [case for path in suite_files("quorum") for case in read_cases(path)]
CHANGES = suite_files("confchange")


def _voters(case: Case) -> tuple[list[ReplicaId], list[ReplicaId]]:
    def of(name: str) -> list[ReplicaId]:
        return [ReplicaId(n) for n in numbers(case.facts.get(name, "").replace("zero", ""))]

    return of("cfg"), of("cfgj")


def _given(case: Case, name: str) -> dict[ReplicaId, str]:
    """Map the values of a case to replicas: first those of cfg, then the new ones of cfgj."""
    incoming, outgoing = _voters(case)
    replicas = incoming + [member for member in outgoing if member not in incoming]
    values = re.findall(r"[\w]+", case.facts.get(name, ""))
    return dict(zip(replicas, values, strict=True))


@pytest.mark.parametrize("case", QUORUM, ids=lambda case: case.place)
def test_quorum(case: Case) -> None:
    incoming, outgoing = _voters(case)
    if case.command == "vote":
        votes = {voter: vote == "y" for voter, vote in _given(case, "votes").items() if vote != "_"}
        assert joint_vote(incoming, outgoing, votes) == case.expected
        assert joint_vote(outgoing, incoming, votes) == case.expected
        if not outgoing:
            assert majority_vote(incoming, votes) == case.expected
        return
    indexes = {voter: int(index) for voter, index in _given(case, "idx").items() if index != "_"}
    reached = reached_by_joint(incoming, outgoing, lambda voter: indexes.get(voter, 0))
    assert _picture(incoming, outgoing, indexes) + _number(reached) == case.expected
    if outgoing:  # the order of the two halves must not matter
        assert reached == reached_by_joint(outgoing, incoming, lambda v: indexes.get(v, 0))


def _number(index: int) -> str:
    return "∞" if index == UNBOUNDED else str(index)


def _picture(
    incoming: list[ReplicaId], outgoing: list[ReplicaId], indexes: dict[ReplicaId, int]
) -> str:
    """Draw the voters as the suite does: a bar is as long as the number of lower ones."""
    voters = sorted({*incoming, *outgoing})
    if not voters:
        return "<empty majority quorum>"
    width = len(voters)
    lines = [" " * width + "    idx"]
    for voter in voters:
        index = indexes.get(voter, 0)
        lower = sum(1 for other in voters if indexes.get(other, 0) < index)
        known = voter in indexes
        bar = "x" * lower + ">" + " " * (width - lower) if known else "?" + " " * width
        lines.append(f"{bar} {index:5d}    (id={voter})")
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("path", CHANGES, ids=lambda path: path.stem)
def test_configuration_changes(path: Path) -> None:
    config = Membership()
    progress: dict[ReplicaId, Progress] = {}
    for last_index, case in enumerate(read_cases(path)):
        if not case.expected.startswith("voters="):
            with pytest.raises(MembershipRefused, match=re.escape(case.expected)):
                _change(config, case)
            continue
        config = _change(config, case)
        adopt_members(progress, config, LogIndex(last_index), now_ms=0)
        assert _describe(config, progress) == case.expected, case.place


def _change(config: Membership, case: Case) -> Membership:
    changes = [
        Change(ChangeKind(word[0]), ReplicaId(int(word[1:])))
        for line in case.body
        for word in line.split()
    ]
    match case.command:
        case "simple":
            return change_simply(config, changes)
        case "enter-joint":
            return enter_joint(config, changes, auto_leave=case.facts.get("autoleave") == "true")
        case "leave-joint":
            return leave_joint(config)
        case other:
            raise AssertionError(other)


def _describe(config: Membership, progress: dict[ReplicaId, Progress]) -> str:
    lines = [str(config)]
    for member, known in sorted(progress.items()):
        learner = " learner" if known.kind is MemberKind.LEARNER else ""
        lines.append(
            f"{member}: {known.state} match={known.match_index} next={known.next_index}{learner}"
        )
    return "\n".join(lines)
