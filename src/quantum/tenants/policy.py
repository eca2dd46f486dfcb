"""What tenants may do on this node: `tenants.toml` beside `broker.json`, and its enforcement.

The file is read again when it changes. One that has mistakes changes nothing: its mistakes are
written to the journal, and what was in force stays in force.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from clustor.runtime.errors import DataDirectoryRefused
from quantum.tenancy import (
    UNRESTRICTED,
    AccessDecision,
    AclRefusal,
    Alert,
    ClientAccess,
    CompiledAcl,
    InvalidTenants,
    NoisyNeighbour,
    Operation,
    Principal,
    QuotaDecision,
    QuotaLedger,
    Quotas,
    QuotaVerdict,
    Rate,
    RateDecision,
    Rates,
    Resource,
    ResourceKind,
    TenantDescription,
    Wills,
    describe_tenants,
)
from quantum.tenants.binding import NOTHING_ALLOWED
from quantum.tenants.control_words import ConnectRules
from quantum.tenants.recent import Recent
from quantum.tenants.session_names import client_of
from quantum.types import ClientId

TENANTS_FILES: Final = ("tenants.toml", "tenants.json")
_NO_RATES: Final = Rates()
_NOTED_MAX: Final = 10_000
_CARRIED_OUT: Final = (QuotaVerdict.ADMIT, QuotaVerdict.THROTTLE)

journal = logging.getLogger("quantum.broker")
audit = logging.getLogger("quantum.audit")


class TenantsFile:
    """The operator's description of the tenants of one data directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._seen: tuple[str, int, int] | None = None

    def read(self) -> dict[str, TenantDescription]:
        """Read it; no file describes nobody. Raises DataDirectoryRefused, with every mistake."""
        self._seen = self._look()
        path = self._path()
        if path is None:
            return {}
        try:
            decode = msgspec.toml.decode if path.suffix == ".toml" else msgspec.json.decode
            document = decode(path.read_bytes())
            return describe_tenants(document if isinstance(document, dict) else {"": document})
        except InvalidTenants as error:
            raise DataDirectoryRefused(error.reason, file=str(path)) from error
        except (OSError, ValueError) as error:
            raise DataDirectoryRefused(
                "cannot read the tenants' description", file=str(path), cause=error
            ) from error

    def read_if_changed(self) -> dict[str, TenantDescription] | None:
        """Return what it says if it is another file than the last time, and free of mistakes."""
        if self._look() == self._seen:
            return None
        try:
            return self.read()
        except DataDirectoryRefused as refusal:
            journal.error("the tenants stay as they were: %s", refusal)
            return None

    def _path(self) -> Path | None:
        there = [self._directory / name for name in TENANTS_FILES]
        there = [path for path in there if path.exists()]
        if len(there) > 1:
            raise DataDirectoryRefused(
                "tenants are described in TOML or in JSON, not in both",
                directory=str(self._directory),
            )
        return there[0] if there else None

    def _look(self) -> tuple[str, int, int] | None:
        for name in TENANTS_FILES:
            try:
                found = (self._directory / name).stat()
            except OSError:
                continue
            return name, found.st_mtime_ns, found.st_size
        return None


def server_name_owners(described: Mapping[str, TenantDescription]) -> dict[str, str]:
    """Return which tenant each server name (SNI) leads to."""
    return {
        name: tenant
        for tenant, description in described.items()
        for name in description.server_names
    }


def identity_digest(identity: str | None) -> bytes:
    """Return what a session remembers of whom a certificate names; empty for nobody."""
    if identity is None:
        return b""
    return hashlib.blake2b(identity.encode(), digest_size=16).digest()


