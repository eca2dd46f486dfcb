"""The doors of a broker node: MQTT in plaintext (development only), over TLS, over WebSocket."""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from clustor.runtime.containment import contained
from clustor.runtime.errors import DataDirectoryRefused
from clustor.runtime.pki.certificate_watch import FileWatch, RepeatedCall
from quantum.edge.admission import AdmissionLimits
from quantum.edge.errors import CertificatesUnusable, DoorUnserved, EdgeError, PolicyTooOpen
from quantum.edge.listener import Listener, require_loopback
from quantum.edge.listener_files import connections_possible, raise_file_limit
from quantum.edge.listener_tls import TlsListener
from quantum.edge.lobby import HALF_OPEN_MAX, EdgeLimits, Lobby
from quantum.edge.ports import NewHandler
from quantum.edge.tls import ClientAuth, ServerCertificates, TenantTrust, TlsPolicy
from quantum.edge.websocket import MQTT, WebSocketLimits, over_websocket
from quantum.node.server_certificates import CertificateSource
from quantum.node.service import BrokerService
from quantum.protocols.mqtt.session.token_authentication import METHOD, TokenAuthenticator
from quantum.tenants.follower import Changed, TenantKeeper
from quantum.tenants.passwords import PasswordPolicy
from quantum.tenants.token_keys import ControlledTokenKeys, TokenKeyFiles

PLAINTEXT_DOORS: Final = ("mqtt", "ws", "kafka", "amqp")
ENCRYPTED_DOORS: Final = ("mqtts", "wss", "kafkas", "amqps")
_PORT_MAX: Final = 65_535
_OWN_NAMES: Final = frozenset({"localhost", "127.0.0.1", "::1"})

journal = logging.getLogger("quantum.edge")


@dataclass(frozen=True, slots=True)
class Door:
    """Where to listen; port 0 is any free one."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Doors:
    """Which doors to open. None stays shut."""

    mqtt: Door | None = None
    mqtts: Door | None = None
    ws: Door | None = None
    wss: Door | None = None
    kafka: Door | None = None
    kafkas: Door | None = None
    amqp: Door | None = None
    amqps: Door | None = None
    development: bool = False
    """Whether plaintext is served at all, on loopback."""
    tls: TlsPolicy = TlsPolicy()
    password: str = "optional"  # noqa: S105  # a word of the policy
    connections_max: int = 100_000
    connections_per_second: int = 5_000
    first_packet_seconds: int = 10
    half_open_max: int = HALF_OPEN_MAX
    half_open_source_percent: int = 50
    tls_records: str = "openssl"
    """Who makes the records of clients' TLS: `openssl`, or `own` (`quantum.edge.tls_records`)."""
    port_shift: int = 0
    """By how much higher the doors of single tenants are here than they are said to be."""
    server_names: frozenset[str] = frozenset()
    """Further names and addresses of this machine: its certificate is for them too."""

    def door(self, name: str) -> Door | None:
        """Return where a listener is to be; None: it stays shut."""
        found = getattr(self, name)
        assert found is None or isinstance(found, Door)
        return found

    def told(self, said: Mapping[str, int]) -> Doors:
        """Return these doors under what the control plane's configuration says of them."""
        return replace(
            self,
            connections_max=said.get("connections_max", self.connections_max),
            connections_per_second=said.get("connections_per_second", self.connections_per_second),
            first_packet_seconds=said.get("first_packet_seconds", self.first_packet_seconds),
        )


def password_policy(doors: Doors) -> PasswordPolicy:
    """Return who must show what. Raises EdgeError where strangers could come from elsewhere."""
    hosts = {door.host for name in ENCRYPTED_DOORS if (door := doors.door(name)) is not None}
    asks_nothing = doors.tls.client_auth is ClientAuth.NONE and doors.password != "required"  # noqa: S105
    if asks_nothing and hosts - _OWN_NAMES:
        raise PolicyTooOpen(
            "off loopback clients must show something: "
            "client_auth = none needs password = required",
            hosts=", ".join(sorted(hosts)),
        )
    if doors.tls.tls_min == "1.2" and doors.tls_records == "own":
        raise PolicyTooOpen("tls_records = own speaks TLS 1.3 alone: tls_min = 1.2 needs openssl")
    return PasswordPolicy(doors.password, allows_nobody=asks_nothing)


