"""Where a protocol meets the rest of the broker: bytes on one side, commands on the other.

An `Adapter` is one protocol on one node. What it has to do with a publish, in order:

1. *Bytes in.* A listener, or a relay from another node, gives a connection's bytes to the handler
   that `new_connection` made (`quantum.edge.ports.Handler`). The adapter decodes and checks them.
2. *Commands with a token.* It hands records to a partition's leader in a `PublishBatch` with a
   token of its own, for instance the acknowledgements that wait for it. Other commands it proposes
   with a completion. Nobody behind this line looks at a token.
3. *Outcomes with the token.* When the log has a batch on a quorum's disks, its owner hears that it
   is finished, which publishes were refused, or that it is lost, and why in the partition's own
   words (`RefusalReason`); the adapter has one table from those to its protocol's codes.
4. *Bytes out.* It stages what its clients are told, and writes each connection once, in `flush`.

What the machine wants done for clients (messages, ends of sessions) comes as effects. Every kind of
effect belongs to one family, which the adapter registers at each partition (`host_partition`).
Adapters know nothing of each other, and no room below knows any of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeAlias

from clustor.control.command_gates import CommandGate
from quantum.edge.ports import ConnectionPeer, Handler, Transport, WirePort
from quantum.mesh.link import Said
from quantum.mesh.relay import RelayEntry
from quantum.mesh.tenant import Tenant
from quantum.partition.leader import PartitionLeader
from quantum.tenants.recent import Recent

WordHandlers: TypeAlias = Mapping[type, Callable[[int, Any], None]]
"""What to do about each kind of word that another node says to this protocol."""


class Adapter(Protocol):
    """One protocol on one node. All calls come from the loop's own thread, and none waits."""

    @property
    def words(self) -> WordHandlers: ...

    def new_connection(self) -> Handler:
        """Make the handler of a new connection."""
        ...

    def relayed_connection(self, client_id: bytes) -> Handler:
        """Make the handler of one that another node sent here, with the id that it assigned."""
        ...

    def host_tenant(self, tenant: Tenant) -> None:
        """Serve a tenant's clients from now on: adds a side to it (`TenantSide`)."""

    def forget_tenant(self, tenant: Tenant) -> None: ...

    def host_partition(self, leader: PartitionLeader) -> None:
        """Take part in a partition of a tenant: registers a family (`ProtocolFamily`)."""

    def flush(self) -> None:
        """Write to every connection that something is there for, once."""

    def on_tick(self, now_ms: int) -> None:
        """Let due things happen; `now_ms` is the loop's clock."""


class Host(Protocol):
    """What an adapter may ask of its node."""

    recent: Recent

    @property
    def tenants(self) -> Mapping[str, Tenant]: ...
    @property
    def draining(self) -> bool: ...
    @property
    def tick_ms(self) -> int: ...

    def now_ms(self) -> int:
        """Return the time of day: what is stamped into commands."""
        ...

    def clock_ms(self) -> int:
        """Return the loop's own clock, which only runs: what lasts is measured by it."""
        ...

    def soon(self, call: Callable[[], None]) -> None:
        """Call something when this call is over."""

    def turn_soon(self) -> None:
        """Let the loop take a turn, at whose end adapters flush."""

    def say(self, node: int, said: Said, size: int) -> None: ...
    def is_local(self, node: int | None) -> bool: ...
    def reaches(self, node: int) -> bool: ...
    def knows(self, node: int, gate: CommandGate) -> bool: ...
    def members_know(self, prg: PartitionLeader, gate: CommandGate) -> bool:
        """Say whether every replica of a partition can apply a family of commands."""
        ...

    def reference(self, node: int | None, transport: Transport) -> str | None: ...
    def open_relay(  # noqa: PLR0917  # a relay is all of these
        self,
        wire: WirePort,
        peer: ConnectionPeer,
        prg: PartitionLeader,
        node: int,
        client_id: bytes,
        data: bytes,
    ) -> RelayEntry: ...
    def find_partition(self, life: str, number: int) -> PartitionLeader | None:
        """Return a partition that is hosted here, by its tenant's name between nodes."""
        ...

    def note_refused(
        self, what: str, *, who: str, why: str, target: str = "", tenant: str = ""
    ) -> None: ...
    def note_client(self, what: str, why: str, who: str, tenant: Tenant) -> None: ...
    def note_end(self, client_id: bytes, why: str) -> None: ...
    def tell_full(self, prg: PartitionLeader, session: bytes) -> None: ...
