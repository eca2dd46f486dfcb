"""Publishers without words for a refusal (before MQTT 5): what follows one is refused as well.

Such a client is disconnected and sends everything again, in order. A publish that was on its way
behind the refused one must not get in before it ([MQTT-4.6.0-6]), although a queue has room
again by then. The first publish of the client's next connection begins anew.
"""

from __future__ import annotations

from typing import Final

from quantum.broker.message import BEFORE_V5, BEGINS

CLIENTS_MAX: Final = 65_536
KEPT_MS: Final = 600_000
"""Far longer than anything of an ended connection is on its way between two partitions."""


class TurnedAway:
    """Whose publishes are refused until they begin anew, by client and QoS.

    Part of the state: replicas that forgot it would apply the same log differently.
    """

    __slots__ = ("_since_ms",)

    def __init__(self) -> None:
        self._since_ms: dict[tuple[bytes, int], int] = {}

    def __bool__(self) -> bool:
        return bool(self._since_ms)

    def note(self, client_id: bytes, qos: int, flags: int, now_ms: int) -> None:
        """A publish was refused; who cannot be told has to begin anew."""
        if flags & BEFORE_V5:
            self._since_ms.pop((client_id, qos), None)  # the oldest stand first
            self._since_ms[client_id, qos] = now_ms
            self._forget_oldest(now_ms)

    def _forget_oldest(self, now_ms: int) -> None:
        oldest = next(iter(self._since_ms))
        while len(self._since_ms) > CLIENTS_MAX or self._since_ms[oldest] + KEPT_MS < now_ms:
            del self._since_ms[oldest]
            oldest = next(iter(self._since_ms))

    def refuses(self, client_id: bytes, qos: int, flags: int) -> bool:
        """Say whether a publish stands behind a refused one."""
        if not flags & BEFORE_V5:
            return False
        if flags & BEGINS:
            self._since_ms.pop((client_id, qos), None)
            return False
        return (client_id, qos) in self._since_ms

    def take_in(self, moved: list[tuple[bytes, int, int]]) -> None:
        """Take over who was refused where topics of this partition come from."""
        everyone = [*self.frozen(), *moved]
        everyone.sort(key=lambda each: (each[2], each[0], each[1]))  # the oldest first
        self.restore(everyone[-CLIENTS_MAX:])

    def frozen(self) -> list[tuple[bytes, int, int]]:
        """Say it all, for a snapshot; `restore` is the inverse."""
        return [(client_id, qos, since) for (client_id, qos), since in self._since_ms.items()]

    def restore(self, frozen: list[tuple[bytes, int, int]]) -> None:
        self._since_ms = {(client_id, qos): since for client_id, qos, since in frozen}
