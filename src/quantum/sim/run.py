"""One seed of the broker, from its faults to its verdict."""

from __future__ import annotations

import traceback
from collections import Counter
from dataclasses import replace

from clustor.runtime.containment import contained
from clustor.sim.errors import PromiseBroken
from clustor.sim.run import SeedReport
from clustor.sim.scenario import MS, SECOND, FaultKind, Scenario
from clustor.sim.timeline import Microseconds
from quantum.protocols.mqtt.codec import ProtocolVersion
from quantum.sim.captures import judge_captures
from quantum.sim.clients import SimPublisher, SimSubscriber
from quantum.sim.world import BrokerWorld

LIVENESS_LIMIT = 60 * SECOND
_STEP = 200 * MS
_NOT_HERE = frozenset({FaultKind.MEMBERSHIP})
"""The members stay: every node of a broker hosts every partition."""


def broker_scenario(seed: int) -> Scenario:
    """Draw what a seed means for a broker: three nodes, and the faults that a broker can meet."""
    drawn = Scenario.drawn(seed)
    return replace(
        drawn,
        size=3,
        spares=0,
        groups=1 + seed % 3,
        clients=2 + seed % 3,
        operations_max=40 + seed % 5 * 20,
        snapshot_log_bytes=max(drawn.snapshot_log_bytes, 4_000),
        faults=tuple(fault for fault in drawn.faults if fault.kind not in _NOT_HERE),
    )


def run_broker_seed(seed: int) -> SeedReport:
    """Run faults, then heal and wait until everything arrived, then judge."""
    return run_broker_scenario(broker_scenario(seed))


def run_growing_seed(seed: int) -> SeedReport:
    """Run the same while the tenant's ring grows."""
    scenario = broker_scenario(seed)
    grown = replace(scenario, groups=scenario.groups + 1 + seed % 2)
    return run_broker_scenario(grown, prgs=scenario.groups)


def run_sickly_seed(seed: int) -> SeedReport:
    """Run the same while partitions may not take part in exchanges, now and then."""
    scenario = broker_scenario(seed)
    return run_broker_scenario(replace(scenario, groups=2 + seed % 2), is_sickly=True)


def run_broker_scenario(
    scenario: Scenario, prgs: int | None = None, *, is_sickly: bool = False
) -> SeedReport:
    """Run one. Whatever is raised is a violation. `prgs`: the ring grows from so many."""
    report = SeedReport(scenario.seed, scenario=scenario, flags="--broker ")
    world: BrokerWorld | None = None
    try:
        with contained.raised():
            world = BrokerWorld(scenario, prgs, is_sickly=is_sickly)
            world.run_until(scenario.duration)
            _come_to_rest(world)
            _judge(world)
    except PromiseBroken as broken:
        report.violation, report.detail = str(broken), where(broken)
    except Exception as error:  # noqa: BLE001  # code that raises breaks its promise too
        report.violation, report.detail = f"{type(error).__name__}: {error}", where(error)
    if world is not None:
        _fill(report, world)
    return report


def where(error: BaseException) -> str:
    return "".join(traceback.format_exception(error, limit=-12))


def _fill(report: SeedReport, world: BrokerWorld) -> None:
    report.trace_hash = world.trace_hash()
    report.simulated_seconds = world.timeline.now / SECOND
    for name, count in sorted(world.counts.items()):
        kind, _, fault = name.partition(" ")
        if kind == "fault":
            report.faults[fault] = count
    report.acknowledged = sum(len(each.acknowledged) for each in world.publishers)
    report.operations = report.acknowledged + sum(len(each.refused) for each in world.publishers)
    report.events["delivered"] = sum(len(each.deliveries) for each in world.subscribers)
    report.events["captured"] = world.counts["captured"]
    report.events["connects"] = sum(each.connects for each in world.clients)


def _come_to_rest(world: BrokerWorld) -> None:
    """After healing every publish is answered, and every subscriber gets what it waits for."""
    world.injection.heal()
    world.links.are_calm = True
    end = world.timeline.now + LIVENESS_LIMIT
    while missing := _what_is_missing(world):
        if world.timeline.now >= end:
            raise PromiseBroken(f"no life after healing: {missing}")
        world.run_until(Microseconds(world.timeline.now + _STEP))


