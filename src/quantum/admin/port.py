"""What the API stands on: the control plane, the groups of this node, and who keeps refusals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from clustor.control import Answer, Caller, Command, Reading

RETRY_AFTER_MS: Final = 250  # clustor §11.1: the least that a refused caller waits


class ControlUnavailable(Exception):
    """The control plane did not take the call, or cannot confirm what is read.

    `reason` is the word of clustor §5.1 (`CacheExpired`, `CacheNotFresh`, `NeededForReadIndex`),
    or `NoLeader`. Whether a call was carried out may be unknown: repeat it under its request id.
    """

    def __init__(
        self,
        reason: str,
        *,
        cache_age_ms: int | None = None,
        retry_after_ms: int = RETRY_AFTER_MS,
        leader: str | None = None,
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.cache_age_ms = cache_age_ms
        self.retry_after_ms = retry_after_ms
        self.leader = leader


class ControlPort(Protocol):
    """The control plane as this node reaches it."""

    async def call(self, command: Command, caller: Caller, request_id: str) -> Answer:
        """Let a call be decided by the log; raises ControlUnavailable."""
        ...

    async def state(self, linearizable: bool) -> Reading:
        """Return what can be read now, good until the next await; raises ControlUnavailable.

        Linearizable: no older than anything that was answered before. Else: this node's copy.
        """
        ...

    def local_age(self) -> int | None:
        """Return the age of this node's copy in milliseconds; None: it was never confirmed."""
        ...


class WhyPort(Protocol):
    """Explains what a group does not do (clustor §13.2)."""

    def why(self, group: int, question: str) -> object | None:
        """Return the answer, or None where this node has no replica of the group."""
        ...


class GroupsPort(Protocol):
    """The groups that this node hosts, by number, as its status shows them."""

    def groups(self) -> Mapping[int, Mapping[str, object]]: ...


@dataclass(frozen=True, slots=True)
class RefusalNote:
    """A refusal that never reached the log, and so is in no replicated trail."""

    at: int
    identity: str | None
    method: str
    path: str
    error: str
    message: str
    request_id: str


class RefusalSink(Protocol):
    """Keeps refusals: the security room's signed log, or memory alone."""

    def note(self, refusal: RefusalNote) -> None: ...
