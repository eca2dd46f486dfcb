"""`quantum up` whose queues' files are small, so that they are soon in need of being carried."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from clustor.runtime.node import Node
from clustor.streams import StreamConfig
from quantum.cli import main as quantum
from quantum.node import amqp_serving

SEGMENT_BYTES = 64 << 10


def shrink() -> None:
    amqp_serving.CARRY_BYTES_MIN = 3 * SEGMENT_BYTES  # type: ignore[misc]
    amqp_serving.KEEP_SECONDS = 0.2  # type: ignore[misc]
    begin: Any = Node.__init__

    def small(self: Node, *args: Any, **kwargs: Any) -> None:
        begin(self, *args, **kwargs)
        small_files = {"segment_bytes": SEGMENT_BYTES, "run_bytes": 8 << 10, "flush_bytes": 8 << 10}
        self.settings = replace(self.settings, stream_config=StreamConfig(**small_files))

    Node.__init__ = small  # type: ignore[method-assign]


if __name__ == "__main__":
    shrink()
    quantum()
