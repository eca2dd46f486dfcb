"""`slipstream watch`: a live view of a fold that follows a bucket."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.live import Live
from rich.table import Table

from slipstream.applied import watch_applied
from slipstream.cli.session import Speaker, as_text, session
from slipstream.errors import WatchError
from slipstream.folds import fold_backend
from slipstream.types import AppliedReport, KvUpdate, UpdateKind, WatchCursor, WatchScope

_RESTARTS_IN_VAIN_MAX: Final = 3
_RECENT: Final = 12
_VALUE_WIDTH: Final = 60


async def watch_command(
    speaker: Speaker,
    backend: str,
    bucket: str,
    *,
    prefixes: tuple[str, ...],
    path: Path,
    store: str,
    until_caught_up: bool,
) -> None:
    """Watch until stopped, or caught up; start again where a watch says that it must."""
    scope = WatchScope.of_prefixes(*prefixes) if prefixes else WatchScope.all()
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with session(backend, bucket) as opened:
        with fold_backend(store).load(path) as fold, _view(speaker) as view:
            total = AppliedReport(resumed_from=fold.cursor, cursor=fold.cursor)
            view.report = total
            in_vain = 0
            while True:
                part = AppliedReport()
                try:
                    await watch_applied(
                        opened.watcher,
                        scope=scope,
                        fold=fold,
                        reader=opened.reader,
                        apply=view.show,
                        stop=stop,
                        until_caught_up=until_caught_up,
                        report=part,
                    )
                    break
                except WatchError:
                    in_vain = 0 if part.applied else in_vain + 1
                    if in_vain == _RESTARTS_IN_VAIN_MAX:
                        raise
                finally:
                    _add(total, part)
    summarise(speaker, total)


def _add(total: AppliedReport, part: AppliedReport) -> None:
    """Count a restarted watch as one."""
    for name in ("delivered", "applied", "rejected", "flushes", "stale_keys_removed"):
        setattr(total, name, getattr(total, name) + getattr(part, name))
    total.cursor = part.cursor
    total.resynced = total.resynced or part.resynced
    total.caught_up = total.caught_up or part.caught_up


def summarise(speaker: Speaker, report: AppliedReport) -> None:
    """Say what a run did; the last line of `--json`."""
    resumed = _position(report.resumed_from)
    origin = "the beginning" if resumed is None else f"revision {resumed}"
    synced = ", synced anew" if report.resynced else ""
    speaker.say(
        f"{report.delivered} updates from {origin} to {_position(report.cursor)}{synced}",
        event="summary",
        delivered=report.delivered,
        applied=report.applied,
        cursor=_position(report.cursor),
        resumed_from=resumed,
        resynced=report.resynced,
        stale_keys_removed=report.stale_keys_removed,
        caught_up=report.caught_up,
    )


def _position(cursor: WatchCursor) -> int | str | None:
    if cursor.is_none:
        return None
    revision = cursor.as_u64()
    return cursor.position.hex() if revision is None else revision


class _Lines:
    """Says every update in a line."""

    def __init__(self, speaker: Speaker) -> None:
        self._speaker = speaker
        self.report = AppliedReport()

    async def show(self, batch: list[KvUpdate]) -> None:
        for update in batch:
            facts = as_text(update.value) if update.kind is UpdateKind.PUT else {}
            mark = "+" if update.kind is UpdateKind.PUT else "-"
            sentence = f"{mark} {update.key}" + (f" = {facts['value']}" if facts else "")
            self._speaker.say(
                sentence,
                event=update.kind.value,
                key=update.key,
                **facts,
                revision=update.version.as_u64(),
            )


class _Screen(_Lines):
    """Draws the latest updates over and over, for a person at a terminal."""

    def __init__(self, speaker: Speaker, live: Live) -> None:
        super().__init__(speaker)
        self._live = live
        self._recent: deque[KvUpdate] = deque(maxlen=_RECENT)
        self._shown = 0

    async def show(self, batch: list[KvUpdate]) -> None:
        self._recent.extend(batch)
        self._shown += len(batch)
        last = next((update.version.as_u64() for update in reversed(batch)), None)
        table = Table(title=f"{self._shown} updates, at revision {last}", title_justify="left")
        for heading in ("revision", "", "key", "value"):
            table.add_column(heading)
        for update in self._recent:
            mark = "+" if update.kind is UpdateKind.PUT else "-"
            value = as_text(update.value)["value"][:_VALUE_WIDTH]
            table.add_row(str(update.version.as_u64() or ""), mark, update.key, value)
        self._live.update(table)


@contextmanager
def _view(speaker: Speaker) -> Iterator[_Lines]:
    if speaker.as_json or not sys.stdout.isatty():
        yield _Lines(speaker)
        return
    with Live(console=Console(), refresh_per_second=8) as live:
        yield _Screen(speaker, live)