class TenantGuard:
    """One tenant's policy as this node enforces it. What it counts is this node's."""

    def __init__(self, name: str, now_ms: int) -> None:
        self._name = name
        self.description = TenantDescription()
        self._ledger = QuotaLedger(Quotas())
        self._rates = NoisyNeighbour(_NO_RATES, now_ms)
        self._expiry_noted: set[bytes] = set()
        self.recent: Recent | None = None
        self.is_shared = False
        """Whether other tenants are here too."""
        self.connects: ConnectRules | None = None
        """Who may connect; None: everybody that the tenant's door lets in."""
        self.alerts: dict[Resource, Alert] = {}
        """Which quotas are nearly or more than used up (A.4), as of the last request for each."""

    def may_connect(self, identity: str | None, client_id: bytes) -> bool:
        """Say whether the rules let a client connect."""
        return self.connects is None or self.connects.allow(identity or "", client_of(client_id))

    def change(self, description: TenantDescription, now_ms: int) -> None:
        """Put another policy in force; what is held and what is owed stays."""
        if description.policy.rates != self.description.policy.rates:
            self._rates = NoisyNeighbour(description.policy.rates, now_ms)
        self._ledger.change(description.policy.quotas, now_ms)
        self.description = description

    @property
    def disconnects(self) -> bool:
        """Whether a client that does what the rules refuse is sent away (C14)."""
        return self.description.policy.acl_refusal is AclRefusal.DISCONNECT

    @property
    def has_standard_wills(self) -> bool:
        """Whether a takeover says the will of whom it takes over, whoever it is (C23)."""
        return self.description.policy.wills is Wills.STANDARD

    def access(
        self, identity: str | None, client_id: bytes, *, needs_list: bool = False
    ) -> ClientAccess | None:
        """Return a client's view of the access rules; None: it may do everything.

        Without a list that is so, unless one is needed: then it may do nothing.
        """
        acl = self._rules(needs_list=needs_list)
        if acl is None:
            return None
        return acl.for_client(Principal(identity or ""), ClientId(client_of(client_id)))

    def may(
        self,
        principal: str | None,
        operation: Operation,
        kind: ResourceKind,
        name: bytes,
        *,
        client_id: bytes = b"",
        needs_list: bool = False,
    ) -> AccessDecision:
        """Decide whether whoever a certificate, token or password names may do something.

        The same for every protocol; None is nobody. Without a list everybody may, unless one is
        needed. The client id counts for rules about topics alone.
        """
        acl = self._rules(needs_list=needs_list)
        if acl is None:
            return UNRESTRICTED
        return acl.may(Principal(principal or ""), operation, kind, name, ClientId(client_id))

    def _rules(self, *, needs_list: bool) -> CompiledAcl | None:
        """Return the rules; None: there are none, and everything is allowed."""
        acl = self.description.acl
        return NOTHING_ALLOWED if acl is None and needs_list else acl

    def gate(self, now_ms: int) -> PublishGate | None:
        """Return what looks at each publish of a new connection; None where nothing has to."""
        description = self.description
        policy, own = description.policy, description.connection_rates
        counts = any(each.publishes or each.publish_bytes for each in (policy.rates, own))
        if policy.quotas.retained_bytes == Quotas().retained_bytes and not counts:
            return None
        return PublishGate(self._ledger, self._rates, NoisyNeighbour(own, now_ms))

    # Connections and subscriptions.

    @property
    def connections(self) -> int:
        """How many clients are connected."""
        return self._ledger.usage(Resource.CONNECTIONS).used

    def enter(self, now_ms: int) -> bool:
        """Count a connection in, unless there are too many."""
        decision = self._ledger.charge(Resource.CONNECTIONS, 1, now_ms)
        self._watch(decision)
        return decision.verdict in _CARRIED_OUT

    def leave(self, now_ms: int) -> None:
        self._ledger.release(Resource.CONNECTIONS, 1, now_ms)
        if Resource.CONNECTIONS in self.alerts:
            self._watch(self._ledger.charge(Resource.CONNECTIONS, 0, now_ms))

    def ask(self, rate: Rate, amount: int, now_ms: int) -> RateDecision:
        """Decide about connects or subscribes by how fast they come."""
        return self._rates.ask(rate, amount, now_ms)

    def has_room(self, resource: Resource, held: int, added: int, now_ms: int) -> bool:
        """Say whether so much more may be held of what is counted elsewhere."""
        self._ledger.measure(resource, held, now_ms)
        decision = self._ledger.charge(resource, added, now_ms)
        self._watch(decision)
        return decision.verdict in _CARRIED_OUT

    def _watch(self, decision: QuotaDecision) -> None:
        """Tell operators, once for each step, that a quota is nearly or more than used up."""
        alert = decision.alert
        if alert is self.alerts.get(decision.resource, Alert.NONE):
            return
        if alert is Alert.NONE:
            del self.alerts[decision.resource]
            return
        self.alerts[decision.resource] = alert
        audit.warning(
            "QUOTA_ALERT tenant=%s resource=%s %s: %d of %d",
            *(self._name, decision.resource.value, alert.value, decision.used, decision.quota),
        )

    # Audit.

    def note_expiry(self, client_id: bytes, why: str) -> None:
        """Write down, once for each client, for how long a session is kept by policy."""
        if client_id in self._expiry_noted or len(self._expiry_noted) >= _NOTED_MAX:
            return
        self._expiry_noted.add(client_id)
        audit.info("SESSION_EXPIRY tenant=%s client=%r %s", self._name, client_id, why)

    def note(self, what: str, client_id: bytes, identity: str | None, about: bytes = b"") -> None:
        """Write down what was refused; names only, never a payload."""
        if self.recent is not None:
            of = f" of {about.decode(errors='replace')}" if about else ""
            self.recent.note(client_id, f"{what}{of}")
        audit.warning(
            "%s tenant=%s client=%r identity=%s about=%r",
            what,
            self._name,
            client_id,
            identity or "-",
            about,
        )


