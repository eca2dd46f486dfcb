"""When a node asks the control plane again: the loop of clustor §14.2.

The text's loop only sleeps while the cache is Fresh, and its prose wakes every 5 s to confirm
freshness. A wake that asks nothing confirms nothing: we ask in every state.
"""

from __future__ import annotations

from typing import Final

from clustor.raft.control_plane import CacheState
from clustor.raft.profiles import ControlPlaneNumbers

FRESH_MS: Final = 5_000
CACHED_MS_MAX: Final = 5_000
STALE_MS_MAX: Final = 2_500
EXPIRED_MS: Final = 1_000
DELAY_MS_MIN: Final = 100  # near the end of the grace the text's quotient goes to nothing


def remaining_grace_ms(age_ms: int, numbers: ControlPlaneNumbers) -> int:
    return max(0, numbers.cache_grace_ms - age_ms)


def refresh_delay_ms(state: CacheState, age_ms: int, numbers: ControlPlaneNumbers) -> int:
    """Say how long to wait after an attempt before the next one."""
    remaining = remaining_grace_ms(age_ms, numbers)
    match state:
        case CacheState.FRESH:
            return FRESH_MS
        case CacheState.CACHED:
            return max(DELAY_MS_MIN, min(CACHED_MS_MAX, remaining // 4))
        case CacheState.STALE:
            return max(DELAY_MS_MIN, min(STALE_MS_MAX, remaining // 8))
        case CacheState.EXPIRED:
            return EXPIRED_MS
