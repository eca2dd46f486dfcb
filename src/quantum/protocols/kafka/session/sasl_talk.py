"""SASL on one connection: what the exchange asks is found out from the tenant's credentials."""

from __future__ import annotations

from typing import Final, Protocol

from quantum.edge.ports import ConnectionPeer
from quantum.edge.tokens import KAFKA_SCOPE, Claim, TokenRefused, check_bearer
from quantum.protocols.kafka.codec import ApiKey, KafkaCode
from quantum.protocols.kafka.requests import (
    OAUTHBEARER,
    PLAIN,
    CheckPassword,
    CheckToken,
    KafkaSaslExchange,
    LookUpScram,
    SaslReply,
    SaslStep,
)
from quantum.protocols.kafka.session.kafka_node import KafkaNode
from quantum.protocols.kafka.session.kafka_tenant import TenantKafka
from quantum.protocols.kafka.session.request import KafkaRequest
from quantum.tenancy import SCRAM_MECHANISMS
from quantum.tenants.binding import UNDER_TLS
from quantum.tenants.passwords import IDENTITY_PREFIX

_STRANGERS: Final = frozenset(
    {ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE}
)
_NONCE_BYTES: Final = 18
TOKEN_PREFIX: Final = "token:"  # noqa: S105  # in front of a token's subject


class SaslOwner(Protocol):
    """The connection that shows who it is."""

    node: KafkaNode
    tenant: TenantKafka | None
    peer: ConnectionPeer | None
    client_id: str

    def admitted(self, principal: str) -> None: ...
    def close_soon(self) -> None: ...


class SaslTalk:
    """One connection's exchange; a client may begin again with another (KIP-368)."""

    def __init__(self, owner: SaslOwner, *, must: bool) -> None:
        self._owner = owner
        self.must = must
        """Whether nothing else is answered before it is done."""
        node = owner.node
        self._deadline_ms = node.tick_ms + node.limits.sasl_ms_max
        self._exchange: KafkaSaslExchange | None = None
        self._request: KafkaRequest | None = None
        self._without_keys = ""
        """The user for whom nothing is kept that SCRAM could check; said in the log alone."""

    def lets_pass(self, api_key: int) -> bool:
        """Say whether a request may be answered now."""
        return not self.must or api_key in _STRANGERS

    def is_late(self, now_ms: int) -> bool:
        return self.must and now_ms >= self._deadline_ms

    def mechanisms(self) -> tuple[str, ...]:
        """Name what this client may use: passwords and tokens in clear need TLS around them."""
        node, peer = self._owner.node, self._owner.peer
        scram = () if node.passwords is None else SCRAM_MECHANISMS
        if peer is None or peer.transport not in UNDER_TLS:
            return scram
        found = scram if node.passwords is None else (PLAIN, *scram)
        return found if node.token_keys is None else (*found, OAUTHBEARER)

    def on_handshake(self, request: KafkaRequest) -> None:
        """Begin an exchange with the client's mechanism."""
        names = self.mechanisms()
        if self._exchange is None or self._exchange.principal is not None:
            nonce = self._owner.node.entropy(_NONCE_BYTES).hex
            secret = self._owner.node.decoy_secret
            self._exchange = KafkaSaslExchange(names, nonce, secret)
        code = self._exchange.on_handshake(request.body.mechanism)
        request.answer({"error_code": code, "mechanisms": names})
        if code is not KafkaCode.none:
            self._fail("no such mechanism")

    def on_message(self, request: KafkaRequest) -> None:
        """Take one message of the exchange; it may take a while to answer it."""
        if self._exchange is None:
            self._tell(request, SaslReply(KafkaCode.illegal_sasl_state, reason="no handshake"))
            return
        self._request = request
        self._step(self._exchange.on_message(request.body.auth_bytes))

    def _step(self, step: SaslStep) -> None:
        exchange = self._exchange
        assert exchange is not None
        match step:
            case CheckPassword():
                self._check_password(step)
            case LookUpScram():
                self._look_up(step)
            case CheckToken():
                self._check_token(step)
            case SaslReply():
                request, self._request = self._request, None
                assert request is not None
                self._tell(request, step)

    def _tell(self, request: KafkaRequest, reply: SaslReply) -> None:
        if reply.principal is not None:
            self.must = False
            is_token = self._exchange is not None and self._exchange.mechanism == OAUTHBEARER
            prefix = TOKEN_PREFIX if is_token else IDENTITY_PREFIX
            self._owner.admitted(prefix + reply.principal)
        request.answer(
            {
                "error_code": reply.error,
                "error_message": reply.reason,
                "auth_bytes": reply.data,
                "session_lifetime": reply.session_ms,
            }
        )
        if reply.error is not KafkaCode.none:
            self._fail(self._without_keys or reply.reason or "authentication failed")

    def _fail(self, why: str) -> None:
        owner = self._owner
        tenant = "" if owner.tenant is None else owner.tenant.name
        who = "" if owner.peer is None else owner.peer.address
        owner.node.host.note_refused("ConnectRefused", who=who, why=why, tenant=tenant)
        owner.close_soon()

    # What is found out.

    def _check_password(self, asked: CheckPassword) -> None:
        owner = self._owner
        assert owner.tenant is not None and owner.node.passwords is not None
        exchange = self._exchange
        assert exchange is not None

        def judged(is_right: bool) -> None:  # as `Passwords` calls it
            self._step(exchange.on_password(matches=is_right))

        passwords = owner.node.passwords
        if not passwords.judge(owner.tenant.name, asked.user, asked.password, judged):
            judged(False)  # noqa: FBT003

    def _look_up(self, asked: LookUpScram) -> None:
        """Find out what is kept for a user; a decoy looks like what another one has."""
        tenant, passwords, exchange = self._owner.tenant, self._owner.node.passwords, self._exchange
        assert tenant is not None and passwords is not None and exchange is not None
        found = passwords.scram(tenant.name, asked.user, asked.mechanism)
        if found is None and passwords.is_user(tenant.name, asked.user):
            self._without_keys = (
                f"user {asked.user} has no keys for {asked.mechanism}: set its password again"
            )
        like = passwords.scram_like(tenant.name, asked.user, asked.mechanism)
        self._step(exchange.on_credential(found, like))

    def _check_token(self, asked: CheckToken) -> None:
        node, tenant, exchange = self._owner.node, self._owner.tenant, self._exchange
        assert tenant is not None and exchange is not None
        assert node.token_keys is not None
        claim = Claim(tenant.name, "", b"", node.token_keys.auth_epoch(tenant.name))
        keys = node.token_keys.of(tenant.name) or {}
        now_s = node.host.now_ms() // 1000
        try:
            granted = check_bearer(asked.token.encode(), keys, claim, KAFKA_SCOPE, now_s)
        except TokenRefused:
            self._step(exchange.on_token(None))
            return
        left_ms = granted.expires * 1000 - node.host.now_ms()
        self._step(exchange.on_token(granted.subject, max(1, left_ms)))
