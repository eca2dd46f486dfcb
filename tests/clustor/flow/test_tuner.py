"""The auto-tuner's states, and its way back."""

from __future__ import annotations

from clustor.flow import THROUGHPUT_GAINS, AutoTuner, TuneState


def _window(tuner: AutoTuner, errors: list[float], *, fresh: bool = True) -> None:
    for number in range(50):
        tuner.sample(errors[number % len(errors)], fixed_uring=True, cache_fresh=fresh)


def test_it_runs_only_where_its_preconditions_hold() -> None:
    for profile in ("ConsistencyProfile", "ZFS", "Aggregator"):
        tuner = AutoTuner(profile, THROUGHPUT_GAINS)
        _window(tuner, [-0.5])
        assert (tuner.state, tuner.gains) == (TuneState.DISABLED, THROUGHPUT_GAINS)
    tuner = AutoTuner("Throughput", THROUGHPUT_GAINS)
    tuner.sample(-0.5, fixed_uring=False, cache_fresh=True)
    assert tuner.state is TuneState.DISABLED


def test_lasting_overload_strengthens_the_gains_step_by_step_up_to_a_bound() -> None:
    tuner = AutoTuner("WAN", THROUGHPUT_GAINS)
    _window(tuner, [-0.5])
    assert (tuner.state, tuner.adjust_total) == (TuneState.TUNING, 1)
    assert tuner.gains.kp > THROUGHPUT_GAINS.kp
    for _ in range(30):
        _window(tuner, [-0.5])
    assert tuner.gains.kp <= THROUGHPUT_GAINS.kp * 1.5 + 1e-9
    assert tuner.adjust_total == 10


def test_oscillation_brings_the_last_stable_gains_back_and_a_pause() -> None:
    tuner = AutoTuner("Throughput", THROUGHPUT_GAINS)
    _window(tuner, [-0.5])
    _window(tuner, [0.01])
    assert tuner.state is TuneState.STABLE
    stable = tuner.gains
    _window(tuner, [-0.5])
    assert tuner.gains != stable
    _window(tuner, [0.5, -0.5])
    assert (tuner.state, tuner.gains) == (TuneState.REVERTED, stable)
    _window(tuner, [-0.5])
    assert tuner.gains == stable, "it pauses after a revert"


def test_a_stale_cache_disables_it_and_the_profile_s_gains_hold() -> None:
    tuner = AutoTuner("Throughput", THROUGHPUT_GAINS)
    _window(tuner, [-0.5])
    _window(tuner, [-0.5], fresh=False)
    assert (tuner.state, tuner.gains) == (TuneState.DISABLED, THROUGHPUT_GAINS)


def test_idleness_teaches_nothing() -> None:
    tuner = AutoTuner("Throughput", THROUGHPUT_GAINS)
    _window(tuner, [0.9])
    assert (tuner.state, tuner.gains) == (TuneState.OBSERVING, THROUGHPUT_GAINS)
