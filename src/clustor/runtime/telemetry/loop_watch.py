"""What blocks a node's loop, and how late its ticks come: C19's measure, and who is to blame.

Everything of a node happens in one thread. A callback that takes 100 ms there is 100 ms in which
no heartbeat leaves, so each one that matters is timed where it begins and ends, and those over
20 ms are named. In development a thread looks on as well: it sees the place itself, also of what is
not timed, while it blocks.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from types import FrameType
from typing import Final

from clustor.telemetry.meters import Histogram

SLOW_NS: Final = 20_000_000
ALARMING_NS: Final = 100_000_000
"""Two heartbeats: who looks after a node is to hear of it. What is shorter is only counted."""
LAG_MS: Final = (1.0, 2.0, 5.0, 10.0, 20.0, 40.0, 60.0, 80.0, 100.0, 150.0, 300.0, 1000.0)
NAMES_MAX: Final = 64
SAMPLES_MAX: Final = 1_000
"""Ten seconds of ticks: what was late before that says nothing of now."""
_NS_PER_MS: Final = 1_000_000
_SAMPLER_SECONDS: Final = 0.020
_LINES: Final = 3

journal = logging.getLogger("clustor.loop")


class LoopWatch:
    """The lateness of one loop. It belongs to the loop's thread; `beat_ns` may be read by any."""

    __slots__ = (
        "_append_ms",
        "_samples",
        "beat_ns",
        "disk_queue_ms",
        "disk_seen_late_ms",
        "lag_ms",
        "longest_gap_ms",
        "slow_callbacks",
        "turns",
    )

    def __init__(self) -> None:
        self.lag_ms = Histogram(LAG_MS)
        """How late each tick came."""
        self.disk_seen_late_ms = Histogram(LAG_MS)
        """How long what the disk had done was not looked at."""
        self.disk_queue_ms = Histogram(LAG_MS)
        """How long plans waited behind others before the disk had them."""
        self.longest_gap_ms = 0.0
        """The longest time between two ticks since the node began."""
        self.slow_callbacks: dict[str, int] = {}
        """How often a callback took more than 20 ms, by its name; at most `NAMES_MAX` names."""
        self.turns = 0
        """How often the groups were asked for what they have to say."""
        self.beat_ns = time.monotonic_ns()
        self._samples: deque[float] = deque(maxlen=SAMPLES_MAX)
        self._append_ms = 0.0

    def ticked(self, late_ms: float, gap_ms: float) -> None:
        """Note how late a tick came, and how long after the one before."""
        self.lag_ms.observe(late_ms)
        self.longest_gap_ms = max(self.longest_gap_ms, gap_ms)
        self._samples.append(late_ms + self._append_ms)
        self._append_ms = 0.0

    def appended(self, device_ms: float) -> None:
        """Note what the device took for a plan; the slowest since the last tick counts with it."""
        self._append_ms = max(self._append_ms, device_ms)

    def lateness_ms(self) -> int:
        """Return the 99th percentile of what ticks and appends took together lately (C19)."""
        if not self._samples:
            return 0
        ordered = sorted(self._samples)
        return int(ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)])

    def ran(self, name: str, began_ns: int) -> None:
        """Note the end of a callback that began then."""
        now_ns = self.beat_ns = time.monotonic_ns()
        if now_ns - began_ns > SLOW_NS:
            self.note_slow(name, now_ns - began_ns)

    def note_slow(self, name: str, took_ns: int) -> None:
        """Count a callback that blocked the loop, and say so."""
        if name in self.slow_callbacks or len(self.slow_callbacks) < NAMES_MAX:
            self.slow_callbacks[name] = self.slow_callbacks.get(name, 0) + 1
        level = logging.WARNING if took_ns >= ALARMING_NS else logging.INFO
        journal.log(level, "the loop was blocked for %d ms by %s", took_ns // _NS_PER_MS, name)


class StackWatch:
    """A thread that looks where the loop's thread is while it does not tick (development).

    It says only where it is, never with what: a name of a file, a line and a function.
    """

    def __init__(self, watch: LoopWatch, tick_seconds: float) -> None:
        self._watch = watch
        self._patience_ns = SLOW_NS + int(tick_seconds * 1e9)
        self._thread_id = threading.get_ident()
        self._stopped = threading.Event()
        self.seen: deque[str] = deque(maxlen=NAMES_MAX)
        """Where it was found, newest last."""
        self._thread = threading.Thread(target=self._look, name="loop-watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def _look(self) -> None:
        told_ns, pause = 0, _SAMPLER_SECONDS
        while not self._stopped.wait(pause):
            beat_ns = self._watch.beat_ns
            age_ns = time.monotonic_ns() - beat_ns
            # Look again when this beat would be too old: each look costs the loop its turn.
            pause = max(_SAMPLER_SECONDS, (self._patience_ns - age_ns) / 1e9)
            if age_ns <= self._patience_ns or beat_ns == told_ns:
                continue
            told_ns = beat_ns
            place = _place(sys._current_frames().get(self._thread_id))
            self.seen.append(place)
            journal.info("the loop did not tick for %d ms, in %s", age_ns // _NS_PER_MS, place)


def _place(frame: FrameType | None) -> str:
    """Name the innermost calls of a stack."""
    names: list[str] = []
    while frame is not None and len(names) < _LINES:
        code = frame.f_code
        names.append(f"{code.co_filename.rpartition('/')[2]}:{frame.f_lineno} {code.co_qualname}")
        frame = frame.f_back
    return " < ".join(names) or "nothing"


def timed(watch: LoopWatch, name: str, call: Callable[[], None]) -> Callable[[], None]:
    """Return `call` as one whose slowness is named."""

    def run() -> None:
        began_ns = time.monotonic_ns()
        call()
        watch.ran(name, began_ns)

    return run
