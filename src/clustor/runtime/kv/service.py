"""The key-value store as clients see it: commands in, replies out, watches fed.

A command waits in its group's replica; its reply is staged for its connection and leaves with
the end of the turn, every connection written once. Reads are `kv_reads`': no entry, no sync.
A watch shows what is applied here, so a follower feeds it only while followers may read.
"""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Final, Protocol, cast

import msgspec

from clustor.control import ControlMachine
from clustor.kv import (
    CasRevision,
    CasValue,
    Command,
    ErrorCode,
    Events,
    EventsCompacted,
    Expire,
    Get,
    KvMachine,
    KvRecord,
    KvRefused,
    Put,
    ReadRange,
    Revision,
    StoreId,
    Txn,
    TxnPut,
    decode_command,
    encode_command,
)
from clustor.kv import encode_reply as encode_kv_reply
from clustor.log.types import PartitionId
from clustor.raft.reads import ReadKind, ReadRefusal
from clustor.replica import Applied, NotLeader, ReplicaOutput, RequestId, Unknown
from clustor.runtime.group import HostedGroup
from clustor.runtime.kv.reads import KvReads, refusal_through_the_log, words_of
from clustor.runtime.kv.stream import (
    KvOperation,
    Request,
    Status,
    StreamViolation,
    WatchEvents,
    WatchRequest,
    encode_replies,
    encode_reply,
)
from clustor.runtime.pki.identity import NodeId
from clustor.wall_clock import wall_clock_ms

if TYPE_CHECKING:
    from clustor.runtime.node import Node

_ID_BITS: Final = 32
_ID_MASK: Final = (1 << _ID_BITS) - 1
# Plain numbers where each request passes.
_COMMAND: Final = int(KvOperation.COMMAND)
_APPLIED: Final = int(Status.APPLIED)
_NODE_ITSELF: Final = 0  # the connection number of the node's own commands
_EXPIRE_LIMIT: Final = 1024
_EVENTS_PER_REPLY: Final = 1024
_SILENT_TICKS_MAX: Final = 20  # a second: for so long nothing is said to a poll or a watch
WATCHES_MAX: Final = 1024  # of one connection

_REVOKED: Final = ReadRefusal.FOLLOWER_CAPABILITY_REVOKED.encode()
_MALFORMED: Final = encode_kv_reply(KvRefused(ErrorCode.MALFORMED))
_encode = msgspec.msgpack.encode
_watch_decoder = msgspec.msgpack.Decoder(WatchRequest)


class Client(Protocol):
    """A connection that replies are staged for."""

    @property
    def writable(self) -> bool: ...
    def stage(self, reply: bytes) -> None: ...
    def release(self, count: int) -> None: ...
    def flush(self) -> None: ...


class _Watch:
    """What one watch of one client has seen."""

    __slots__ = ("client", "events_max", "is_poll", "prefixes", "reached", "request_id", "revision")

    def __init__(self, client: Client, request_id: int, wanted: WatchRequest) -> None:
        self.client = client
        self.request_id = request_id
        self.revision = Revision(wanted.revision)
        self.prefixes = wanted.prefixes
        self.is_poll = wanted.events_max > 0
        self.events_max = min(wanted.events_max or _EVENTS_PER_REPLY, _EVENTS_PER_REPLY)
        self.reached = wanted.reached

    def is_answer(self, found: Events) -> bool:
        """Say whether this is worth a reply."""
        return bool(found.events) or (self.is_poll and found.through >= self.reached)


def kv_store(birth: str, partition: PartitionId) -> StoreId:
    """Name the store of a group, in the cluster that was born so."""
    return StoreId(sha256(f"{birth}/{partition}".encode()).digest()[:16])


