"""A process that records until it is killed, and says what is durable as soon as it is.

python -m tests.clustor.runtime.auditing_process DIRECTORY FIRST
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from clustor.runtime.audit.keys import open_audit_keys
from clustor.runtime.audit.writer import AuditWriter, WriterLimits
from clustor.security import AuditEvent
from clustor.wall_clock import wall_clock_ms

LIMITS = WriterLimits(seal_seconds=0.01, file_bytes_max=32 << 10)


async def main(root: Path, number: int) -> None:
    keys = open_audit_keys(root / "keys", wall_clock_ms())
    writer = AuditWriter(root / "audit", keys.signer, limits=LIMITS)
    while True:
        events = [
            AuditEvent(who="w", what="Count", outcome="Done", at_ms=1, object=str(number + each))
            for each in range(1 + number % 9)
        ]
        await asyncio.gather(*map(writer.record, events))
        number += len(events)
        os.write(1, b"%d\n" % number)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
