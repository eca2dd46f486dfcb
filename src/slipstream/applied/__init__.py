"""A watch whose cursor names only what was applied."""

from slipstream.applied.loop import watch_applied
from slipstream.applied.pending import MAX_STORE_APPLY_FAILURES, Pending, advance
from slipstream.applied.resync import (
    RESYNC_ORDER,
    ResyncStep,
    contradicts,
    needs_resync,
    plan_stale,
)

__all__ = [
    "MAX_STORE_APPLY_FAILURES",
    "RESYNC_ORDER",
    "Pending",
    "ResyncStep",
    "advance",
    "contradicts",
    "needs_resync",
    "plan_stale",
    "watch_applied",
]
