"""The API: a request in, a response out, every refusal in one shape and on record.

Who calls is the certificate's SPIFFE URI. What a call may do is decided by the control plane, in
the log; this room keeps strangers from the log, and decides who may read.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import cache
from typing import Final
from urllib.parse import urlsplit

import msgspec

from clustor.control import (
    AccessRole,
    CacheFreshness,
    Caller,
    ClusterConfig,
    Done,
    DraftReading,
    RbacRule,
    RefusalCode,
    find,
    rbac_rule,
)
from clustor.control.gates import RETRY_AFTER_MS_MIN
from clustor.control.rbac import CallerAuthority
from clustor.control.types import Name
from clustor.runtime.admin.http import (
    JSON,
    Request,
    Response,
    Text,
    host_name,
    is_loopback_name,
)
from clustor.runtime.errors import ControlUnavailable
from quantum.admin.answers import CallDone
from quantum.admin.break_glass import (
    require_covered,
    require_issuer,
    require_no_glass,
    token_id_of,
)
from quantum.admin.errors import (
    ApiError,
    ErrorBody,
    forbidden,
    malformed,
    of_refusal,
    unauthenticated,
    unavailable,
)
from quantum.admin.identity import AdminPeer, Authorities, holds_token, is_revoked, peer_of
from quantum.admin.matching import RouteTable, bind_body, bind_path, bind_query
from quantum.admin.node_pages import RefusalRing
from quantum.admin.openapi import document
from quantum.admin.port import ControlPort, ExplanationPort, GroupsPort, RefusalNote, RefusalSink
from quantum.admin.routes import READERS, AdminRequest, AdminRoute
from quantum.admin.shapes import shown
from quantum.admin.table import ROUTES
from quantum.node.served import ServedBroker

ANSWER_SECONDS_MAX: Final = 30.0
DEVELOPMENT_HEADER: Final = "Quantum-Development"
DEVELOPMENT_NOTE: Final = "plaintext on loopback; every caller is Operator"
OPENAPI_PATH: Final = "/openapi.json"
_REFUSED: Final = frozenset({401, 403, 421})

_TABLE: Final = RouteTable(ROUTES)

journal = logging.getLogger("quantum.admin")


class ApiServer:
    """`/v1` of one node. With `development` every caller is that identity, over plaintext."""

    def __init__(
        self,
        port: ControlPort,
        *,
        now_ms: Callable[[], int],
        draw_id: Callable[[], str],
        development: str | None = None,
        why: ExplanationPort | None = None,
        groups: GroupsPort | None = None,
        sink: RefusalSink | None = None,
        broker: Callable[[], ServedBroker | None] = lambda: None,
    ) -> None:
        self.port = port
        self.broker = broker
        """The broker of this node, as soon as it is served."""
        self.development = development
        self.why = why
        self.groups = groups
        self.refusals = RefusalRing()
        self._sink = sink
        self.now_ms = now_ms
        self._draw_id = draw_id
        self._authorities = Authorities()

    async def answer(self, request: Request) -> Response:
        """Answer a request below `/v1`, or for the document."""
        given = request.headers.get("idempotency-key")
        request_id = given if given is not None and _is_name(given) else self._draw_id()
        try:
            if given not in (None, request_id):
                raise malformed("an Idempotency-Key is letters, digits, '.', '_' and '-'")
            async with asyncio.timeout(ANSWER_SECONDS_MAX):
                content, media = await self._answer(request, request_id)
            if media != JSON:
                assert isinstance(content, bytes)
                content = Text(content, media)
            return Response(200, content, self._headers(request_id))
        except Exception as error:  # noqa: BLE001
            return self._refuse(request, request_id, self._refusal(request, error))

    async def guard(self, request: Request, roles: frozenset[AccessRole]) -> Response | None:
        """Let a request for another page through (None), or refuse it."""
        request_id = self._draw_id()
        try:
            peer = self._identify(request)
            require_no_glass(peer)
            local = await self.port.state(linearizable=False)
            self._require_good(local, peer)
            if roles == READERS and peer.may_look_early and not _is_initialized(local):
                return None  # a host that joins knows no roles, and must be seen to be let in
            _require_initialized(local)
            self._require_role(self._authority(local, peer.identity), roles)
        except Exception as error:  # noqa: BLE001
            return self._refuse(request, request_id, self._refusal(request, error))
        return None

    async def _answer(self, request: Request, request_id: str) -> tuple[object, str]:
        """Return what is answered, and what that is."""
        parts = urlsplit(request.target)
        peer = self._identify(request)
        local = await self.port.state(linearizable=False)
        self._require_good(local, peer)
        if parts.path == OPENAPI_PATH and request.method == "GET":
            return _document(), JSON
        route, texts = _TABLE.find(request.method, parts.path)
        values = bind_path(route, texts) | bind_query(route, parts.query)
        body = bind_body(route, request.body)
        caller = Caller(identity=peer.identity, break_glass=_token(request, peer))
        linearizable = values.pop("linearizable", True)
        is_look = route.is_local and not (route.mutates and request.encrypted)
        if route.freshness is CacheFreshness.ANY or is_look:
            store = local
        elif route.make is not None or route.is_local:
            store = await self._store_with_roles()
        else:
            store = await self.port.state(linearizable=linearizable)
            self._require_heard(linearizable=linearizable)
        if peer.scope is not None and request.certificate is not None:
            require_issuer(store, request.certificate, self.now_ms())
        require_covered(route, store, peer)
        authority = self._authority(store, peer.identity)
        asked = AdminRequest(
            store,
            caller,
            authority,
            values,
            body,
            request_id,
            request.encrypted,
            self._quotas_in_force,
        )
        answering = self._read(route, asked) if route.make is None else self._call(route, asked)
        return await answering, route.media

    # Who.

    def _identify(self, request: Request) -> AdminPeer:
        """Say who calls; without TLS only development mode does, on loopback."""
        if not request.encrypted:
            if self.development is None:
                raise unauthenticated("NoCertificate", "this port wants a client certificate")
            _require_loopback_host(request)
            return AdminPeer(self.development, "")
        if request.certificate is None:
            raise unauthenticated("NoCertificate", "the caller showed no certificate")
        peer = peer_of(request.certificate)
        if peer is None:
            raise unauthenticated("NoIdentity", "the certificate names nobody by a SPIFFE URI")
        return peer

    @staticmethod
    def _require_good(store: DraftReading, peer: AdminPeer) -> None:
        if peer.serial and is_revoked(store, peer):
            raise unauthenticated(
                "CertificateRevoked",
                "the certificate was revoked",
                serial=peer.serial,
                identity=peer.identity,
            )

    def _authority(self, store: DraftReading, identity: str) -> CallerAuthority:
        return self._authorities.of(store, identity)

    @staticmethod
    def _require_role(authority: CallerAuthority, roles: frozenset[AccessRole]) -> None:
        if roles and not authority.roles & roles:
            raise forbidden(
                "the caller has none of these roles",
                roles=sorted(roles),
                identity=authority.identity,
            )

    def _rbac_rule(self) -> RbacRule:
        age_ms = self.port.local_age()
        return RbacRule.UNAVAILABLE if age_ms is None else rbac_rule(age_ms)

    async def _store_with_roles(self) -> DraftReading:
        """Return a store whose roles may let a call pass (clustor §12.3).

        Where this node's copy is too old for that, the roles are heard anew: a confirmed read is
        a refresh, and only where there is none nobody may change anything.
        """
        if self._rbac_rule() is RbacRule.AVAILABLE:
            return await self.port.state(linearizable=False)
        try:
            return await self.port.state(linearizable=True)
        except ControlUnavailable as error:
            raise self._roles_unheard() from error

    def _require_heard(self, *, linearizable: bool) -> None:
        if not linearizable and self._rbac_rule() is RbacRule.UNAVAILABLE:
            raise self._roles_unheard()

    def _roles_unheard(self) -> ApiError:
        return unavailable(
            "RBACUnavailable",
            "this node has not heard of the roles for too long",
            RETRY_AFTER_MS_MIN,
            cache_age_ms=self.port.local_age(),
        )

    def _quotas_in_force(self, tenant: str) -> Mapping[str, int]:
        broker = self.broker()
        return {} if broker is None else broker.quotas_in_force(tenant)

    # What.

    async def _read(self, route: AdminRoute, asked: AdminRequest) -> object:
        if not (route.is_local and not asked.encrypted):  # in development everybody is Operator
            self._require_reader(route, asked)
        assert route.read is not None
        found = route.read(self, asked)
        if isinstance(found, Awaitable):
            found = await found
        return found if isinstance(found, bytes) else shown(route.answer, found)

    def _require_reader(self, route: AdminRoute, asked: AdminRequest) -> None:
        _require_initialized(asked.store)
        self._require_role(asked.authority, route.roles)
        others = asked.authority.roles & (route.roles - {AccessRole.TENANT_ADMIN})
        if route.own_tenant and not others:
            _require_own_tenant(asked)

    async def _call(self, route: AdminRoute, asked: AdminRequest) -> bytes:
        assert route.make is not None and route.kind is not None
        if route.freshness is not CacheFreshness.ANY:
            self._keep_strangers_out(route, asked)
        try:
            command = route.make(asked)
        except msgspec.ValidationError as error:
            raise malformed(str(error)) from None
        if route.check is not None:
            route.check(command)
        answer = await self.port.call(command, asked.caller, asked.request_id)
        if not isinstance(answer, Done):
            raise of_refusal(answer)
        result = dict(answer.result)
        if route.remark is not None:
            result |= route.remark(command, asked)
        done = CallDone(request_id=asked.request_id, revision=answer.revision, result=result)
        return shown(CallDone, done)

    @staticmethod
    def _keep_strangers_out(route: AdminRoute, asked: AdminRequest) -> None:
        """Refuse here who has no role at all: a stranger must not fill the log's audit trail.

        Everybody else is refused by the log, and on record there.
        """
        if asked.authority.roles or not route.roles:
            return
        _require_initialized(asked.store)
        token = asked.caller.break_glass
        if token is None or not holds_token(asked.store, asked.caller.identity, token):
            raise forbidden(
                "the caller has no role here, and no break-glass token",
                roles=sorted(route.roles),
                identity=asked.caller.identity,
            )

    # The response.

    def _headers(self, request_id: str) -> dict[str, str]:
        headers = {"Request-Id": request_id, "Cache-Control": "no-store"}
        age_ms = self.port.local_age()
        if age_ms is not None:
            headers["Quantum-Cache-Age-Ms"] = str(age_ms)
        if self.development is not None:
            headers[DEVELOPMENT_HEADER] = DEVELOPMENT_NOTE
        return headers

    def _refusal(self, request: Request, error: Exception) -> ApiError:
        """Say what went wrong. A bug of a page must not end a node that serves messages."""
        if isinstance(error, ApiError):
            return error
        if isinstance(error, ControlUnavailable):
            return _of_outage(error, self.port.local_age())
        if isinstance(error, TimeoutError):
            return _too_late()
        journal.critical("a request failed: %s", request.target, exc_info=error)
        return _our_fault()

    def _refuse(self, request: Request, request_id: str, error: ApiError) -> Response:
        if error.status in _REFUSED and not error.is_recorded:
            self._note(request, request_id, error)
        content = shown(ErrorBody, error.body(request_id))
        return Response(error.status, content, self._headers(request_id) | error.headers)

    def _note(self, request: Request, request_id: str, error: ApiError) -> None:
        peer = peer_of(request.certificate) if request.certificate is not None else None
        note = RefusalNote(
            at=self.now_ms(),
            identity=peer.identity if peer is not None else None,
            method=request.method,
            path=urlsplit(request.target).path[:256],
            error=error.error,
            message=error.message,
            request_id=request_id,
        )
        self.refusals.note(note)
        if self._sink is not None:
            self._sink.note(note)


@cache
def _document() -> bytes:
    return document(ROUTES)


def _is_initialized(store: DraftReading) -> bool:
    return find(store, ClusterConfig, "config") is not None


def _require_initialized(store: DraftReading) -> None:
    """Before the cluster has its name nobody has a role; that is no refusal of anybody."""
    if not _is_initialized(store):
        raise ApiError(
            503,
            RefusalCode.NOT_INITIALIZED.value,
            "the cluster is not initialized, as far as this node knows",
            next="wait a moment and repeat it; a new cluster: POST /v1/cluster/initialize",
            headers={"Retry-After": "1"},
        )


def _require_own_tenant(asked: AdminRequest) -> None:
    if asked.values["tenant_id"] not in asked.authority.tenants:
        raise forbidden("not this tenant's admin", tenant=asked.values["tenant_id"])


def _is_name(text: str) -> bool:
    try:
        msgspec.convert(text, type=Name)
    except msgspec.ValidationError:
        return False
    return True


def _token(request: Request, peer: AdminPeer) -> str | None:
    """Return the break-glass token that is used: the certificate's own, or the named one."""
    token = request.headers.get("break-glass")
    if token is not None and not _is_name(token):
        raise malformed("Break-Glass names a token: letters, digits, '.', '_' and '-'")
    if peer.scope is None:
        return token
    if token not in (None, token_id_of(peer.serial)):
        raise malformed("a break-glass certificate is its own token: name no other")
    return token_id_of(peer.serial)


