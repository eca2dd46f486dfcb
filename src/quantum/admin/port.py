"""What the API stands on: the control plane, the groups of this node, and who keeps refusals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from clustor.control import Answer, Caller, Command, DraftReading


class ControlPort(Protocol):
    """The control plane as this node reaches it; ControlUnavailable is the runtime's."""

    async def call(self, command: Command, caller: Caller, request_id: str) -> Answer:
        """Let a call be decided by the log; raises ControlUnavailable."""
        ...

    async def state(self, linearizable: bool) -> DraftReading:
        """Return what can be read now, good until the next await; raises ControlUnavailable.

        Linearizable: no older than anything that was answered before. Else: this node's copy.
        """
        ...

    def local_age(self) -> int | None:
        """Return the age of this node's copy in milliseconds; None: it was never confirmed."""
        ...


class ExplanationPort(Protocol):
    """Explains what a group does not do (clustor §13.2)."""

    def why(self, group: int, question: str) -> object | None:
        """Return the answer, or None where this node has no replica of the group."""
        ...


class GroupsPort(Protocol):
    """The groups that this node hosts."""

    def numbers(self) -> Iterable[int]: ...

    def status(self, group: int) -> Mapping[str, object] | None:
        """Say how a group's replica stands here; None: there is none."""
        ...


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