def _what_is_missing(world: BrokerWorld) -> str:
    for group in range(world.scenario.groups):
        if world.leader(group) is None:
            return f"partition {group} has no leader"
    if world.is_growing and not world.has_grown:
        return "the ring has not grown"
    if not world.captures.are_everywhere:
        return "the captures are not everywhere"
    for subscriber in world.subscribers:
        if not subscriber.is_subscribed:
            return f"{subscriber.name} is not subscribed"
    for publisher in world.publishers:
        if not publisher.is_idle:
            return f"{publisher.name} waits for answers, at {publisher.next_number}"
    for subscriber in world.subscribers:
        if absent := _absent(world, subscriber):
            return f"{subscriber.name} lacks {sorted(absent)[:5]} of {len(absent)}"
    for group, judge in enumerate(world.judges):
        leader = world.leader(group)
        assert leader is not None
        for seat in (node.seats[group] for node in world.nodes.values()):
            floor = max(judge.acknowledged, default=0)
            if seat.replica is None or seat.replica.applied_index < floor:
                return f"partition {group}: {seat.replica_id} has not applied {floor}"
    return ""


def _absent(world: BrokerWorld, subscriber: SimSubscriber) -> set[tuple[str, int]]:
    """What was acknowledged after the subscription was, and did not arrive."""
    got = {(publisher, number) for publisher, _, number in subscriber.deliveries}
    return {
        (publisher.name, number)
        for publisher in world.publishers
        for number in publisher.acknowledged - publisher.before_subscriptions
        if subscriber.wants(_topic(publisher, number)) and (publisher.name, number) not in got
    }


def _topic(publisher: SimPublisher, number: int) -> str:
    return publisher.topics[number % len(publisher.topics)]


def _judge(world: BrokerWorld) -> None:
    """Nothing lost, at QoS 2 nothing twice, order kept; and all that a group promises."""
    qos = {publisher.name: publisher.qos for publisher in world.publishers}
    for subscriber in world.subscribers:
        _judge_counts(subscriber, qos)
        _judge_order(world, subscriber)
    for client in world.clients:
        if client.sessions_lost:
            raise PromiseBroken(f"{client.name} lost its session")
    for group, judge in enumerate(world.judges):
        seats = [node.seats[group] for node in world.nodes.values()]
        judge.check_matching([(seat.replica_id, seat.entries_on_disk()) for seat in seats])
        for seat in seats:
            judge.check_acknowledged(seat.view, seat.replica_id)
            seat.check_replay()
    judge_captures(world)


def _judge_counts(subscriber: SimSubscriber, qos: dict[str, int]) -> None:
    counts = Counter((publisher, number) for publisher, _, number in subscriber.deliveries)
    for (publisher, number), count in counts.items():
        if count > 1 and min(qos[publisher], subscriber.qos) == 2:
            raise PromiseBroken(f"{subscriber.name} got {publisher}'s {number} {count} times")


def _may_come_anywhere(publisher: SimPublisher) -> set[int]:
    """Name what need not come in order, because it was first said to nobody, or refused.

    MQTT 5 says no to one publish and yes to the next. If the no is lost with the connection,
    the client sends the first one again.
    """
    if publisher.version is ProtocolVersion.V5:
        return publisher.before_subscriptions | publisher.said_again
    return publisher.before_subscriptions


def _judge_order(world: BrokerWorld, subscriber: SimSubscriber) -> None:
    anywhere = {each.name: _may_come_anywhere(each) for each in world.publishers}
    last: dict[tuple[str, str], int] = {}
    seen: set[tuple[str, int]] = set()
    for publisher, topic, number in subscriber.deliveries:
        if (publisher, number) in seen or number in anywhere[publisher]:
            continue  # a repetition at QoS 1 may come late
        seen.add((publisher, number))
        before = last.get((publisher, topic), 0)
        if number < before:
            raise PromiseBroken(f"{subscriber.name}: {publisher}'s {number} behind {before}")
        last[publisher, topic] = number
