"""clustor §10.1: when a device counts as slow, and when as well again."""

from __future__ import annotations

import pytest

from clustor.runtime.disk import DeviceLatency

MS = 1_000_000
THRESHOLD = 20 * MS


def verdicts(durations_ms: list[float], *, every_ms: int = 1000) -> str:
    """Feed samples `every_ms` apart; `S` stands for slow, `-` for well."""
    device = DeviceLatency(THRESHOLD)
    seen = ""
    for number, duration in enumerate(durations_ms):
        slow = device.observe(number * every_ms * MS, int(duration * MS))
        assert slow == device.is_slow
        seen += "S" if slow else "-"
    return seen


CASES: dict[str, tuple[list[float], int, str]] = {
    "two in a row are not enough": ([30, 30, 1, 30, 30], 1000, "-----"),
    "three in a row are": ([30, 30, 30], 1000, "--S"),
    "the threshold itself is not above it": ([20, 20, 20, 20], 1000, "----"),
    "one huge sample alone is no average": ([5000, 1, 1], 1000, "---"),
    "five below 80 % recover": ([30, 30, 30, 15, 15, 15, 15, 15, 15], 1000, "--SSSSS--"),
    "80 % itself is not below it": ([30, 30, 30, 16, 16, 16, 16, 16], 1000, "--SSSSSS"),
    "a sample between interrupts the recovery": (
        [30, 30, 30, 1, 1, 1, 1, 17, 1, 1, 1, 1, 1],
        1000,
        "--SSSSSSSSSS-",
    ),
    "a slow half second": ([1, 100, 1, 100, 1], 100, "--SSS"),
    "what is older than the window does not count": ([100, 1, 1, 1, 1, 1, 1], 300, "-------"),
    "slow again needs three again": ([30, 30, 30, 1, 1, 1, 1, 1, 30, 30, 30], 1000, "--SSSSS---S"),
    "recovery forgets the slow half second": ([100.0] * 3 + [1.0] * 8, 10, "--SSSSS----"),
}


@pytest.mark.parametrize(("durations", "every_ms", "expected"), CASES.values(), ids=CASES.keys())
def test_the_verdict_after_each_sample(
    durations: list[float], every_ms: int, expected: str
) -> None:
    assert verdicts(durations, every_ms=every_ms) == expected


def test_memory_is_bounded_however_fast_samples_come() -> None:
    device = DeviceLatency(THRESHOLD)
    for number in range(200_000):
        device.observe(number, MS)
    assert len(device._window) <= 65_536
    assert device._window_sum_ns == MS * len(device._window)
