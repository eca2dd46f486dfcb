"""`simulate`: the ring of a fleet, against the ring itself and the specification's formulas."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from quantum.lake.jobs.simulate import Fleet, hash_clients, jump_many, simulate
from quantum.lake.refusals import BadOption
from quantum.routing.ring import HashRing, jump
from quantum.types import ClientId, TenantId

FLEET = Fleet(sessions=200_000, prgs=40, grown_prgs=44, cross_ratio=0.5, nodes=10)


def test_many_keys_are_placed_as_each_one_is() -> None:
    rng = random.Random(3)
    keys = [rng.getrandbits(64) for _ in range(2_000)] + [0, 1, (1 << 64) - 1]
    for count in (1, 2, 3, 10, 2_000):
        placed = jump_many(np.array(keys, np.uint64), count).tolist()
        assert placed == [jump(key, count) for key in keys]


def test_clients_are_hashed_as_the_ring_hashes_them() -> None:
    placed = jump_many(hash_clients("acme", 5, 305, 7), 64).tolist()
    ring = HashRing(seed=7)
    assert placed == [
        ring.session_partition(TenantId("acme"), ClientId(b"c%d" % number), 64)
        for number in range(5, 305)
    ]


def test_the_load_is_even_and_growth_moves_only_to_new_partitions() -> None:
    found = simulate(FLEET)
    assert found.sessions_min > 0.9 * found.sessions_mean
    assert found.sessions_max < 1.1 * found.sessions_mean
    assert found.prgs_beyond_variance == 0
    assert found.moved_between_old == 0
    assert found.moved_ratio == pytest.approx(4 / 44, rel=0.05)
    assert found.moved_ratio_expected == pytest.approx(4 / 44)


@pytest.mark.parametrize("ratio", [0.0, 0.3, 0.5, 0.8, 1.0])
def test_throughput_follows_the_model_of_section_14_5(ratio: float) -> None:
    found = simulate(replace(FLEET, cross_ratio=ratio))
    capacity = 40 * 500
    assert found.tps_model == pytest.approx(capacity / (1 + 2 * ratio))
    assert found.tps_even == pytest.approx(found.tps_model, rel=0.02)
    assert found.cross_ratio == pytest.approx(ratio, abs=0.01)
    assert 0.85 * found.tps_even < found.tps_hottest <= found.tps_even


def test_the_specifications_examples() -> None:
    small = Fleet(sessions=1_000, prgs=2_000, grown_prgs=2_000)
    assert simulate(replace(small, cross_ratio=0.5)).tps_model == pytest.approx(500_000)
    assert simulate(replace(small, cross_ratio=0.8)).tps_model == pytest.approx(384_000, rel=0.002)


def test_a_fleet_that_cannot_be_is_refused() -> None:
    for fleet in (
        replace(FLEET, grown_prgs=39),
        replace(FLEET, sessions=0),
        replace(FLEET, cross_ratio=1.5),
        Fleet(sessions=5, prgs=1, grown_prgs=1),
    ):
        with pytest.raises(BadOption):
            simulate(fleet)
