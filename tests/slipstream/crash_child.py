"""Processes that keep a fold in step with a bucket until they are killed.

Each prints a line of JSON after every flush: what a test needs to know to prove
that a restart got the delta and nothing else.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys

from slipstream import (
    AppliedReport,
    BatchConfig,
    NatsConnection,
    NatsConnectionConfig,
    watch_applied,
)
from slipstream.folds import fold_backend
from slipstream.types import KvUpdate, WatchCursor


async def main(url: str, bucket: str, store: str, path: str, *, finish: bool) -> None:
    connection = NatsConnection(NatsConnectionConfig(url))
    await connection.connect()
    opened = await connection.store(bucket)
    report = AppliedReport()
    lowest: list[int] = []

    async def apply(batch: list[KvUpdate]) -> None:
        revisions = [update.version.as_u64() or 0 for update in batch]
        lowest[:] = [min([*lowest, *revisions])]

    async def say(_: WatchCursor | None) -> None:
        facts = {
            "resumed_from": report.resumed_from.as_u64(),
            "cursor": report.cursor.as_u64(),
            "delivered": report.delivered,
            "lowest": lowest[0] if lowest else None,
            "resynced": report.resynced,
        }
        sys.stdout.write(json.dumps(facts) + "\n")
        sys.stdout.flush()

    with fold_backend(store).load(path) as fold:
        await watch_applied(
            opened.watcher(),
            reader=opened.reader(),
            fold=fold,
            apply=apply,
            on_applied=say,
            report=report,
            config=BatchConfig(window_seconds=0.002, updates_max=20),
            until_caught_up=finish,
        )
        await say(None)
    await connection.shutdown()


def serve() -> None:
    """Start one watch per line of the standard input, each in a process forked from this one.

    This process has imported everything and runs nothing, so a start costs milliseconds; what is
    killed is a whole process all the same.
    """
    for line in sys.stdin:
        url, bucket, store, path, ending = line.split()
        child = os.fork()
        if child == 0:
            asyncio.run(main(url, bucket, store, path, finish=ending == "finish"))
            os._exit(0)
        print(json.dumps({"pid": child}), flush=True)
        _, status = os.waitpid(child, 0)
        print(json.dumps({"ended": os.waitstatus_to_exitcode(status)}), flush=True)


if __name__ == "__main__":
    serve()
