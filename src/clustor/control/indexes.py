"""What follows from the objects and would be slow to count anew for every call.

Never stored: a machine that was restored builds it from its objects, so it cannot disagree.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Protocol


class PlacedGroup(Protocol):
    """What a placement counts for."""

    @property
    def tenant_id(self) -> str | None: ...
    @property
    def load(self) -> int: ...
    @property
    def occupied(self) -> Iterable[int]: ...


class Indexes:
    """Counts and sums, kept up with each change."""

    def __init__(self) -> None:
        self.tenants = 0
        self.partitions = 0
        self.node_load: Counter[int] = Counter()  # units of load by node
        self.node_partitions: Counter[int] = Counter()
        self.tenant_partitions: Counter[str] = Counter()

    def place(self, placement: PlacedGroup, sign: int) -> None:
        """Count a placement in (1) or out (-1)."""
        self.partitions += sign
        if placement.tenant_id is not None:
            self.tenant_partitions[placement.tenant_id] += sign
        for node in placement.occupied:
            self.node_load[node] += sign * placement.load
            self.node_partitions[node] += sign
