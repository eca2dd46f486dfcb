"""A simulated network: messages are late, lost, doubled, overtaken and cut off, as drawn.

It has no thread and no clock. `send` draws the fate of a message and schedules its arrivals on
the timeline, which belongs to the whole simulation; whoever takes an `Arrival` from there
asks `take_arrival` whether it still gets through. All arithmetic is on integers, so one seed
gives one course of events on every platform; `trace_digest` stands for that course.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import NewType, Protocol

from xxhash import xxh3_128

from clustor.sim.timeline import Microseconds

NodeId = NewType("NodeId", int)

_MILLION = 1_000_000
_LATENCY_MIN = Microseconds(200)
_LATENCY_MAX = Microseconds(1_000)
_NO_TIME = Microseconds(0)


@dataclass(frozen=True, slots=True)
class SimLink:
    """How one direction between two nodes behaves. Chances are in parts per million.

    Most messages take between `latency_min` and `latency_max`, evenly drawn; by the chance of
    `tail_ppm` one takes up to `tail_max` more. Arrivals keep their order, but by the chance of
    `reorder_ppm` a message goes its own way: it neither waits for those before it nor holds
    up those after it.
    """

    latency_min: Microseconds = _LATENCY_MIN
    latency_max: Microseconds = _LATENCY_MAX
    tail_ppm: int = 0
    tail_max: Microseconds = _NO_TIME
    loss_ppm: int = 0
    duplicate_ppm: int = 0
    reorder_ppm: int = 0

    def __post_init__(self) -> None:
        assert 0 <= self.latency_min <= self.latency_max
        assert self.tail_max >= 0
        chances = (self.tail_ppm, self.loss_ppm, self.duplicate_ppm, self.reorder_ppm)
        assert all(0 <= chance <= _MILLION for chance in chances)


@dataclass(frozen=True, slots=True)
class Arrival:
    """One copy of a message at the end of its way."""

    source: NodeId
    destination: NodeId
    payload: bytes
    # How often the link had been cut when it was sent: one more means it was cut on its way.
    cuts: int


class ArrivalTimeline(Protocol):
    """What the network needs of the simulation's timeline, which carries other events too."""

    @property
    def now(self) -> Microseconds: ...

    def schedule(self, at: Microseconds, event: Arrival, /) -> None: ...


class Fate(IntEnum):
    """What became of a message; part of the trace."""

    SENT = 1
    LOST = 2
    DUPLICATED = 3
    REFUSED = 4  # the link was cut when it was sent
    DELIVERED = 5
    CUT_OFF = 6  # the link was cut while it was on its way


class Network:
    """A link for each direction between two nodes, and from a node to itself."""

    def __init__(
        self, chance: random.Random, timeline: ArrivalTimeline, *, link: SimLink | None = None
    ) -> None:
        self._chance = chance
        self._timeline = timeline
        self._default = link or SimLink()
        self._links: dict[tuple[NodeId, NodeId], SimLink] = {}
        # How often each direction was cut, and which are cut now.
        self._cuts: dict[tuple[NodeId, NodeId], int] = {}
        self._cut_now: set[tuple[NodeId, NodeId]] = set()
        # When the latest orderly message of each direction arrives.
        self._latest: dict[tuple[NodeId, NodeId], Microseconds] = {}
        self._trace = xxh3_128()

    # --- messages ---------------------------------------------------------------------------

    def send(self, source: NodeId, destination: NodeId, payload: bytes) -> None:
        """Let a message set out now; nobody is told whether it will arrive."""
        way = (source, destination)
        link = self._links.get(way, self._default)
        if way in self._cut_now:
            self._record(Fate.REFUSED, way, payload)
        elif self._happens(link.loss_ppm):
            self._record(Fate.LOST, way, payload)
        else:
            self._record(Fate.SENT, way, payload)
            self._set_out(way, link, payload)
            if self._happens(link.duplicate_ppm):
                self._record(Fate.DUPLICATED, way, payload)
                self._set_out(way, link, payload)

    def take_arrival(self, arrival: Arrival) -> bool:
        """Say whether this message gets through; ask once, when the timeline gives it."""
        way = (arrival.source, arrival.destination)
        arrives = arrival.cuts == self._cuts.get(way, 0)
        self._record(Fate.DELIVERED if arrives else Fate.CUT_OFF, way, arrival.payload)
        return arrives

    def trace_digest(self) -> bytes:
        """Return 16 bytes that stand for every fate so far, its time and its message."""
        return self._trace.digest()

    # --- faults -----------------------------------------------------------------------------

    def set_link(self, source: NodeId, destination: NodeId, link: SimLink) -> None:
        """Let one direction behave differently, from the next message on."""
        self._links[source, destination] = link

    def cut(self, source: NodeId, destination: NodeId) -> None:
        """Cut one direction; what is on its way there is lost."""
        way = (source, destination)
        if way not in self._cut_now:
            self._cut_now.add(way)
            self._cuts[way] = self._cuts.get(way, 0) + 1

    def partition(self, one: Collection[NodeId], other: Collection[NodeId]) -> None:
        """Cut both directions between every node of one side and every node of the other."""
        for source in one:
            for destination in other:
                if source != destination:
                    self.cut(source, destination)
                    self.cut(destination, source)

    def isolate(self, node: NodeId, others: Iterable[NodeId]) -> None:
        """Cut a node off from the others, in both directions."""
        self.partition([node], list(others))

    def mend(self, source: NodeId, destination: NodeId) -> None:
        """Mend one direction."""
        self._cut_now.discard((source, destination))

    def heal(self) -> None:
        """Mend all that is cut, and let every link behave as it did at first."""
        self._cut_now.clear()
        self._links.clear()

    def is_cut(self, source: NodeId, destination: NodeId) -> bool:
        return (source, destination) in self._cut_now

    # --- chance -----------------------------------------------------------------------------

    def _set_out(self, way: tuple[NodeId, NodeId], link: SimLink, payload: bytes) -> None:
        at = Microseconds(self._timeline.now + self._latency(link))
        if not self._happens(link.reorder_ppm):
            at = max(at, self._latest.get(way, at))
            self._latest[way] = at
        self._timeline.schedule(at, Arrival(*way, payload, self._cuts.get(way, 0)))

    def _latency(self, link: SimLink) -> int:
        latency = self._chance.randint(link.latency_min, link.latency_max)
        if self._happens(link.tail_ppm):
            latency += self._chance.randint(0, link.tail_max)
        return latency

    def _happens(self, ppm: int) -> bool:
        # Drawn even where it is certain, so that a changed chance shifts few other draws.
        return self._chance.randrange(_MILLION) < ppm

    def _record(self, fate: Fate, way: tuple[NodeId, NodeId], payload: bytes) -> None:
        facts = f"{self._timeline.now} {fate:d} {way[0]} {way[1]} {len(payload)} "
        self._trace.update(facts.encode() + payload)