def _require_loopback_host(request: Request) -> None:
    """Refuse a name that somebody else's page made to point here."""
    host = request.headers.get("host", "")
    if not is_loopback_name(host_name(host)):
        raise ApiError(
            421,
            "NotLoopback",
            "in development mode this port answers on loopback alone",
            next="ask 127.0.0.1 or localhost",
            facts={"host": host[:256]},
        )


def _of_outage(error: ControlUnavailable, age_ms: int | None) -> ApiError:
    because = error.facts.get("because")
    facts = {name: fact for name, fact in error.facts.items() if name != "because"}
    return unavailable(
        "ControlPlaneUnavailable",
        error.reason,
        RETRY_AFTER_MS_MIN,
        reason=str(because) if because is not None else "NoLeader",
        maybe_applied=error.maybe_applied,
        cache_age_ms=age_ms,
        **facts,
    )


def _too_late() -> ApiError:
    return ApiError(
        504,
        "Timeout",
        "the control plane did not answer in time; the call may or may not stand",
        next="repeat it under the same Idempotency-Key: it is carried out once",
        facts={"seconds": int(ANSWER_SECONDS_MAX)},
    )


def _our_fault() -> ApiError:
    return ApiError(
        500,
        "OurFault",
        "this page failed, and that is a bug of ours; the node's log has the details",
        next="report it with the request id; repeating it may fail again",
    )
