"""The last things that happened to clients, for who asks why."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from clustor.printable import printable

RECENT_CLIENTS_MAX: Final = 1_024
RECENT_EACH_MAX: Final = 8


@dataclass(frozen=True, slots=True)
class Remark:
    """Something that happened to a client."""

    at_ms: int
    what: str


class Recent:
    """The last things that happened to clients, for who asks why; bounded, and of this node."""

    __slots__ = ("_now_ms", "_remarks")

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._remarks: OrderedDict[bytes, deque[Remark]] = OrderedDict()

    def note(self, client_id: bytes, what: str) -> None:
        """Remember something about a client, and forget who was not heard of for longest."""
        remarks = self._remarks.pop(client_id, None) or deque(maxlen=RECENT_EACH_MAX)
        remarks.append(Remark(self._now_ms(), printable(what)))
        self._remarks[client_id] = remarks
        if len(self._remarks) > RECENT_CLIENTS_MAX:
            self._remarks.popitem(last=False)

    def of(self, client_id: bytes) -> list[Remark]:
        """Return what is remembered, the newest last."""
        return list(self._remarks.get(client_id, ()))
