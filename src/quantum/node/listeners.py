"""The doors of a broker node: MQTT in plaintext (development only), over TLS, over WebSocket."""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from fcntl import LOCK_EX, flock
from pathlib import Path
from typing import Final

from clustor.runtime.containment import contained
from clustor.runtime.errors import DataDirectoryRefused
from clustor.runtime.pki.certificate_watch import FileWatch, Repeated
from clustor.runtime.pki.identity import utc_now
from quantum.edge import (
    AdmissionLimits,
    EdgeLimits,
    Listener,
    Lobby,
    TenantTrust,
    TlsListener,
    WebSocketLimits,
    over_websocket,
    require_loopback,
)
from quantum.edge.errors import CertificatesUnusable, EdgeError, PolicyTooOpen
from quantum.edge.listener_files import connections_possible, raise_file_limit
from quantum.edge.lobby import HALF_OPEN_MAX
from quantum.edge.ports import NewHandler
from quantum.edge.tls import ClientAuth, ServerCertificates, TlsPolicy
from quantum.edge.tls_development import pki_directory, prepare_server
from quantum.node.service import BrokerService
from quantum.protocols.mqtt.session.token_authentication import METHOD, TokenAuthenticator
from quantum.tenants.follower import Changed, TenantKeeper
from quantum.tenants.passwords import PasswordPolicy
from quantum.tenants.token_keys import TOKENS_DIRECTORY, ControlledTokenKeys, TokenKeyFiles

_LOCK_FILE: Final = "mqtt-pki.lock"
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
    hosts = {door.host for door in (doors.mqtts, doors.wss) if door is not None}
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

    def __init__(self, service: BrokerService, doors: Doors, data: Path, tenant: str) -> None:
        self._service = service
        self._default = tenant
        self._doors = doors
        self._data = data
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
        self._renewal: Repeated | None = None
        self._token_keys: ControlledTokenKeys | None = None
        self.open: dict[str, tuple[Listener, Door]] = {}
        self._tenant_doors: dict[str, Door] = {}  # those that are open, as they were wanted
        self._tls: list[TlsListener] = []
        self._keeper: TenantKeeper | None = None
        self._trusted: frozenset[str] = frozenset()  # tenants with a trust of their own
        self._distrusted: set[str] = set()  # tenants whose word on trust is of no use
        self._is_started = False
        self._following = asyncio.Lock()

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
                require_loopback(name, door.host, development=True)
                new = self._service.mqtt.new_connection
                await self._open(name, Listener(name, self._lobby, new, tenant=tenant), door)
                self._tenant_doors[tenant] = door

    def _prepare(self) -> ServerCertificates:
        """Make the server's certificate good for every name; nodes of one directory take turns."""
        (self._data / _LOCK_FILE).touch()
        with (self._data / _LOCK_FILE).open("ab") as lock:
            flock(lock, LOCK_EX)
            names = self._doors.server_names | self._service.server_names.keys()
            own_records = self._doors.tls_records == "own"
            return prepare_server(
                self._data, utc_now(), names, own_records=own_records, policy=self._doors.tls
            )

    async def start(self) -> None:
        """Open the doors. Raises EdgeError."""
        self._is_started = True
        new = self._service.mqtt.new_connection
        doors = self._doors
        if doors.mqtt is not None:
            require_loopback("mqtt", doors.mqtt.host, development=True)
            await self._open(
                "mqtt", Listener("mqtt", self._lobby, new, tenant=self._default), doors.mqtt
            )
        await self._follow_doors()
        if doors.ws is not None:
            require_loopback("ws", doors.ws.host, development=True)
            frames = over_websocket(new, WebSocketLimits())
            await self._open(
                "ws", Listener("ws", self._lobby, frames, tenant=self._default), doors.ws
            )
        await self._start_tls()

    async def _start_tls(self) -> None:
        """Open the doors over TLS, under one policy and with one certificate."""
        doors, new = self._doors, self._service.mqtt.new_connection
        wanted: list[tuple[str, Door, NewHandler]] = []
        if doors.mqtts is not None:
            wanted.append(("mqtts", doors.mqtts, new))
        if doors.wss is not None:
            wanted.append(("wss", doors.wss, over_websocket(new, self._websocket_limits())))
        self._service.mqtt.passwords.policy = password_policy(doors)
        if not wanted:
            return
        certificates = self._prepare()
        files = TokenKeyFiles(pki_directory(self._data) / TOKENS_DIRECTORY)
        self._token_keys = ControlledTokenKeys(files)
        self._token_keys.words = self._keeper
        self._service.mqtt.authenticators[METHOD] = TokenAuthenticator(
            self._token_keys, os.urandom, self._service.now_ms
        )
        certificates.allow_tokens(self._token_keys.tenants())
        for name, door, handler in wanted:
            listener = TlsListener(
                name, self._lobby, handler, certificates=certificates, tenant_of=self.tenant_of
            )
            self._tls.append(listener)
            await self._open(name, listener, door)
        self._trust()
        watch = FileWatch(certificates.files, self._reload, EdgeError)
        watch.look()
        self._renewal = Repeated(lambda: self._renew(watch))

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

    def stop_accepting(self) -> None:
        """Let nobody else in."""
        if self._renewal is not None:
            self._renewal.stop()
        for listener, _ in self.open.values():
            listener.stop_accepting()
