"""What ends with an error that nobody foresaw: one connection, request, frame or task, never more.

Whoever may send bytes to a node will find the line of it that is wrong. So every callback that
runs for one connection is `guarded`: its error ends that connection, is counted by its place, is
logged once, and is told to the audit log; nobody else notices. What endangers a log, Raft or a
machine is not contained here: `FencedReplica` ends its group. What reaches the loop's own handler
could not be attributed to anything that might end instead, and ends the process.

Nothing is kept of what was sent: the digest names the kind of the error and the lines of code that
it passed through, so that a thousand of one cause are one, and an error's own words, which may
quote a payload or a secret, are never written down.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from hashlib import sha256
from traceback import walk_tb
from typing import Any, Concatenate, Final, ParamSpec, Protocol, TypeVar

DIGESTS_MAX: Final = 256
WHO_CHARS_MAX: Final = 128
_FRAMES_SHOWN: Final = 4
_DIGEST_CHARS: Final = 12

journal = logging.getLogger("clustor.containment")

Told = Callable[[str, str, str], None]
"""Is told the place, who it was, and the kind and digest of the error: for the audit log."""


class Ending(Protocol):
    """Something that serves one other side, and can end without anything else."""

    def whom(self) -> str:
        """Name the other side, for people: an address, a node, a client."""

    def abort(self) -> None:
        """End at once; what was held is given back when the end is noticed."""


_P = ParamSpec("_P")
_S = TypeVar("_S", bound=Ending)
_T = TypeVar("_T")


class Contained:
    """All that was contained in this process: there is one, as there is one journal."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        """How many errors each place has contained; the places are a closed list."""
        self.tell: Told | None = None
        """Whom to tell of each one; None: nobody."""
        self.raising = False
        """Whether nothing is contained: simulations and tests are there to see every error."""
        self._logged: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def caught(self, place: str, who: str, error: BaseException) -> str:
        """Take note of an error, and return its digest."""
        if self.raising:
            raise error
        self.counts[place] = self.counts.get(place, 0) + 1
        digest, lines = _digest_of(error)
        shown, kind = _printable(who), type(error).__name__
        if digest not in self._logged:
            if len(self._logged) >= DIGESTS_MAX:
                self._logged.clear()
            self._logged.add(digest)
            journal.error(
                "an error of our own was contained (%s, %s): %s %s at %s; it is counted from now"
                " on, please report it",
                *(place, shown or "nobody", kind, digest, lines),
            )
        if self.tell is not None:
            self.tell(place, shown, f"{kind} {digest}")
        return digest

    @contextmanager
    def raised(self) -> Iterator[None]:
        """Let every error be raised where it is made, for a while."""
        before, self.raising = self.raising, True
        try:
            yield
        finally:
            self.raising = before

    def run(self, place: str, who: str, call: Callable[[], object]) -> bool:
        """Call something that serves one purpose alone; say whether it went well."""
        try:
            call()
        except Exception as error:  # noqa: BLE001  # the purpose of this module
            self.caught(place, who, error)
            return False
        return True

    def spawn(
        self, place: str, work: Coroutine[Any, Any, None], *, who: str = ""
    ) -> asyncio.Task[None]:
        """Run a task that nobody awaits; it is kept until it ends, and its error is contained."""
        task = asyncio.get_running_loop().create_task(self._watched(place, who, work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _watched(self, place: str, who: str, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception as error:  # noqa: BLE001
            self.caught(place, who, error)

    async def lasting(
        self, place: str, begin: Callable[[], Coroutine[Any, Any, None]], pause_seconds: float = 1.0
    ) -> None:
        """Run a duty that never ends, and begin it anew a moment after an error of its own."""
        while True:
            try:
                await begin()
                return
            except Exception as error:  # noqa: BLE001
                self.caught(place, "", error)
            await asyncio.sleep(pause_seconds)


contained: Final = Contained()


def guarded(
    place: str,
) -> Callable[[Callable[Concatenate[_S, _P], None]], Callable[Concatenate[_S, _P], None]]:
    """Let a method's unforeseen error end its object's connection, and nothing else."""

    def decorate(
        method: Callable[Concatenate[_S, _P], None],
    ) -> Callable[Concatenate[_S, _P], None]:
        @functools.wraps(method)
        def guard(self: _S, /, *args: _P.args, **kwargs: _P.kwargs) -> None:
            try:
                method(self, *args, **kwargs)
            except Exception as error:  # noqa: BLE001
                end_alone(place, self, error)

        return guard

    return decorate


def end_alone(place: str, ending: Ending, error: Exception) -> None:
    """Take note of an error while something was served, and end that."""
    try:
        who = ending.whom()
    except Exception:  # noqa: BLE001  # it is half made, or half gone
        who = ""
    contained.caught(place, who, error)
    contained.run(f"{place} end", who, ending.abort)


def on_loop_error(
    context: dict[str, Any], uncontained: Callable[[str, BaseException | None], None]
) -> None:
    """Take what the loop's own code noticed: the end of one transport or one task is contained.

    Everything else is `uncontained`: it came out of a callback that serves more than one.
    """
    error = context.get("exception")
    message = str(context.get("message") or "an error in a callback")
    transport = context.get("transport")
    if isinstance(error, Exception) and transport is not None:
        contained.caught("loop transport", message, error)
        contained.run("loop transport end", message, transport.abort)
    elif isinstance(error, Exception) and ("task" in context or "future" in context):
        contained.caught("task", message, error)
    elif error is None and "exception" not in context:
        journal.warning("the loop says: %s", message)
    else:
        uncontained(message, error)


def _digest_of(error: BaseException) -> tuple[str, str]:
    """Name an error by its kind and the lines it passed through; show the last few of them."""
    passed = [
        f"{frame.f_code.co_filename.rsplit('/', 1)[-1]}:{line}"
        for frame, line in walk_tb(error.__traceback__)
    ]
    text = " ".join((type(error).__qualname__, *passed))
    return sha256(text.encode()).hexdigest()[:_DIGEST_CHARS], " < ".join(
        reversed(passed[-_FRAMES_SHOWN:])
    )


def _printable(who: str) -> str:
    """Keep a stranger's words to one short line."""
    return "".join(each if each.isprintable() else "?" for each in who[:WHO_CHARS_MAX])
