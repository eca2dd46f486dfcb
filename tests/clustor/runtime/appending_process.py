"""Processes that append until they are killed, and say what is durable as soon as it is.

python -m tests.clustor.runtime.appending_process DIRECTORY MODE
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from clustor.log.config import LogConfig
from clustor.log.types import Entry, IoWriterMode, LogIndex, PartitionId, Term
from clustor.runtime.disk import open_mode
from clustor.runtime.keys.store import KEYS_DIRECTORY, load_keyring
from clustor.runtime.partition_log import open_partition_log

CONFIG = LogConfig(segment_bytes=192 << 10, reservation_blocks=16, ledger_rewrite_bytes=8 << 10)


def payload_of(index: int) -> bytes:
    """The bytes of an entry, which anyone can recompute."""
    return (b"%d|" % index) * (index * 7919 % 900)


def main(root: Path, mode: IoWriterMode) -> None:
    keys = load_keyring(root / KEYS_DIRECTORY)
    partition = root / "state" / "1"
    partition.mkdir(parents=True, exist_ok=True)
    opened = open_partition_log(open_mode(mode), partition, keys, CONFIG, create_as=PartitionId(1))
    while True:
        first = opened.log.last_index + 1
        count = 1 + first % 5
        receipt = opened.append(
            [Entry(Term(1), LogIndex(i), payload_of(i)) for i in range(first, first + count)]
        )
        if receipt.index % 97 == 0:
            opened.execute(opened.log.plan_compact(LogIndex(max(1, receipt.index - 2_000))))
        os.write(1, b"%d\n" % receipt.index)


def serve(root: Path, mode: IoWriterMode) -> None:
    """Start one for each line of the standard input, forked from this process.

    This one has imported everything and opened nothing, so a start costs milliseconds; what is
    killed is a whole process all the same. It says the number of each before it says anything of
    its own, and how it ended.
    """
    for _ in sys.stdin:
        child = os.fork()
        if child == 0:
            os.write(1, b"began %d\n" % os.getpid())
            main(root, mode)
        _, status = os.waitpid(child, 0)
        os.write(1, b"ended %d\n" % os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    serve(Path(sys.argv[1]), IoWriterMode[sys.argv[2]])
