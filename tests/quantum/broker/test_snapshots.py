"""A snapshot shows one moment, costs little memory, and its reader goes on as the frozen one."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import pytest

from quantum.broker import OWN_ORIGIN, Broker, encode_publishes
from tests.quantum.broker.desk import SETTINGS, Desk, record, spec
from tests.quantum.broker.world import Plan, peopled_world

PAYLOAD = bytes(100_000)


@pytest.mark.parametrize("seed", range(6))
def test_what_is_applied_later_does_not_show(seed: int) -> None:
    world = peopled_world(seed, Plan(queue_messages_max=8))
    world.run(300)
    begun = [(each.broker.digest(), each.broker.snapshot(), each) for each in world.partitions]
    world.run(100)
    for digest, chunks, partition in begun:
        twin = Broker(partition.settings)
        twin.restore(chunks)
        assert twin.digest() == digest


@pytest.mark.parametrize("seed", range(6))
def test_a_log_and_a_snapshot_of_any_place_in_it_lead_to_the_same_state(seed: int) -> None:
    """MQTT-DET-01: equal logs give equal state, wherever a replica began."""
    world = peopled_world(seed, Plan(queue_messages_max=8, replicas=1))
    world.run(400)
    for partition in world.partitions:
        whole = Broker(partition.settings)
        restored = Broker(partition.settings)
        for index, commands in enumerate(partition.log, 1):
            replies = whole.apply_batch(index, commands)
            assert restored.apply_batch(index, commands) == replies
            assert restored.digest() == whole.digest()
            if index % 5 == 0:
                restored = Broker(partition.settings)
                restored.restore(whole.snapshot())


def test_a_frozen_state_has_the_digest_of_its_moment_whatever_comes_later() -> None:
    desk = Desk()
    desk.attach()
    desk.subscribe(spec(b"#"))
    desk.detach()
    desk.leader.apply_batch(9, [_retained_messages()])
    digest = desk.leader.digest()
    pieces, digest_of = desk.leader.frozen()
    desk.leader.apply_batch(10, [_retained_messages()])
    twin = Broker(desk.leader.settings)
    twin.restore(list(pieces))
    assert digest_of() == twin.digest() == digest != desk.leader.digest()


def test_a_snapshot_holds_no_second_copy_of_the_messages() -> None:
    desk = Desk()
    desk.attach()
    desk.subscribe(spec(b"#"))
    desk.detach()
    desk.leader.apply_batch(9, [_retained_messages()])
    tracemalloc.start()
    chunks = desk.leader.snapshot()
    begun, _ = tracemalloc.get_traced_memory()
    total = sum(len(chunk) for chunk in chunks)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert total > 200 * len(PAYLOAD)  # each is retained, and queued
    assert begun < 1 << 20 and peak < 8 << 20


def test_a_digest_holds_no_second_copy_either() -> None:
    broker = Broker(replace(SETTINGS))
    broker.apply_batch(1, [_retained_messages()])
    tracemalloc.start()
    broker.digest()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 << 20


def _retained_messages() -> bytes:
    records = [record(b"t/%d" % number, PAYLOAD, retain=True) for number in range(100)]
    return encode_publishes(1, OWN_ORIGIN, 0, 0, records)
