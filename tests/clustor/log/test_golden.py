"""Golden files: a small log as this release wrote it, which every later one must open.

`python -m tests.clustor.log.test_golden --rewrite` writes them anew; the difference is then a
change of format that a reviewer must see.
"""

from __future__ import annotations

import sys
from pathlib import Path

from clustor.log.ledger import LEDGER_FILE, scan_ledger
from clustor.log.recovery import recover
from clustor.log.scan import SegmentScanner
from clustor.log.segment import decode_index, index_file
from clustor.log.steps import Create, FileName, MakeDirectory, WriteFile
from clustor.log.types import LogState
from clustor.sim.disk import SimDisk
from tests.clustor.log.fuzz import FAMILIES
from tests.clustor.log.harness import (
    MODE,
    World,
    append,
    new_keys,
    overwrite,
    read_back,
    run,
    seal,
)
from tests.clustor.log.rot import TINY, contents_of, files_of, restart, transition

GOLDEN = Path(__file__).parent / "golden"


def golden_world() -> World:
    """A small log with a closed segment, an open one, and every family of ledger record."""
    world = World.new(TINY)
    for operation in (
        append(10, 0, 30),
        restart(),
        overwrite(2, 20),
        transition(),
        append(7),
        seal(),
        append(4200),
        append(1),
    ):
        run(world, operation)
    return world


def golden_files() -> dict[str, bytes]:
    disk = golden_world().disk
    return {file: contents_of(disk, file) for file in files_of(disk)}


def rewrite_golden() -> None:
    for file, data in golden_files().items():
        target = GOLDEN / file
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)


def stored_golden() -> dict[str, bytes]:
    paths = (path for path in GOLDEN.rglob("*") if path.is_file())
    return {path.relative_to(GOLDEN).as_posix(): path.read_bytes() for path in paths}


def test_the_writer_still_writes_the_golden_files() -> None:
    stored, written = stored_golden(), golden_files()
    assert sorted(stored) == sorted(written)
    for file in written:
        assert stored[file] == written[file], file


def test_the_golden_ledger_has_every_family() -> None:
    records = scan_ledger(stored_golden()[LEDGER_FILE]).records
    families = {type(record.body) for record in records}
    assert families == {type(body) for body in FAMILIES}


def test_the_golden_log_still_opens() -> None:
    disk = SimDisk()
    disk.execute((MakeDirectory("wal"),))
    for name, data in stored_golden().items():
        disk.execute((Create(FileName(name)), WriteFile(FileName(name), 0, data)))
    keys = new_keys()
    recovery = recover(disk, keys, TINY, MODE)
    assert recovery is not None
    assert (recovery.state, recovery.findings) == (LogState.HEALTHY, [])
    assert read_back(disk, keys, recovery.log) == golden_world().contents
    assert [len(payload) for _, payload in golden_world().contents[1]] == [10, 20, 7, 4200, 1]
    for seq, runs in ((1, [3]), (2, [1, 1])):
        closed = SegmentScanner(disk, seq, keys)
        assert [run.header.entry_count for run in closed.runs()] == runs
        assert closed.trailer is not None
        assert decode_index(stored_golden()[index_file(seq)], seq) == bytes(closed.tally.offsets)


if __name__ == "__main__" and "--rewrite" in sys.argv:
    rewrite_golden()
