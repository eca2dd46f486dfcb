"""What is not brought back out of an archive: half of a partition."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pytest

from clustor.log.types import LogIndex, PartitionId, Term
from clustor.runtime.errors import DataDirectoryRefused
from clustor.streams.changes import StreamExtent
from quantum.archive import PrgId
from quantum.node.archived_state import ArchivedState
from quantum.node.restoring import RestorePlan, require_whole
from quantum.tenants.broker_file import TenantEntry


class Kept:
    """The streams of a broker, as far as restoring looks at them."""

    def __init__(self, *extents: StreamExtent) -> None:
        self._extents = extents

    def stream_extents(self) -> Iterator[StreamExtent]:
        return iter(self._extents)


def state(*extents: StreamExtent) -> ArchivedState:
    return ArchivedState(
        PrgId("dev", 1),
        PartitionId(1_001),
        TenantEntry("dev", 3),
        cast("Any", Kept(*extents)),
        0,
        LogIndex(7),
        Term(2),
        0,
    )


def test_a_partition_without_streams_is_whole() -> None:
    require_whole(state())


@pytest.mark.parametrize("extent", [StreamExtent(1, 0, 5), StreamExtent(1, 5, 5)])
def test_a_partition_that_holds_streams_is_refused_by_name(extent: StreamExtent) -> None:
    with pytest.raises(DataDirectoryRefused, match=r"streams.*dev/1"):
        require_whole(state(extent))


def test_a_backup_s_entry_goes_before_the_common_place() -> None:
    plan = RestorePlan(points={"dev/1": 9})
    assert plan.point_of(PrgId("dev", 1)).index == 9
    assert plan.point_of(PrgId("dev", 2)) == plan.point
