"""Groups that our own errors stopped: reported once, opened again on the control plane's word."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any, cast

import pytest

from clustor.control import (
    Answer,
    ClearQuarantine,
    Command,
    Done,
    Quarantine,
    QuarantineCause,
    ReportQuarantine,
)
from clustor.control.objects import canonical
from clustor.kv import KvMachine, StoreId
from clustor.log.types import PartitionId
from clustor.replica import ReplicaDamaged
from clustor.runtime.errors import ControlUnavailable
from clustor.runtime.node import Node
from clustor.runtime.repair.fenced_groups import FencedGroups
from clustor.runtime.repair.fenced_replica import FENCED

ME, GROUP = 1, PartitionId(7)
FAULT = f"{FENCED} (ZeroDivisionError, 12ab)"


class FakeReplica:
    def __init__(self, fault: str = "") -> None:
        self.fault = fault
        self.failed = fault or None
        self.group = SimpleNamespace(core=SimpleNamespace(hard=SimpleNamespace(term=3)))

    @property
    def ready(self) -> bool:
        return self.failed is None


class FakeGroup:
    """A hosted group, as far as it is asked."""

    def __init__(self) -> None:
        self.partition_id, self.replica = GROUP, FakeReplica(FAULT)
        self.idle, self.is_recorded = True, False
        self.quarantine: Any = None
        self.damage: Exception | None = None
        self.opens: Callable[[], FakeReplica] = FakeReplica

    def reopened(self, _now_ms: int) -> FakeReplica:
        return self.opens()


class FakeControl:
    """The control plane: what was called, and the copy that a test changes."""

    def __init__(self) -> None:
        self.cache = KvMachine(StoreId(b"c" * 16))
        self.calls: list[Command] = []
        self.is_there = True
        self.answer: Answer | None = None
        self.seen_revision = 0
        self.group = SimpleNamespace(replica=SimpleNamespace(leader_id=1))

    async def call_for_node(self, command: Command) -> object:
        if not self.is_there:
            raise ControlUnavailable("no leader")
        self.calls.append(command)
        return self.answer

    def has_seen(self, revision: int) -> bool:
        return 0 < revision <= self.seen_revision

    call_as_steward = call_for_node

    def hold(self, cause: QuarantineCause = QuarantineCause.APPLY_FAULT) -> None:
        held = Quarantine(partition_id=int(GROUP), node_id=ME, cause=cause, detail=FAULT, since=1)
        self.cache.change({held.key(): canonical(held)}, 1)

    def release(self) -> None:
        held = Quarantine(
            partition_id=int(GROUP),
            node_id=ME,
            cause=QuarantineCause.APPLY_FAULT,
            detail="",
            since=1,
        )
        self.cache.change({held.key(): None}, 2)


class Stage:
    def __init__(self) -> None:
        self.group, self.control = FakeGroup(), FakeControl()
        self.groups, self.node_id, self.audit = {GROUP: self.group}, ME, None
        self.clock_ms = 1_000
        self.damaged: list[PartitionId] = []
        self.records: dict[PartitionId, object] = {}
        self.quarantines = SimpleNamespace(find=self.records.get, note_damage=self.damaged.append)
        self.fenced = FencedGroups(cast("Node", self), self._run)

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run(work)

    def now_ms(self) -> int:
        return self.clock_ms

    def replace_replica(self, group: FakeGroup, replica: FakeReplica) -> None:
        group.replica = replica

    def look(self, times: int = 1) -> None:
        for _ in range(times):
            self.clock_ms += 6_000
            self.fenced.look()


def reported_stage() -> Stage:
    stage = Stage()
    stage.look()
    stage.control.hold()
    stage.look()
    return stage


def test_it_is_reported_with_its_cause_and_opened_when_the_quarantine_is_ended() -> None:
    stage = reported_stage()
    group, control = stage.group, stage.control
    (report,) = control.calls
    assert isinstance(report, ReportQuarantine) and report.cause is QuarantineCause.APPLY_FAULT
    assert (report.partition_id, report.node_id, report.detail) == (GROUP, ME, FAULT)
    stage.look(3)
    assert group.replica.failed and group.quarantine.cause == "ApplyFault"
    control.release()
    stage.look()
    assert group.replica.ready and group.quarantine is None
    stage.look(3)
    assert control.calls == [report]


def test_it_is_not_opened_before_the_control_plane_knew_of_it() -> None:
    stage = Stage()
    stage.control.is_there = False
    stage.look(3)
    assert stage.group.replica.failed and not stage.control.calls
    stage.control.is_there = True
    stage.look()
    assert len(stage.control.calls) == 1
    assert stage.group.replica.failed, "answered, but the copy does not show it yet"


def test_a_quarantine_that_was_ended_between_two_looks_is_ended() -> None:
    """It would be reported anew, and the operator's word lost."""
    stage = Stage()
    stage.control.answer = Done(5, {})
    stage.look()
    stage.control.seen_revision = 4
    stage.look()
    assert stage.group.replica.failed, "the copy does not show it yet"
    stage.control.seen_revision = 5
    reports = len(stage.control.calls)
    stage.look()
    assert stage.group.replica.ready and stage.group.quarantine is None
    assert len(stage.control.calls) == reports


def test_what_slips_again_is_held_again() -> None:
    stage = reported_stage()
    stage.group.opens = lambda: FakeReplica(FAULT)
    stage.control.release()
    stage.look(2)
    assert stage.group.replica.failed and stage.group.quarantine is not None
    assert len(stage.control.calls) == 2


def test_damage_that_shows_when_it_is_opened_is_the_repairs() -> None:
    stage = reported_stage()

    def damaged() -> FakeReplica:
        raise ReplicaDamaged("not authentic")

    stage.group.opens = damaged
    stage.control.release()
    stage.look()
    assert stage.damaged == [GROUP] and isinstance(stage.group.damage, ReplicaDamaged)
    stage.look()
    assert len(stage.control.calls) == 1, "it is no fault of ours any more"


def test_plans_under_way_end_first() -> None:
    stage = reported_stage()
    stage.control.release()
    stage.group.idle = False
    stage.look()
    assert stage.group.replica.failed
    stage.group.idle = True
    stage.look()
    assert stage.group.replica.ready


@pytest.mark.parametrize(
    ("cause", "cleared"),
    [(QuarantineCause.APPLY_FAULT, True), (QuarantineCause.ADMINISTRATIVE, False)],
)
def test_a_start_takes_back_what_its_last_life_reported_and_nothing_else(
    cause: QuarantineCause, cleared: bool
) -> None:
    stage = Stage()
    stage.group.replica = FakeReplica()
    stage.control.hold(cause)
    stage.look()
    found = [isinstance(each, ClearQuarantine) for each in stage.control.calls]
    assert found == ([True] if cleared else [])


def test_a_replica_that_is_being_rebuilt_is_left_to_that() -> None:
    stage = Stage()
    stage.records[GROUP] = object()
    stage.look(2)
    assert not stage.control.calls and stage.group.quarantine is None
