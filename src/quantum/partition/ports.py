"""What the leader's side of a partition asks of others, and what protocols may be to it.

A partition knows no protocol. A protocol's part in it is a `ProtocolFamily`: it registers what it
does about the machine's effects of its own kind, turns what its clients brought into commands, and
hears when the leadership ends. What it proposes comes back as a call of its own (`Completion`),
and what it publishes as an outcome of a batch with its own token (`quantum.partition.batches`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

from quantum.broker import Broker
from quantum.broker.items import Item
from quantum.partition.backpressure import WatermarkLevel
from quantum.tenancy import TenantDescription
from quantum.tenants.broker_file import TenantRing

Completion: TypeAlias = Callable[[bytes | None], None]
"""Called once with a command's reply, or with None when it is not known, or never happened."""

Refusals: TypeAlias = "list[tuple[int, int]]"
"""(number of the publish, the machine's reason) of those that were refused."""

Done: TypeAlias = "Callable[[int, int, Refusals, int], None]"
"""The publishes from one number to another are committed and durable, but those refused.

The last is the index of the entry that has them, in the log of their topics' partition."""

EffectHandlers: TypeAlias = Mapping[type, Callable[[Any], None]]
ItemReaders: TypeAlias = Mapping[type, Callable[[Any], object | None]]


class ProtocolFamily(Protocol):
    """One protocol's part in one partition, for as long as this node has a replica of it."""

    @property
    def effects(self) -> EffectHandlers:
        """What to do about each kind of effect that is this family's, after it is durable.

        A handler contains an error that concerns one client: what it raises stops the group.
        """
        ...

    @property
    def unlogged(self) -> ItemReaders:
        """What to ask about an item of another partition's stream before it is logged.

        An effect that is returned is carried out instead, in its turn, and nothing is logged: so
        what changes nothing in the machine costs no round of the quorum. None: it is logged.
        """
        ...

    def prepare(self, now_ms: int) -> None:
        """Submit the commands of what this turn brought."""

    def ended(self, why: str) -> None:
        """Forget all that was begun: this node does not lead any more, or anew."""

    def ring_changed(self) -> None:
        """Look again whose place is here: the machine has applied another ring."""


class LogWatch(Protocol):
    """Somebody who tells how records become durable."""

    def watch_log(
        self, leader: LeaderPort, records: list[bytes], completion: Completion, *, passed: bool
    ) -> Completion:
        """Return what to call instead of `completion`; `passed`: another leader passed them on."""


class PolicyPort(Protocol):
    @property
    def description(self) -> TenantDescription: ...


class RingPort(Protocol):
    """The ring that a partition is of, on this node: its neighbours and the ways to them."""

    @property
    def name(self) -> str: ...
    @property
    def life(self) -> str: ...
    @property
    def traces(self) -> LogWatch | None: ...
    @property
    def rings(self) -> tuple[TenantRing, ...]: ...
    @property
    def prgs(self) -> Sequence[LeaderPort]: ...
    @property
    def prg_count(self) -> int: ...
    @property
    def guard(self) -> PolicyPort: ...

    def now_ms(self) -> int: ...
    def soon(self, call: Callable[[], None]) -> None: ...
    def touch(self, prg: Any) -> None:
        """Let a partition have its turn: something waits in it."""

    def look_at(self, prg: Any) -> None:
        """Ask how a partition stands that began to lead here."""

    def note_ring(self) -> None: ...
    def opened(self, prg: Any) -> None: ...
    def leadership_changed(self, number: int) -> None: ...
    def knows_full_queues(self, prg: Any) -> bool: ...
    def forward(
        self, origin: Any, owner: int, first: int, records: list[bytes], done: Done
    ) -> bool:
        """Pass publishes on to the leader of the partition that owns their topics."""
        ...

    def send_items(self, origin: int, peer: int, first: int, items: list[Item], base: int) -> bool:
        """Send items of a stream to the leader of the partition they are for."""
        ...

    def say_taken(self, origin: int, peer: int, through: int) -> None: ...


class ForwardsPort(Protocol):
    """What was passed on to one owner, and how far it is answered."""

    @property
    def next_number(self) -> int: ...
    @property
    def oldest(self) -> int: ...


class LeaderPort(Protocol):
    """A partition's leader, as its parts and its neighbours know it."""

    number: int
    term: int
    backlog: WatermarkLevel

    @property
    def tenant(self) -> RingPort: ...
    @property
    def forwards(self) -> Mapping[int, ForwardsPort]: ...
    @property
    def broker(self) -> Broker: ...
    @property
    def group(self) -> Any: ...
    @property
    def leader_node(self) -> int | None: ...

    def now_ms(self) -> int: ...
    def propose(self, command: bytes, completion: Completion | None = None) -> None: ...
    def traced(
        self, records: list[bytes], completion: Completion, *, passed: bool = False
    ) -> Completion: ...
    def unblocked(self, items: list[Item]) -> list[Item]: ...
    def behind_effects(self, call: Callable[[], None]) -> None: ...
    def read_unlogged(self, item: Item) -> object | None: ...
    def carry_out(self, effect: object) -> None: ...
