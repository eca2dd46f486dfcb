"""All that a partition's broker knows. Equal commands in equal order make it equal everywhere."""

from __future__ import annotations

from heapq import heappush

from quantum.broker.channels import Channels
from quantum.broker.effects import Effect
from quantum.broker.message import Message
from quantum.broker.routes import Routes
from quantum.broker.session import Session
from quantum.broker.settings import BrokerSettings
from quantum.broker.shares import ShareGroup
from quantum.routing.retained import RetainedIndex


class State:
    """The tables, and the list of effects of the command that is being applied."""

    __slots__ = (
        "applied_index",
        "channels",
        "deadlines",
        "dropped",
        "effects",
        "epoch",
        "filters",
        "groups",
        "now_ms",
        "retained",
        "routes",
        "sessions",
        "settings",
        "told",
    )

    def __init__(self, settings: BrokerSettings) -> None:
        self.settings = settings
        self.applied_index = 0
        self.now_ms = 0
        """The latest stamp seen: a leader whose clock is behind does not turn time back."""
        self.epoch = 0
        """Counts the sessions that were ever made here, so that no epoch comes twice."""
        self.sessions: dict[bytes, Session] = {}
        self.groups: dict[tuple[bytes, bytes], ShareGroup] = {}
        self.routes = Routes(self.sessions, self.groups)
        self.filters: dict[bytes, dict[bytes, None]] = {}
        """Who here has an ordinary subscription to a filter."""
        self.told: dict[bytes, int] = {}
        """The level of interest that the other partitions were told of."""
        self.retained: RetainedIndex[Message] = RetainedIndex()
        self.channels = Channels()
        self.deadlines: list[tuple[int, bytes]] = []
        """A heap of when to look at a session again; what is outdated in it does no harm."""
        self.dropped = 0
        """How many messages were dropped because they expired or were QoS 0 in a full queue."""
        self.effects: list[Effect] | None = None
        """None where nobody wants to know: this replica does not lead."""

    def see_time(self, now_ms: int) -> None:
        self.now_ms = max(self.now_ms, now_ms)

    def emit(self, effect: Effect) -> None:
        if self.effects is not None:
            self.effects.append(effect)

    def look_again(self, at_ms: int, client_id: bytes) -> None:
        """Let `Elapse` look at a session when that time has come."""
        heappush(self.deadlines, (at_ms, client_id))
