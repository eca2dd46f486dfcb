"""Ten thousand partitions on real files: opening them is lazy, and nothing of them is lost."""

from __future__ import annotations

import time
from pathlib import Path

from clustor.log.config import LogConfig
from clustor.log.log import create_log
from clustor.log.recovery import recover
from clustor.log.steps import FileName
from clustor.log.types import Entry, LogIndex, Term
from clustor.runtime.disk import BlockingDisk, DirectoryStorage
from clustor.segmented import (
    Automatic,
    Majority,
    PartitionReader,
    PolicyRegistry,
    SegmentedConfig,
    TopicPartitionId,
    create_group,
    recover_group,
)
from tests.clustor.log.harness import MODE, new_keys
from tests.clustor.segmented.harness import ALONE, GROUP, IDENTITY, ME, STORE_ID, batch

PARTITIONS = 10_000
LOG = LogConfig(segment_bytes=8 << 20)
CONFIG = SegmentedConfig()
OPEN_SECONDS_MAX = 5.0


class CountingStorage(DirectoryStorage):
    """Counts the reads of partition files."""

    part_reads = 0

    def read(self, file: FileName, offset: int, length: int) -> bytes:
        self.part_reads += file.startswith("segmented/parts")
        return super().read(file, offset, length)


def test_ten_thousand_partitions_open_in_seconds_and_touch_no_partition_file(
    tmp_path: Path,
) -> None:
    keys = new_keys()
    disk = BlockingDisk(open_files_max=256)
    files = disk.open_partition(tmp_path)
    log, plan = create_log(IDENTITY, keys, LOG, MODE)
    disk.execute(files, plan)
    group, plan = create_group(
        GROUP, STORE_ID, keys, CONFIG, members=ALONE, registry=PolicyRegistry()
    )
    disk.execute(files, plan)
    ids = [TopicPartitionId(at) for at in range(PARTITIONS)]
    defined = group.plan_define({at: (Majority(), Automatic()) for at in ids})
    disk.execute(files, defined.steps)
    group.stored(defined.receipt)

    def append(tag: bytes) -> Entry:
        payload = group.propose([batch(at, tag + b"%d" % at) for at in ids])
        entry = Entry(Term(1), LogIndex(log.last_index + 1), payload)
        planned = log.plan_append([entry])
        disk.execute(files, planned.steps)
        log.stored(planned.receipt)
        group.appended([entry], 0)
        group.fsynced(ME, log.durable_index)
        group.apply([entry])
        return entry

    append(b"first ")
    checkpoint = group.plan_checkpoint()
    disk.execute(files, checkpoint.steps)
    group.stored(checkpoint.receipt)
    append(b"second ")

    storage = CountingStorage(tmp_path)
    opened = recover(storage, keys, LOG, MODE)
    assert opened is not None
    disk.execute(files, opened.plan)
    begin = time.process_time()
    found = recover_group(
        storage,
        keys,
        CONFIG,
        opened.log,
        members=ALONE,
        registry=PolicyRegistry(),
        committed_index=opened.log.durable_index,
        now=0,
    )
    assert found is not None
    disk.execute(files, found.plan)
    found.replay()
    assert time.process_time() - begin < OPEN_SECONDS_MAX
    assert storage.part_reads == 0, "a partition's file is read when it is asked for"
    found.group.acknowledge_through(ME, opened.log.durable_index)
    reader = PartitionReader(storage, keys, CONFIG)
    for at in (0, 777, 9999):
        view = found.group.view(TopicPartitionId(at))
        payloads = [b for chunk in reader.read(view, 0, 1 << 20) for b in chunk.batches()]
        assert [b.payload for b in payloads] == [b"first %d" % at, b"second %d" % at]
    storage.close()
    disk.close()
