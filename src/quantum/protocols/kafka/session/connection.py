"""One Kafka connection: requests are taken in order, and answered in that order.

Requests run side by side where the protocol lets them (a producer has several on their way), but
behind one that may wait (a fetch, a join) none is begun, as clients expect of any broker. What is
read and not answered is bounded in number and bytes, and a client that does not read its answers is
not read either.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from clustor.runtime.containment import guarded
from quantum.edge.ports import ConnectionPeer, WirePort
from quantum.protocols.kafka.codec import (
    ApiKey,
    KafkaError,
    KafkaRequestReader,
    MalformedRequest,
    RequestFault,
    read_head,
)
from quantum.protocols.kafka.session.dispatch import begin
from quantum.protocols.kafka.session.kafka_node import KafkaNode
from quantum.protocols.kafka.session.kafka_tenant import TenantKafka
from quantum.protocols.kafka.session.request import KafkaRequest
from quantum.protocols.kafka.session.sasl_talk import SaslTalk
from quantum.tenants.binding import UNDER_TLS, disbelief, needs_list
from quantum.tenants.passwords import IDENTITY_PREFIX

PLACE: Final = "kafka connection"
_WAITING: Final = frozenset(
    {
        *(ApiKey.FETCH, ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP),
        *(ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE),
    }
)
"""Behind these no other request is begun before they are answered."""


class KafkaConnection:
    """A handler for the listeners; see the module."""

    __slots__ = (
        *("_held", "_is_closing", "_is_pulling", "_open_bytes", "_pending", "_quiet_until_ms"),
        *("_seen_ms", "_waits", "client_id", "node", "peer", "principal", "reader", "sasl"),
        *("tenant", "wire", "_entered"),
    )

    def __init__(self, node: KafkaNode) -> None:
        self.node = node
        self.wire: WirePort | None = None
        self.peer: ConnectionPeer | None = None
        self.tenant: TenantKafka | None = None
        self.principal: str | None = None
        """Who it is, by certificate, password or token; None: nobody yet."""
        self.client_id = ""
        self.sasl: SaslTalk | None = None
        limits = node.limits
        self.reader = KafkaRequestReader(produce_bytes_max=limits.produce_bytes_max)
        self._pending: deque[KafkaRequest] = deque()
        self._open_bytes = 0
        self._waits: KafkaRequest | None = None
        """The request behind which none is begun."""
        self._held = False  # the wire is not read
        self._is_pulling = False
        self._is_closing = False
        self._quiet_until_ms = 0
        self._seen_ms = 0
        self._entered = False

    # What the listener calls.

    @guarded(PLACE)
    def opened(self, wire: WirePort, peer: ConnectionPeer) -> None:
        self.wire, self.peer = wire, peer
        self._seen_ms = self.node.tick_ms
        self.node.joined(self)
        why = self._unwanted(peer)
        if why:
            self._refuse(why)
            return
        self.principal = peer.identity
        self.sasl = SaslTalk(self, must=self._must_show())
        self.reader.admitted = not self.sasl.must

    def _unwanted(self, peer: ConnectionPeer) -> str:
        """Say why nobody is served on this connection; empty: somebody is."""
        tenant = self.tenant = self.node.tenants.get(peer.tenant)
        if tenant is None:
            return "no such tenant"
        if tenant.tenant.shut or self.node.host.draining:
            return tenant.tenant.shut or "this node is being drained"
        guard = tenant.tenant.guard
        why = disbelief(peer, tenant.name, shared=guard.is_shared, awaits_token=True)
        if why is not None:
            return why
        self._entered = guard.enter(self.node.tick_ms)
        if self._entered:
            tenant.connections.add(self)
        return "" if self._entered else "too many connections"

    def _must_show(self) -> bool:
        """Say whether the client has to show by SASL who it is."""
        assert self.peer is not None
        if self.peer.identity is not None:
            return False
        passwords = self.node.passwords
        asks = passwords is not None and passwords.policy.password == "required"  # noqa: S105
        allows_nobody = passwords is not None and passwords.policy.allows_nobody
        return asks or (self.peer.transport in UNDER_TLS and not allows_nobody)

    @guarded(PLACE)
    def received(self, data: bytes) -> None:
        self._seen_ms = self.node.tick_ms
        self.node.bytes_in += len(data)
        if not self._is_closing:
            self.reader.receive(data)
            self.pull()

    @guarded(PLACE)
    def writable_again(self) -> None:
        self._go_on()

    def lost(self) -> None:
        self.wire = None
        self._close()

    def expelled(self, why: str) -> None:
        """End a client whose certificate is believed no more."""
        self._refuse(why)

    def whom(self) -> str:
        return "" if self.peer is None else self.peer.address

    def abort(self) -> None:
        if self.wire is not None:
            self.wire.abort()
        self._close()

    # What comes in.

    @guarded(PLACE)
    def pull(self) -> None:
        """Begin with whatever is whole and may be begun."""
        if self._is_pulling:
            return
        self._is_pulling = True
        try:
            while self._may_begin():
                data = self.reader.next_request()
                if data is None:
                    break
                self._take(data)
        except RequestFault as fault:
            self.fail(fault)
        finally:
            self._is_pulling = False
        self._hold_or_read()

    def _may_begin(self) -> bool:
        limits = self.node.limits
        return (
            self.wire is not None
            and not self._is_closing
            and self._waits is None
            and self.wire.writable
            and len(self._pending) < limits.requests_open_max
            and self._open_bytes < limits.open_bytes_max
            and self._quiet_until_ms <= self.node.tick_ms
        )

    def _hold_or_read(self) -> None:
        """Leave the peer unread while nothing of it may be begun, and a whole request waits."""
        if self.wire is None or self._is_closing:
            return
        hold = not self._may_begin()
        if hold != self._held:
            self._held = hold
            if hold:
                self.wire.pause_reading()
            else:
                self.wire.resume_reading()

    def _take(self, data: bytes) -> None:
        head = read_head(data)
        request = KafkaRequest(self, head, data)
        self.client_id = head.client_id or ""
        self.node.requests += 1
        self._pending.append(request)
        self._open_bytes += request.size
        if head.api_key in _WAITING:
            self._waits = request
        self._begin(request)

    def _begin(self, request: KafkaRequest) -> None:
        sasl = self.sasl
        if sasl is None or sasl.lets_pass(request.head.api_key):
            begin(request)
        else:
            raise MalformedRequest("it must show who it is first", api_key=request.head.api_key)

    def hold_behind(self, request: KafkaRequest) -> None:
        """Begin nothing that came behind a request that cannot begin yet."""
        self._waits = request

    def begun(self, request: KafkaRequest) -> None:
        """Go on behind a request that could not begin before."""
        if request is self._waits and request.head.api_key not in _WAITING:
            self._waits = None
            self._go_on()

    def on_sasl_handshake(self, request: KafkaRequest) -> None:
        assert self.sasl is not None
        self.sasl.on_handshake(request)

    def on_sasl_message(self, request: KafkaRequest) -> None:
        assert self.sasl is not None
        self.sasl.on_message(request)

    # What goes out.

    def answered(self) -> None:
        """A request has its answer: let it leave with this turn, in its place."""
        self.node.dirty(self)

    @guarded(PLACE)
    def flush(self) -> None:
        """Write the answers that no unanswered request stands before."""
        out: list[bytes | memoryview] = []
        while self._pending and self._pending[0].pieces is not None:
            request = self._pending.popleft()
            self._open_bytes -= request.size
            out += request.pieces or ()
            if request is self._waits:
                self._waits = None
            if request.throttle_ms:
                until_ms = self.node.tick_ms + request.throttle_ms
                self._quiet_until_ms = max(self._quiet_until_ms, until_ms)
        if self.wire is None:
            return
        if out:
            data = b"".join(out)
            self.node.bytes_out += len(data)
            self.wire.write(data)
        if self._is_closing and not self._pending:
            self.wire.close()
        else:
            self._go_on()

    def _go_on(self) -> None:
        if self._held or self.reader.buffered_bytes:
            self.pull()

    # Ends.

    def fail(self, fault: KafkaError) -> None:
        """End a client that broke the protocol where no answer has a shape."""
        tenant = "" if self.tenant is None else self.tenant.name
        self.node.count_fault(fault, self.whom(), tenant)
        self.close_soon()

    def close_soon(self) -> None:
        """Take nothing more, and close behind what is still to be answered."""
        self._is_closing = True
        if self.wire is not None:
            self.wire.pause_reading()
        self._pending = deque(each for each in self._pending if each.pieces is not None)
        self.node.dirty(self)

    def _refuse(self, why: str) -> None:
        tenant = "" if self.tenant is None else self.tenant.name
        self.node.host.note_refused("ConnectRefused", who=self.whom(), why=why, tenant=tenant)
        self.close_soon()

    def check_time(self, now_ms: int) -> None:
        """Close what was idle too long, drips, or does not show who it is."""
        limits = self.node.limits
        silent_ms = now_ms - self._seen_ms
        if self._held and self._quiet_until_ms <= now_ms:
            self.pull()
        if self.reader.buffered_bytes and not self._held and silent_ms > limits.whole_within_ms:
            self.fail(MalformedRequest("a request is not whole in time"))
        elif not self._pending and not self._held and silent_ms > limits.idle_ms_max:
            self.close_soon()
        elif self.sasl is not None and self.sasl.is_late(now_ms):
            self.fail(MalformedRequest("it did not show who it is in time"))
        elif not self._is_closing and not self._is_user():
            self._refuse("it is no user any more")

    def _is_user(self) -> bool:
        """Say whether the user that a password named is still one, as this node knows."""
        passwords, tenant = self.node.passwords, self.tenant
        if tenant is None or passwords is None or passwords.words is None:
            return True
        principal = self.principal or ""
        is_named = principal.startswith(IDENTITY_PREFIX)
        return not is_named or passwords.is_user(tenant.name, principal)

    def _close(self) -> None:
        self._is_closing = True
        if self.tenant is not None and self._entered:
            self._entered = False
            self.tenant.connections.discard(self)
            self.tenant.tenant.guard.leave(self.node.tick_ms)
        if self.peer is not None:
            self.node.left(self)
            self.peer = None
        self._pending.clear()

    def sent_away(self, why: str) -> None:
        """An operator does not want this client any more."""
        self._refuse(why)

    # Who it is.

    @property
    def needs_list(self) -> bool:
        """Whether it may do nothing where its tenant has no access list."""
        shared = self.tenant is not None and self.tenant.tenant.guard.is_shared
        return needs_list(self.peer, shared=shared)

    def admitted(self, principal: str) -> None:
        """Know from now on who it is."""
        self.principal = principal
        self.reader.admitted = True

    def policy_changed(self) -> None:
        """Go on under other rules; who may not connect any more goes."""
        if self.peer is None or self.tenant is None:
            return
        guard = self.tenant.tenant.guard
        if not guard.may_connect(self.principal, self.client_id.encode()):
            self._refuse("the rules of the tenant let it not connect any more")
