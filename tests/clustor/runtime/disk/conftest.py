"""One disk of every kind, each with a directory of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from clustor.log.types import IoWriterMode
from clustor.runtime.disk import Disk, Partition, UringDisk
from tests.clustor.runtime.disk.harness import opened


@pytest.fixture(params=list(IoWriterMode), ids=lambda mode: mode.name)
def disk(request: pytest.FixtureRequest) -> Iterator[Disk]:
    with opened(request.param) as disk:
        yield disk


@pytest.fixture(
    params=[IoWriterMode.FIXED_URING, IoWriterMode.REGISTERED_URING], ids=lambda mode: mode.name
)
def ring_disk(request: pytest.FixtureRequest) -> Iterator[UringDisk]:
    with opened(request.param) as disk:
        assert isinstance(disk, UringDisk)
        yield disk


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "partition"
    root.mkdir()
    return root


@pytest.fixture
def partition(disk: Disk, root: Path) -> Partition:
    return disk.open_partition(root)