def tenant_doors(service: BrokerService, shift: int = 0) -> dict[str, Door]:
    """Return the doors that `tenants.toml` gives to single tenants, with ports so much higher.

    Raises DataDirectoryRefused for what is no address.
    """
    doors: dict[str, Door] = {}
    for name, tenant in service.tenants.items():
        address = tenant.guard.description.mqtt
        if address is not None and not tenant.shut:
            host, _, port = address.rpartition(":")
            if not host or not port.isdecimal() or not 0 <= int(port) + shift <= _PORT_MAX:
                raise DataDirectoryRefused(
                    "a tenant's mqtt is HOST:PORT", tenant=name, address=address
                )
            number = int(port) + shift if int(port) else 0
            doors[name] = Door(host.removeprefix("[").removesuffix("]"), number)
    return doors


class Listeners:
    """All listeners of one node, with one lobby before them."""

    def __init__(
        self, service: BrokerService, doors: Doors, source: CertificateSource, tenant: str
    ) -> None:
        self._service = service
        self._default = tenant
        self._doors = doors
        self._source = source
        new = service.mqtt.new_connection
        self.over_websocket: dict[str, NewHandler] = {MQTT: new}
        """Who speaks over WebSocket, by the sub-protocol; other protocols add theirs."""
        self.plaintext: dict[str, NewHandler] = {
            "mqtt": new,
            "ws": over_websocket(self.over_websocket, WebSocketLimits()),
        }
        """Who speaks behind a door in plaintext, by its name; other protocols add theirs."""
        self.encrypted: dict[str, NewHandler] = {
            "mqtts": new,
            "wss": over_websocket(self.over_websocket, self._websocket_limits()),
        }
        """Who speaks behind a door over TLS, by its name; other protocols add theirs."""
        self.on_opened: Callable[[str, str, int], None] | None = None
        """Told the name, the host and the port of every door that opens."""
        possible = connections_possible(doors.connections_max, raise_file_limit())
        if possible < doors.connections_max:
            journal.info("the system's limit of open files allows %d clients at once", possible)
        limits = EdgeLimits(
            admission=AdmissionLimits(
                connections_max=possible,
                per_second=float(doors.connections_per_second),
                burst=doors.connections_per_second,
                waiting_max=possible,
            ),
            first_answer_seconds=float(doors.first_packet_seconds),
            half_open_max=max(1, min(doors.half_open_max, possible // 2)),
            half_open_source_percent=doors.half_open_source_percent,
        )
        self._lobby = service.lobby = Lobby(limits)
        self._lobby.on_refusal = self._on_refusal
        self._renewal: RepeatedCall | None = None
        self._token_keys: ControlledTokenKeys | None = None
        self.open: dict[str, tuple[Listener, Door]] = {}
        self._tenant_doors: dict[str, Door] = {}  # those that are open, as they were wanted
        self._tls: list[TlsListener] = []
        self._keeper: TenantKeeper | None = None
        self._trusted: frozenset[str] = frozenset()  # tenants with a trust of their own
        self._distrusted: set[str] = set()  # tenants whose word on trust is of no use
        self._is_started = False
        self._following = asyncio.Lock()

    @property
    def server_names(self) -> frozenset[str]:
        """Further names of this machine, which its certificate is for too."""
        return self._doors.server_names

    def addresses(self) -> dict[str, str]:
        """Return where clients come in, by kind."""
        return {name: f"{door.host}:{door.port}" for name, (_, door) in self.open.items()}

    def _on_refusal(self, address: str, why: object) -> None:
        kind = type(why).__name__ if isinstance(why, EdgeError) else "ConnectionLate"
        self._service.note_refused(kind, who=address, why=str(why))

    def _renew(self, watch: FileWatch) -> None:
        if watch.look():
            journal.info("new certificates are in use for clients to come")
        for listener in self._tls:
            listener.look()
            if self._token_keys is not None:
                with suppress(
                    EdgeError
                ):  # files that are being replaced: the next look tries again
                    listener.certificates.allow_tokens(self._token_keys.tenants())

    def trust_tenant(self, tenant: str, roots: Iterable[str], revoked: Iterable[str]) -> None:
        """Judge a tenant's clients by its own roots (PEM; none: everybody's) and serial numbers.

        In force at once, for those who are connected as well; no roots and nothing revoked gives
        the common rules back. Serial numbers are hexadecimal, as the control plane keeps them.
        Roots that cannot be used let nobody in (fail closed): who was believed before need not be
        believed now. Raises EdgeError for those, when that is in force.
        """
        try:
            wish = TenantTrust(tuple(roots), frozenset(int(each, 16) for each in revoked))
        except ValueError:
            wish = TenantTrust(is_unusable=True)
        refused: EdgeError | None = None
        for listener, _ in self.open.values():
            if isinstance(listener, TlsListener):
                try:
                    listener.trust_tenant(tenant, wish if wish != TenantTrust() else None)
                except EdgeError as error:
                    refused = error
        if refused is not None or wish.is_unusable:
            raise refused or CertificatesUnusable("a revoked serial number is hexadecimal")

    def tenant_of(self, server_name: str | None) -> str | None:
        """Say whose clients ask for a server name.

        While no tenant has names, all are the default tenant's. As soon as one has, the default
        tenant keeps those of this machine, and any other name is nobody's.
        """
        names = self._service.server_names
        own = _OWN_NAMES | self._doors.server_names
        if not names or server_name is None or server_name.lower() in own:
            return names.get((server_name or "").lower(), self._default)
        return names.get(server_name.lower())

    def follow(self, keeper: TenantKeeper) -> None:
        """Open and close the doors of tenants from now on, as the keeper says.

        A node that has no tenant yet opens its own doors with the first one.
        """

        def changed(_changed: Changed) -> None:
            contained.spawn("listeners", self._follow())

        keeper.on_changed = changed
        self._keeper = self._service.mqtt.passwords.words = keeper
        if self._token_keys is not None:
            self._token_keys.words = keeper

    async def _follow(self) -> None:
        async with self._following:
            try:
                if not self._is_started:
                    await self.start()
                    return
                await self._follow_doors()
                if self._tls:
                    await asyncio.to_thread(self._prepare)
                    self._reload()
                    self._trust()
            except (EdgeError, DataDirectoryRefused, OSError) as error:
                journal.error("the doors stay as they were: %s", error)

    def _trust(self) -> None:
        """Believe whom each tenant says (quantumqtt §8.3), and nobody if that is of no use."""
        said = self._keeper.trust() if self._keeper is not None else {}
        for tenant in sorted({*said, *self._trusted}):
            bundle = said.get(tenant)
            try:
                if bundle is None:
                    self.trust_tenant(tenant, (), ())
                else:
                    self.trust_tenant(tenant, bundle.roots, bundle.revoked)
                self._distrusted.discard(tenant)
            except EdgeError as error:
                self._alert_distrusted(tenant, error)
        self._trusted = frozenset(said)
        self._service.distrusted = len(self._distrusted)

    def _alert_distrusted(self, tenant: str, error: EdgeError) -> None:
        if tenant not in self._distrusted:
            self._distrusted.add(tenant)
            journal.critical("no certificate is believed for tenant %s: %s", tenant, error)
            target = f"tenant/{tenant}"
            self._service.note_act("TenantTrustUnusable", str(error), target=target, tenant=tenant)

    async def _follow_doors(self) -> None:
        wanted = tenant_doors(self._service, self._doors.port_shift)
        for tenant, door in list(self._tenant_doors.items()):
            if wanted.get(tenant) != door:
                self.open.pop(f"mqtt of {tenant}")[0].stop_accepting()
                del self._tenant_doors[tenant]
        for tenant, door in wanted.items():
            if tenant not in self._tenant_doors:
                name = f"mqtt of {tenant}"
                require_loopback(name, door.host, development=self._doors.development)
                new = self._service.mqtt.new_connection
                await self._open(name, Listener(name, self._lobby, new, tenant=tenant), door)
                self._tenant_doors[tenant] = door

    def _prepare(self) -> ServerCertificates:
        """Ask for certificates that are good for every name."""
        names = self._doors.server_names | self._service.server_names.keys()
        own_records = self._doors.tls_records == "own"
        return self._source.prepare(names, self._doors.tls, own_records=own_records)

    async def start(self) -> None:
        """Open the doors. Raises EdgeError."""
        self._is_started = True
        for name, handler, door in self._behind(self.plaintext, PLAINTEXT_DOORS):
            require_loopback(name, door.host, development=self._doors.development)
            listener = Listener(name, self._lobby, handler, tenant=self._default)
            await self._open(name, listener, door)
        await self._follow_doors()
        await self._start_tls()

    def _behind(
        self, handlers: Mapping[str, NewHandler], names: Iterable[str]
    ) -> list[tuple[str, NewHandler, Door]]:
        """Return the doors of these names that are to be open, and who speaks behind each.

        Raises DoorUnserved for one that nobody speaks behind: it would look open, and be none.
        """
        wanted = [(name, door) for name in names if (door := self._doors.door(name)) is not None]
        for name, _ in wanted:
            if name not in handlers:
                raise DoorUnserved("nobody here speaks what this listener is for", listener=name)
        return [(name, handlers[name], door) for name, door in wanted]

    async def _start_tls(self) -> None:
        """Open the doors over TLS, under one policy and with one certificate."""
        wanted = self._behind(self.encrypted, ENCRYPTED_DOORS)
        self._service.mqtt.passwords.policy = password_policy(self._doors)
        if not wanted:
            return
        certificates = self._prepare()
        files = TokenKeyFiles(self._source.tokens)
        self._token_keys = ControlledTokenKeys(files)
        self._token_keys.words = self._keeper
        self._service.kafka.token_keys = self._token_keys
        self._service.mqtt.authenticators[METHOD] = TokenAuthenticator(
            self._token_keys, os.urandom, self._service.now_ms
        )
        certificates.allow_tokens(self._token_keys.tenants())
        for name, handler, door in wanted:
            listener = TlsListener(
                name, self._lobby, handler, certificates=certificates, tenant_of=self.tenant_of
            )
            self._tls.append(listener)
            await self._open(name, listener, door)
        self._trust()
        watch = FileWatch(certificates.files, self._reload, EdgeError)
        watch.look()
        self._renewal = RepeatedCall(lambda: self._renew(watch))

    def _reload(self) -> None:
        for listener in self._tls:
            listener.reload()

    def _websocket_limits(self) -> WebSocketLimits:
        """Let pages of this machine's own names connect too, which no door on loopback needs."""
        names = "|".join(map(re.escape, sorted(self._doors.server_names)))
        own = (re.compile(rf"https://({names})(:\d+)?"),) if names else ()
        limits = WebSocketLimits()
        return replace(limits, origins=(*limits.origins, *own))

    async def _open(self, name: str, listener: Listener, door: Door) -> None:
        await listener.start(door.host, door.port)
        self.open[name] = (listener, Door(door.host, listener.port))
        if self.on_opened is not None:
            self.on_opened(name, door.host, listener.port)

    def stop_accepting(self) -> None:
        """Let nobody else in."""
        if self._renewal is not None:
            self._renewal.stop()
        for listener, _ in self.open.values():
            listener.stop_accepting()
