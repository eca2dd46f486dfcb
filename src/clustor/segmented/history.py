"""When each log entry came and how long it was, for as long as a partition may hold it back."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right


class History:
    """Size and time of each log entry that may still be held, found by raft index."""

    def __init__(self) -> None:
        self._rafts = array("Q")
        self._ends = array("Q")  # bytes of all entries so far, this one included
        self._time_rafts = array("Q")  # where the caller's time changed
        self._times = array("q")
        self.last_index = 0

    def append(self, raft_index: int, log_bytes: int, now: int) -> None:
        self.last_index = raft_index
        before = self._ends[-1] if self._ends else 0
        self._rafts.append(raft_index)
        self._ends.append(before + log_bytes)
        if not self._times or self._times[-1] != now:
            self._time_rafts.append(raft_index)
            self._times.append(now)

    def bytes_from(self, raft_index: int) -> int:
        if not self._rafts:
            return 0
        at = bisect_left(self._rafts, raft_index)
        return self._ends[-1] - (self._ends[at - 1] if at else 0)

    def time_of(self, raft_index: int) -> int:
        at = bisect_right(self._time_rafts, raft_index) - 1
        return self._times[max(at, 0)] if self._times else 0

    def cut(self, from_index: int) -> None:
        keep = bisect_left(self._rafts, from_index)
        del self._rafts[keep:], self._ends[keep:]
        keep = bisect_left(self._time_rafts, from_index)
        del self._time_rafts[keep:], self._times[keep:]
        self.last_index = min(self.last_index, from_index - 1)

    def drop_before(self, raft_index: int) -> None:
        # One older row stays: it is the zero of the sizes and the time of what follows.
        gone = bisect_left(self._rafts, raft_index) - 1
        if gone > 1024:
            del self._rafts[:gone], self._ends[:gone]
            gone = bisect_right(self._time_rafts, raft_index) - 1
            if gone > 0:
                del self._time_rafts[:gone], self._times[:gone]
