"""The whole broker under drawn faults: nothing acknowledged is lost, QoS 2 comes once, in order."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import pytest

from quantum.broker import subscribing
from quantum.broker.turned_away import TurnedAway
from quantum.partition.leader import PartitionLeader
from quantum.sim import run_broker_seed

ORDINARY_SEEDS = 30
SOAK_SEEDS = 2_000
BLOCK = 5
Patch: TypeAlias = pytest.MonkeyPatch


@pytest.mark.parametrize("first", range(0, ORDINARY_SEEDS, BLOCK))
def test_nothing_is_lost_or_comes_twice_or_overtakes(first: int) -> None:
    """A block of seeds; `quantum sim --broker --seed S --seeds 1` replays one of them."""
    delivered = 0
    for seed in range(first, first + BLOCK):
        report = run_broker_seed(seed)
        assert report.violation is None, f"{report.replay}\n{report.violation}\n{report.detail}"
        assert report.acknowledged > 0
        delivered += report.events["delivered"]
    assert delivered > 0  # where faults delay the subscriptions, one seed may deliver nothing


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_thousands_of_seeds() -> None:
    for seed in range(ORDINARY_SEEDS, SOAK_SEEDS):
        report = run_broker_seed(seed)
        assert report.violation is None, f"{report.replay}\n{report.violation}\n{report.detail}"


@pytest.mark.parametrize("seed", range(3))
def test_equal_seeds_have_equal_courses(seed: int) -> None:
    assert run_broker_seed(seed) == run_broker_seed(seed)


# Bugs that were there, or could be, planted again: some seed has to notice each.


def subscriptions_are_answered_too_early(patch: Patch) -> None:
    patch.setattr(subscribing, "_awaited", lambda _state, _filters: [])


def what_follows_a_refusal_gets_in(patch: Patch) -> None:
    patch.setattr(TurnedAway, "note", lambda *_facts: None)


def a_new_leader_forgets_what_it_did_not_send(patch: Patch) -> None:
    from quantum.partition.transfers import StreamOut

    begin = StreamOut.__init__

    def forgetful(stream: StreamOut, prg: PartitionLeader, peer: int) -> None:
        begin(stream, prg, peer)
        stream._sent = prg.broker.state.channels.to(peer).last

    patch.setattr(StreamOut, "__init__", forgetful)
    patch.setattr(StreamOut, "send_again", lambda _stream: None)


PLANTED: tuple[tuple[Callable[[Patch], None], range], ...] = (
    (subscriptions_are_answered_too_early, range(60, 120)),
    (what_follows_a_refusal_gets_in, range(60, 120)),
    (a_new_leader_forgets_what_it_did_not_send, range(60, 90)),
)


@pytest.mark.parametrize(
    ("plant", "seeds"), PLANTED, ids=lambda each: getattr(each, "__name__", "")
)
def test_a_planted_bug_is_noticed(
    plant: Callable[[Patch], None], seeds: range, monkeypatch: Patch
) -> None:
    plant(monkeypatch)
    assert any(run_broker_seed(seed).violation is not None for seed in seeds)
