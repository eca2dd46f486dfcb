"""A machine that gives less than wanted: the best that is left is used, and said once."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from clustor.log.types import IoWriterMode
from clustor.runtime.disk import Disk, describe_loss, detect, open_disk
from clustor.runtime.disk.kernel_ring import KernelRing
from clustor.runtime.disk.ring import BUFFER_COUNT


def lock_at_most(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """Let the kernel lock only so many buffers for this user, as `ulimit -l` does."""
    register = KernelRing.register_buffers

    def limited(ring: Any, vector: Any) -> Any:
        if len(vector) > most:
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        return register(ring, vector)

    monkeypatch.setattr(KernelRing, "register_buffers", limited)


def needs_rings(root: Path) -> None:
    if detect(root).mode == IoWriterMode.BLOCKING:
        pytest.skip("the kernel refuses io_uring")


def opened(root: Path) -> Disk:
    disk = open_disk(root)
    disk.close()
    return disk


@pytest.mark.parametrize(("most", "locked"), [(16, 16), (15, 4), (4, 4), (3, 1), (1, 1)])
def test_as_many_buffers_are_registered_as_may_be_locked(
    root: Path, monkeypatch: pytest.MonkeyPatch, most: int, locked: int
) -> None:
    needs_rings(root)
    lock_at_most(monkeypatch, most)
    disk = opened(root)
    assert disk.mode == IoWriterMode.FIXED_URING
    said = describe_loss(disk)
    if locked == BUFFER_COUNT:
        assert said is None
    else:
        assert said is not None and f"only {locked} of {BUFFER_COUNT} buffers" in said


def test_one_ring_is_enough_to_find_out(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second ring may be refused while the kernel still counts the first one's memory."""
    needs_rings(root)
    lock_at_most(monkeypatch, 0)
    begin, begun = KernelRing.__init__, []

    def once(*given: Any) -> Any:
        begun.append(given)
        if len(begun) > 1:
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        return begin(*given)

    monkeypatch.setattr(KernelRing, "__init__", once)
    disk = opened(root)
    assert (disk.mode, len(begun)) == (IoWriterMode.REGISTERED_URING, 1)
    said = describe_loss(disk)
    assert said is not None and "without locked buffers" in said and "ulimit -l" in said


@pytest.mark.parametrize("code", [errno.EPERM, errno.ENOSYS, errno.ENOMEM, errno.EMFILE])
def test_whatever_refuses_io_uring_leaves_a_thread_and_its_cause(
    root: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def refused(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(KernelRing, "__init__", refused)
    disk = opened(root)
    assert disk.mode == IoWriterMode.BLOCKING
    said = describe_loss(disk)
    assert said is not None and os.strerror(code) in said and "writer thread" in said
