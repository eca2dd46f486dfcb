"""Many streams of one partition each on one node cost little, and no sync of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.interop.broker_process import BrokerProcess
from tests.interop.many_streams import ManyStreams, measure

BYTES_EACH_MAX = 4_096
START_SECONDS_MAX = 30.0


def measured(data: Path, count: int) -> ManyStreams:
    with BrokerProcess(data, partitions=1) as broker:
        found = measure(broker, count)
    print(found)
    return found


def check(tmp_path: Path, count: int) -> None:
    one, many = measured(tmp_path / "one", 1), measured(tmp_path / "many", count)
    assert many.bytes_each <= BYTES_EACH_MAX
    assert many.start_seconds <= START_SECONDS_MAX
    assert many.syncs_per_publish <= 1.1 * one.syncs_per_publish + 0.1


def test_a_thousand_streams_cost_little_and_no_sync_of_their_own(tmp_path: Path) -> None:
    check(tmp_path, 1_000)


@pytest.mark.soak
def test_ten_thousand_streams_cost_little_and_no_sync_of_their_own(tmp_path: Path) -> None:
    check(tmp_path, 10_000)
