"""What all MQTT clients of one node share: limits, counts, and the node behind them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from quantum.protocols.mqtt.codec import PeerFault
from quantum.protocols.mqtt.session.authentication import Authenticator
from quantum.protocols.mqtt.session.large_packets import LargePackets
from quantum.protocols.mqtt.session.limits import MqttLimits
from quantum.protocols.mqtt.session.meters import BrokerMeters
from quantum.protocols.mqtt.session.phase import ConnectionPhase
from quantum.protocols.mqtt.session.tenant_sessions import TenantSessions
from quantum.protocols.mqtt.session.traces import Traces
from quantum.protocols.ports import Host
from quantum.tenants.passwords import Passwords

_RESUMED_AT_ONCE: Final = 128
"""In a tick: so many that all lost the same leader would hold the next one up."""
_CHECK_SLICES: Final = 10
"""Each connection's time is looked at once in so many ticks: half a second."""


class StagedClient(Protocol):
    """A client that something is to be written to."""

    def flush(self) -> None: ...


class WatchedClient(Protocol):
    """A client whose time runs."""

    phase: ConnectionPhase

    def check_time(self, now_ms: int) -> None: ...
    def is_led(self, now_ms: int) -> bool: ...
    def resume(self) -> None: ...


class MqttNode:
    """All MQTT clients of one node."""

    def __init__(self, host: Host, limits: MqttLimits, entropy: Callable[[int], bytes]) -> None:
        self.host = host
        self.limits = limits
        self._entropy = entropy
        self.tenants: dict[str, TenantSessions] = {}
        """The clients of each tenant, by its name."""
        self.now_ms = host.now_ms
        self.clock_ms = host.clock_ms
        self.soon = host.soon
        self._dirty: dict[StagedClient, None] = {}
        self._slices: list[set[WatchedClient]] = [set() for _ in range(_CHECK_SLICES)]
        self._next_slice = 0
        self._resuming: deque[WatchedClient] = deque()
        """Clients that stayed connected, and whose sessions find another leader."""
        self.authenticators: dict[str, Authenticator] = {}
        """The methods of enhanced authentication that clients may name, none by default."""
        self.passwords = Passwords()
        self.dropped = 0
        """QoS 0 messages that a client was too slow for, and what was too large for one."""
        self.faults: dict[str, int] = {}
        self.traces: Traces | None = None
        """Who tells of single messages; None: nobody."""
        self.meters = BrokerMeters(host.clock_ms)
        self.large = LargePackets(host.soon)
        self.connections = 0

    # Turns and time.

    @property
    def tick_ms(self) -> int:
        """The loop's clock as of the last tick: good enough for all but measurements.

        The node's own, never a copy: who rests until a time of an older tick would be read again
        in the same tick, for ever.
        """
        return self.host.tick_ms

    def dirty(self, connection: StagedClient) -> None:
        """Let a connection be written at the end of this turn."""
        if not self._dirty:
            self.host.turn_soon()
        self._dirty[connection] = None

    def flush(self) -> None:
        """Write to every client that something is there for, once."""
        if self._dirty:
            dirty, self._dirty = self._dirty, {}
            for connection in dirty:
                connection.flush()

    def on_tick(self, now_ms: int) -> None:
        """Look at some of the connections' time, and resume some that wait for a leader."""
        self.large.on_tick(now_ms)
        if self._resuming:
            self._resume_some()
        self._next_slice = (self._next_slice + 1) % _CHECK_SLICES
        for connection in list(self._slices[self._next_slice]):
            connection.check_time(now_ms)

    def resume_later(self, connection: WatchedClient) -> None:
        """Let a client wait for its session's next leader, and for its turn there."""
        self._resuming.append(connection)

    def _resume_some(self) -> None:
        for _ in range(min(_RESUMED_AT_ONCE, len(self._resuming))):
            connection = self._resuming.popleft()
            if connection.phase is ConnectionPhase.CLOSED:
                continue
            if connection.is_led(self.tick_ms):
                connection.resume()
            else:
                self._resuming.append(connection)

    # Who is here.

    def joined(self, connection: WatchedClient) -> None:
        self.connections += 1
        self.meters.connects += 1
        self._slices[id(connection) // 16 % _CHECK_SLICES].add(connection)

    def left(self, connection: WatchedClient) -> None:
        self.connections -= 1
        self._slices[id(connection) // 16 % _CHECK_SLICES].discard(connection)

    def draw_client_id(self) -> bytes:
        """Return an id that no client has."""
        return b"auto-" + self._entropy(12).hex().encode()

    def count_fault(self, fault: PeerFault, who: str, tenant: str) -> None:
        self.faults[fault.reason] = self.faults.get(fault.reason, 0) + 1
        self.meters.faults[fault.reason_code] += 1
        self.host.note_refused("MalformedPacket", who=who, why=fault.reason, tenant=tenant)
