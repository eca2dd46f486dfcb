"""What follows from the objects and would be slow to count anew for every call.

Never stored: a machine that was restored builds it from its objects, so it cannot disagree.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clustor.control.placement import Placement


class Indexes:
    """Counts and sums, kept up with each change."""

    def __init__(self) -> None:
        self.tenants = 0
        self.partitions = 0
        self.node_load: Counter[int] = Counter()  # units of load by node
        self.node_partitions: Counter[int] = Counter()
        self.tenant_partitions: Counter[str] = Counter()

    def place(self, placement: Placement, sign: int) -> None:
        """Count a placement in (1) or out (-1)."""
        self.partitions += sign
        if placement.tenant_id is not None:
            self.tenant_partitions[placement.tenant_id] += sign
        for node in placement.occupied:
            self.node_load[node] += sign * placement.load
            self.node_partitions[node] += sign
