"""One seed, from its scenario to its verdict; and how a failing one is made smaller."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from clustor.sim.clients import Clients
from clustor.sim.cluster import SimCluster
from clustor.sim.errors import PromiseBroken
from clustor.sim.linearizability import Undecided, Violation, check
from clustor.sim.models import KeyValue
from clustor.sim.scenario import MS, SECOND, Fault, Scenario
from clustor.sim.timeline import Microseconds

LIVENESS_LIMIT = 30 * SECOND
_STEP = 200 * MS
_LINEARIZABILITY_BUDGET = 300_000


@dataclass(slots=True)
class SeedReport:
    """What one seed came to."""

    seed: int
    trace_hash: str = ""
    violation: str | None = None
    detail: str = ""  # where the violation was noticed
    simulated_seconds: float = 0.0
    faults: dict[str, int] = field(default_factory=dict)
    events: dict[str, int] = field(default_factory=dict)
    acknowledged: int = 0
    operations: int = 0
    undecided: bool = False
    scenario: Scenario | None = None
    flags: str = ""

    @property
    def replay(self) -> str:
        return f"quantum sim {self.flags}--seed {self.seed} --seeds 1"


def run_seed(seed: int) -> SeedReport:
    """Run the scenario that a seed stands for."""
    return run_scenario(Scenario.drawn(seed))


def run_scenario(scenario: Scenario) -> SeedReport:
    """Run faults, then heal and wait for life, then judge. Whatever is raised is a violation."""
    violation: str | None = None
    detail = ""
    undecided = False
    cluster: SimCluster | None = None
    try:
        cluster = SimCluster(scenario)
        cluster.run_until(scenario.duration)
        _come_to_rest(cluster)
        undecided = _judge(cluster)
    except PromiseBroken as broken:
        violation = str(broken)
        detail = _where(broken)
    except Exception as error:  # noqa: BLE001  # code that raises breaks its promise too
        violation = f"{type(error).__name__}: {error}"
        detail = _where(error)
    return _report(scenario, cluster, violation, detail, undecided=undecided)


def _clients(cluster: SimCluster) -> Clients:
    assert isinstance(cluster.crowd, Clients)
    return cluster.crowd


def _where(error: BaseException) -> str:
    return "".join(traceback.format_exception(error, limit=-12))


def _come_to_rest(cluster: SimCluster) -> None:
    """After healing every group must elect, catch up, mend its members and answer."""
    cluster.injection.heal()
    _clients(cluster).probing = True
    end = cluster.timeline.now + LIVENESS_LIMIT
    while not _is_at_rest(cluster):
        if cluster.timeline.now >= end:
            raise PromiseBroken(f"no life after healing: {_what_is_missing(cluster)}")
        cluster.run_until(Microseconds(cluster.timeline.now + _STEP))


def _is_at_rest(cluster: SimCluster) -> bool:
    return not _what_is_missing(cluster)


def _what_is_missing(cluster: SimCluster) -> str:
    for group, control in enumerate(cluster.controls):
        leader = cluster.leader(group)
        if leader is None:
            return f"group {group} has no leader"
        if group not in _clients(cluster).probes_answered:
            return f"group {group} answers no write"
        if not control.settled(leader):
            config = leader.running.group.core.config
            owed = sorted(control.needs_reset)
            return f"group {group}: {config}, not {sorted(control.wanted)}, to reset {owed}"
        floor = max(cluster.judges[group].acknowledged, default=0)
        for voter in sorted(leader.running.group.core.config.voters):
            seat = leader.peer(voter)
            if seat.replica is None or seat.replica.applied_index < floor:
                return f"group {group}: {voter} has not applied {floor}"
    return ""


def _judge(cluster: SimCluster) -> bool:
    """Judge disks, logs, states and the clients' history; return whether that was undecided."""
    for group, judge in enumerate(cluster.judges):
        leader = cluster.leader(group)
        assert leader is not None
        members = [leader.peer(v) for v in sorted(leader.running.group.core.config.voters)]
        judge.check_matching([(seat.replica_id, seat.entries_on_disk()) for seat in members])
        for seat in members:
            judge.check_acknowledged(seat.view, seat.replica_id)
            seat.check_replay()
    verdict = check(
        _clients(cluster).history.operations(), KeyValue(), budget=_LINEARIZABILITY_BUDGET
    )
    if isinstance(verdict, Violation):
        raise PromiseBroken(f"not linearizable: {verdict.explanation}")
    return isinstance(verdict, Undecided)


def _report(
    scenario: Scenario,
    cluster: SimCluster | None,
    violation: str | None,
    detail: str,
    *,
    undecided: bool,
) -> SeedReport:
    report = SeedReport(
        scenario.seed, "", violation, detail, undecided=undecided, scenario=scenario
    )
    if cluster is None:
        return report
    report.trace_hash = cluster.trace_hash()
    report.simulated_seconds = cluster.timeline.now / SECOND
    for name, count in sorted(cluster.counts.items()):
        kind, _, fault = name.partition(" ")
        if kind == "fault":
            report.faults[fault] = count
        else:
            report.events[name] = count
    report.acknowledged = sum(judge.acknowledged_writes for judge in cluster.judges)
    report.operations = _clients(cluster).begun
    return report


# Making a failing seed smaller.


def shrink(
    scenario: Scenario, *, fails: Callable[[Scenario], bool] | None = None
) -> tuple[Scenario, int]:
    """Return a smaller scenario that still fails, and how many runs it took to find it.

    First less time and fewer operations, then faults are taken out: halves, quarters, single ones.
    """
    still_fails = fails or (lambda smaller: run_scenario(smaller).violation is not None)
    runs = 0
    best = scenario
    for candidate in _shorter(scenario):
        runs += 1
        if still_fails(candidate):
            best = candidate
            break
    size = max(1, len(best.faults) // 2)
    while size:
        at = 0
        while at < len(best.faults):
            candidate = best.smaller(faults=best.faults[:at] + best.faults[at + size :])
            runs += 1
            if still_fails(candidate):
                best = candidate
            else:
                at += size
        size //= 2
    return best, runs


def _shorter(scenario: Scenario) -> Iterator[Scenario]:
    for eighths in range(1, 8):
        duration = Microseconds(scenario.duration * eighths // 8)
        yield scenario.smaller(duration=duration)
        yield scenario.smaller(
            duration=duration, operations_max=max(1, scenario.operations_max // 2)
        )


def describe(faults: tuple[Fault, ...]) -> list[str]:
    """Write faults for people."""
    return [f"{fault.at / MS:10.3f} ms  {fault.kind}  salt={fault.salt}" for fault in faults]
