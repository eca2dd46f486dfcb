"""How many policy changes the control plane takes in a second (quantumqtt §8.2.1)."""

from __future__ import annotations

from collections import deque
from typing import Final

from clustor.control.draft import Refuse
from clustor.control.types import RefusalCode

POLICY_WRITES_MAX: Final = 200  # quotas, ACLs and certificates
WINDOW_MS: Final = 1_000
RETRY_AFTER_MS_MIN: Final = 250  # clustor §11.1


class PolicyAdmission:
    """The newest policy changes that the audit trail still holds, as (sequence, stamp).

    What left the trail does not count: a machine that was restored knows no more than that.
    """

    def __init__(self) -> None:
        self._accepted: deque[tuple[int, int]] = deque(maxlen=POLICY_WRITES_MAX)

    def check(self, now_ms: int, oldest_sequence: int) -> None:
        """Refuse a change while the window is full; the caller should come again."""
        accepted = self._accepted
        while accepted and accepted[0][0] < oldest_sequence:
            accepted.popleft()
        if len(accepted) == POLICY_WRITES_MAX and now_ms - accepted[0][1] < WINDOW_MS:
            raise Refuse(
                RefusalCode.BUSY,
                "too many policy changes in a second: come again",
                retry_after_ms=max(RETRY_AFTER_MS_MIN, WINDOW_MS - (now_ms - accepted[0][1])),
            )

    def note(self, sequence: int, now_ms: int) -> None:
        self._accepted.append((sequence, now_ms))
