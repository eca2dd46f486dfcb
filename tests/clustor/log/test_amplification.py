"""What a payload costs on disk: at 8 KiB in ordinary batches at most a fifth more than itself."""

from __future__ import annotations

import pytest

from clustor.log.config import LogConfig
from clustor.log.ledger import LEDGER_FILE
from clustor.log.steps import FileName
from clustor.log.types import Entry, LogIndex, Term
from tests.clustor.log.harness import World

PAYLOAD_BYTES = 8192
ENTRIES = 4096
FACTOR_MAX = 1.2


def bytes_on_disk(batch: int, config: LogConfig) -> tuple[int, World]:
    world = World.new(config)
    for first in range(1, ENTRIES + 1, batch):
        planned = world.log.plan_append(
            [
                Entry(Term(1), LogIndex(first + nth), bytes([nth % 251]) * PAYLOAD_BYTES)
                for nth in range(batch)
            ]
        )
        world.disk.execute(planned.steps)
        world.log.stored(planned.receipt)
    world.disk.execute(world.log.plan_seal())
    names = [FileName(f"wal/{name}") for name in world.disk.names("wal")]
    return sum(world.disk.size(name) for name in names), world


@pytest.mark.parametrize("merkle", [False, True], ids=["crc", "crc and merkle"])
@pytest.mark.parametrize("batch", [16, 64])
def test_8_kib_payloads_cost_at_most_a_fifth_more(batch: int, merkle: bool) -> None:
    total, world = bytes_on_disk(batch, LogConfig(segment_bytes=8 << 20, merkle=merkle))
    factor = total / (ENTRIES * PAYLOAD_BYTES)
    assert world.log.open_segment() is None
    assert len(world.log.closed_segments()) >= 4
    assert world.disk.size(LEDGER_FILE) > 0
    assert 1.0 < factor <= FACTOR_MAX, f"{factor:.4f} times the payload in batches of {batch}"
    print(f"{factor:.4f} times the payload in batches of {batch}")