class Admitted:
    """What is done about the publishes among the packets that were just read."""

    __slots__ = ("disconnects", "is_whole", "refuses_all", "refuses_retained")

    def __init__(
        self,
        *,
        refuses_all: bool = False,
        refuses_retained: bool = False,
        disconnects: bool = False,
    ) -> None:
        self.refuses_all = refuses_all
        self.refuses_retained = refuses_retained
        self.disconnects = disconnects
        self.is_whole = not (refuses_all or refuses_retained or disconnects)


class PublishGate:
    """The rates of one connection and of its tenant, and the quota of what is retained."""

    __slots__ = ("_ledger", "_own", "_tenant")

    def __init__(self, ledger: QuotaLedger, tenant: NoisyNeighbour, own: NoisyNeighbour) -> None:
        self._ledger = ledger
        self._tenant = tenant
        self._own = own

    def rest_ms(self, now_ms: int) -> int:
        """Return for how long to leave the connection unread: nobody may owe anything."""
        return max(self._own.publish_rest_ms(now_ms), self._tenant.publish_rest_ms(now_ms))

    def owed(self, now_ms: int) -> list[tuple[str, Rate, int]]:
        """Return whose rates leave it unread now, which, and for how many milliseconds."""
        scopes = (("connection", self._own), ("tenant", self._tenant))
        return [
            (scope, rate, rest_ms)
            for scope, guards in scopes
            for rate, rest_ms in guards.publish_rests(now_ms)
        ]

    def admit(self, count: int, size: int, kept: int, retained_bytes: int, now_ms: int) -> Admitted:
        """Decide about so many publishes of so many bytes, `kept` of them to be retained.

        `retained_bytes` is what the tenant has retained.
        """
        if not count:
            return _ALL
        verdicts = [
            guard.ask_publish(count, size, now_ms).verdict for guard in (self._own, self._tenant)
        ]
        if QuotaVerdict.DISCONNECT in verdicts:
            return Admitted(disconnects=True)
        if QuotaVerdict.REJECT in verdicts:
            return Admitted(refuses_all=True)
        if kept:
            self._ledger.measure(Resource.RETAINED_BYTES, retained_bytes, now_ms)
            decision = self._ledger.charge(Resource.RETAINED_BYTES, kept, now_ms)
            if decision.verdict not in _CARRIED_OUT:
                return Admitted(refuses_retained=True)
        return _ALL


_ALL: Final = Admitted()