class KvService:
    """All clients of all groups of one node."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._groups: dict[PartitionId, HostedGroup] = {}
        self._clients: dict[int, Client] = {}
        self._next_number = _NODE_ITSELF + 1
        self._watches: dict[PartitionId, dict[tuple[int, int], _Watch]] = {}
        self._seen: dict[PartitionId, Revision] = {}
        self._dirty: dict[Client, None] = {}
        self.reads = KvReads(node, _machine, self._reply)
        self._expiring: set[PartitionId] = set()
        self._ticks = 0

    def host(self, partition: PartitionId) -> None:
        """Keep a store in a group of this number, on every node."""
        store = kv_store(self._node.cluster.birth, partition)
        self.serve(self._node.host(partition, lambda: KvMachine(store), self))

    def serve(self, group: HostedGroup) -> None:
        """Serve clients of a store that another service may host: it hands its outputs on."""
        self._groups[group.partition_id] = group

    def joined(self, client: Client) -> int:
        """Give a new connection its number."""
        number = self._next_number
        self._next_number += 1
        self._clients[number] = client
        return number

    def left(self, number: int) -> None:
        """Forget a connection; what it asked for goes on, unanswered."""
        client = self._clients.pop(number, None)
        if client is not None:
            self._dirty.pop(client, None)
        for watches in self._watches.values():
            for key in [key for key in watches if key[0] == number]:
                del watches[key]

    # Requests.

    def on_requests(self, number: int, requests: list[Request]) -> None:
        """Take what a connection brought in one turn. Raises StreamViolation."""
        client = self._clients[number]
        base = number << _ID_BITS
        groups: dict[int, HostedGroup] = cast("dict[int, HostedGroup]", self._groups)
        touched: HostedGroup | None = None
        for request_id, partition, operation, body in requests:
            group = groups.get(partition)
            if group is None:
                self._answer(client, request_id, Status.REFUSED, b"NoSuchGroup")
            elif operation == _COMMAND:
                self._on_command(client, group, base | request_id, body)
                if group is not touched:
                    touched = group
                    self._node.touch(group)
            elif operation == KvOperation.SNAPSHOT_READ:
                self._on_snapshot_read(group, base | request_id, body)
            elif operation == KvOperation.WATCH:
                self._on_watch(client, group, (number, request_id), body)
            elif operation == KvOperation.CANCEL:
                self._cancel(client, group, (number, request_id))
            else:
                raise StreamViolation(f"unknown operation {operation}")

    def _on_command(self, client: Client, group: HostedGroup, request: int, body: bytes) -> None:
        request_id = request & _ID_MASK
        if self._node.stopping:
            self._answer(client, request_id, Status.NOT_LEADER, b"")
            return
        try:
            command = decode_command(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self._answer(client, request_id, Status.APPLIED, _MALFORMED)
            return
        if isinstance(command, Get | ReadRange):
            self.reads.add_newest(group, request, body)
            return
        if self.reads.is_gated(group) and (refusal := refusal_through_the_log(group, command)):
            self._answer(client, request_id, Status.REFUSED, words_of(refusal).encode())
            return
        if not group.admission.admit(len(body)):
            self._reply(group, request, Status.THROTTLED, group.admission.refusal(wall_clock_ms()))
            self._node.touch(group)
            return
        if type(command) is not Put or command.ttl_ms or command.now_ms:
            body = _stamped(command, body)
        group.replica.propose(cast("RequestId", request), body)

    def _on_snapshot_read(self, group: HostedGroup, request: int, body: bytes) -> None:
        if self._node.control is None:
            self.reads.add_newest(group, request, body)  # nobody grants and revokes here
        else:
            self.reads.add(group, request, body, ReadKind.SNAPSHOT_ONLY)

    def _answer(self, client: Client, request_id: int, status: Status, body: bytes) -> None:
        client.stage(encode_reply(request_id, status, body))
        client.release(1)
        client.flush()

    # Watches.

    def _on_watch(
        self, client: Client, group: HostedGroup, key: tuple[int, int], body: bytes
    ) -> None:
        partition = group.partition_id
        try:
            wanted = _watch_decoder.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise StreamViolation("a watch that cannot be read") from None
        if not self.reads.may_watch(group):
            leader = self._node.admin_address(group.replica.leader_id)
            self._answer(client, key[1], Status.NOT_LEADER, leader.encode())
            return
        watches = self._watches.setdefault(partition, {})
        if sum(1 for number, _ in watches if number == key[0]) >= WATCHES_MAX:
            self._answer(client, key[1], Status.REFUSED, b"TooManyWatches")
            return
        watches[key] = _Watch(client, key[1], wanted)
        if self._may_show(group):
            self._feed(partition, key, _machine(group))

    def _cancel(self, client: Client, group: HostedGroup, key: tuple[int, int]) -> None:
        if self._watches.get(group.partition_id, {}).pop(key, None) is not None:
            client.release(2)  # the watch and its cancellation
        else:
            client.release(1)

    def _feed_all(self, group: HostedGroup) -> None:
        watches = self._watches.get(group.partition_id)
        if not watches:
            return
        partition, machine = group.partition_id, _machine(group)
        if not self._may_show(group):
            self._seen.pop(partition, None)  # what is shown again begins with what was kept back
        elif self._seen.get(partition) != machine.revision:
            self._seen[partition] = machine.revision
            for key in list(watches):
                self._feed(partition, key, machine)

    def _may_show(self, group: HostedGroup) -> bool:
        return self.reads.may_watch(group) and self.reads.may_show_newest(group)

    def _revoke_watches(self, group: HostedGroup) -> None:
        """End what a follower may show no more; a client goes on from there elsewhere."""
        watches = self._watches.get(group.partition_id)
        if not watches or self.reads.may_watch(group):
            return
        for key, watch in list(watches.items()):
            watch.client.stage(encode_reply(watch.request_id, Status.REFUSED, _REVOKED))
            self._end(group.partition_id, key)
            watch.client.flush()

    def _feed(self, partition: PartitionId, key: tuple[int, int], machine: KvMachine) -> None:
        watch = self._watches[partition][key]
        more = True
        while more and watch.client.writable:  # a slow watcher goes on in `on_writable`
            found = machine.events_since(watch.revision, watch.prefixes, limit=watch.events_max)
            if isinstance(found, EventsCompacted):
                oldest = found.oldest_available.to_bytes(8, "little")
                watch.client.stage(encode_reply(watch.request_id, Status.COMPACTED, oldest))
                self._end(partition, key)
            if not isinstance(found, Events):
                break  # ended, or ahead of this replica: later
            more = found.more
            watch.revision = found.through
            if watch.is_answer(found):
                self._tell(watch, found.events)
                if watch.is_poll:
                    self._end(partition, key)
                    break
        watch.client.flush()

    def on_writable(self, number: int) -> None:
        """Go on with the watches of a connection that reads again."""
        for partition, watches in self._watches.items():
            group = self._groups[partition]
            if not self._may_show(group):
                continue
            for key in [key for key in watches if key[0] == number]:
                self._feed(partition, key, _machine(group))

    def _tell(self, watch: _Watch, events: list[KvRecord]) -> None:
        body = _encode(WatchEvents(events, watch.revision))
        watch.client.stage(encode_reply(watch.request_id, Status.EVENTS, body))
        watch.client.flush()

    def _end(self, partition: PartitionId, key: tuple[int, int]) -> None:
        self._watches[partition].pop(key).client.release(1)

    def _give_signs_of_life(self, group: HostedGroup) -> None:
        """Give those that wait a sign of life, where this replica keeps up with its group.

        A poll ends with it; a watch goes on.
        """
        watches = self._watches.get(group.partition_id)
        if not watches or group.replica.group.core.leader_id is None:
            return
        revision = _machine(group).revision
        for key, watch in list(watches.items()):
            if watch.revision > revision or not watch.client.writable:
                continue
            self._tell(watch, [])
            if watch.is_poll:
                self._end(group.partition_id, key)

    # Outputs.

    def prepare(self) -> None:
        """Ask for the reads of this turn; other requests are proposed as they come."""
        self.reads.prepare()

    def on_output(self, group: HostedGroup, output: ReplicaOutput) -> None:
        """Stage the replies of one group's turn, and feed its watches."""
        for outcome in output.replies:
            if isinstance(outcome, Applied):
                self._on_applied(group, outcome)
                continue
            if isinstance(outcome, NotLeader):
                leader = self._node.admin_address(outcome.leader_id)
                status, body = Status.NOT_LEADER, leader.encode()
            elif isinstance(outcome, Unknown):
                status, body = Status.UNKNOWN, b""
            else:
                status, body = Status.REFUSED, outcome.reason.encode()
            for request in outcome.request_ids:
                self._reply(group, request, status, body)
        if output.reads:
            self.reads.on_output(group, output)
        self._feed_all(group)

    def _on_applied(self, group: HostedGroup, applied: Applied) -> None:
        """Stage the replies of a batch, one run of a connection's requests after another."""
        replies = applied.replies
        first, request_ids = 0, applied.request_ids
        while first < len(request_ids):
            number = request_ids[first] >> _ID_BITS
            client = self._clients.get(number)
            at = first
            ids: list[int] = []
            while at < len(request_ids) and request_ids[at] >> _ID_BITS == number:
                ids.append(request_ids[at] & _ID_MASK)
                at += 1
            if client is not None:
                client.stage(encode_replies(ids, _APPLIED, replies[first:at]))
                client.release(at - first)
                self._dirty[client] = None
            elif number == _NODE_ITSELF:
                self._expiring.discard(group.partition_id)
            first = at

    def _reply(self, group: HostedGroup, request: int, status: Status, body: bytes) -> None:
        number = request >> _ID_BITS
        client = self._clients.get(number)
        if client is not None:
            client.stage(encode_reply(request & _ID_MASK, status, body))
            client.release(1)
            self._dirty[client] = None
        elif number == _NODE_ITSELF:
            self._expiring.discard(group.partition_id)

    def flush(self) -> None:
        """Write to every client that something was staged for, once."""
        if self._dirty:
            dirty, self._dirty = self._dirty, {}
            for client in dirty:
                client.flush()

    def on_tick(self) -> None:
        """Let leaders delete the keys whose time has come, and answer polls that waited long."""
        self._ticks += 1
        for partition, group in self._groups.items():
            self._revoke_watches(group)
            self._feed_all(group)  # its copy may have been confirmed since, which is no output
            if self._ticks % _SILENT_TICKS_MAX == 0:
                self._give_signs_of_life(group)
            if not group.replica.leads or partition in self._expiring:
                continue
            due_ms = _machine(group).next_expiry_ms()
            now_ms = wall_clock_ms()
            if due_ms is not None and due_ms <= now_ms:
                self._expiring.add(partition)
                command = encode_command(Expire(now_ms, _EXPIRE_LIMIT))
                group.replica.propose(RequestId(_NODE_ITSELF), command)

    def on_peer_data(self, peer: NodeId, data: bytes) -> None:
        """Stores say nothing to each other but through their groups."""

    def on_peer_lost(self, peer: NodeId) -> None:
        """Nothing rests on a peer."""


def _machine(group: HostedGroup) -> KvMachine:
    machine = group.replica.machine
    if isinstance(machine, ControlMachine):
        return machine.kv
    assert isinstance(machine, KvMachine)
    return machine


def _stamped(command: Command, body: bytes) -> bytes:
    """Put this node's time on a command: nobody else's moves the store's clock.

    Only what can expire needs a time, so most commands pass as they came.
    """
    if isinstance(command, Get | ReadRange):
        return body
    expires = isinstance(command, Expire)
    if isinstance(command, Put | CasRevision | CasValue):
        expires = command.ttl_ms > 0
    elif isinstance(command, Txn):
        expires = any(isinstance(part, TxnPut) and part.ttl_ms for part in command.operations)
    if not expires and not command.now_ms:
        return body
    command.now_ms = wall_clock_ms() if expires else 0
    return encode_command(command)
