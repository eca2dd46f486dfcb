"""What a page of the API may ask of the node that serves it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from quantum.admin.port import ControlPort, ExplanationPort, GroupsPort, RefusalNote

if TYPE_CHECKING:
    from quantum.node.served import ServedBroker


class NewestRefusals(Protocol):
    """Whom this node refused lately."""

    total: int

    def newest(self, limit: int) -> list[RefusalNote]: ...


class PageContext(Protocol):
    """One node's API, as its pages see it."""

    port: ControlPort
    broker: Callable[[], ServedBroker | None]
    development: str | None
    why: ExplanationPort | None
    groups: GroupsPort | None
    now_ms: Callable[[], int]

    @property
    def refusals(self) -> NewestRefusals: ...
