"""Tenants of a real cluster as the control plane says: made, changed, shut and deleted by REST
while stock clients are connected, and kept by a node that is killed and comes back alone."""

from __future__ import annotations

import asyncio
import hashlib
import ssl
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from clustor.runtime.pki.identity import utc_now
from quantum.cli.admin_api import AdminApi
from quantum.cli.admin_client import AdminUnreachable, fetch
from quantum.edge.tls_development import ClientFiles, issue_client
from tests.clustor.runtime.waiting import free_base_port
from tests.interop.cluster_process import PATIENT, ClusterProcess
from tests.interop.control_process import control, pause, prepared
from tests.interop.machine import slowness
from tests.interop.mqtt_places import all_served
from tests.interop.stock_client import Opening, Refused, StockClient, Wish
from tests.interop.stock_paho import Paho
from tests.interop.test_mqtt_tenants import OPEN, TlsDoor
from tests.quantum.serving.client import SocketLine, connect

NODES = (1, 2, 3)
DEADLINE_SECONDS = 180.0
IN_FORCE_SECONDS = 2.0
LATE_TIMES = 10
"""How many times longer a machine may take that stands still now and then, and does not look busy:
what is never in force, or only for clients that come anew, is not in force then either."""
TOLD_SECONDS = 5.0
ADMINISTRATIVE, NOT_AUTHORIZED, SERVER_MOVED = 0x98, 0x87, 0x9D


@dataclass
class OwnDoor(TlsDoor):
    """A TLS door whose server is believed by an authority that is not the client's own."""

    server: tuple[str, ...] = ()

    def dial(self) -> SocketLine:  # type: ignore[override]
        line = SocketLine(self.port)
        context = ssl.create_default_context(cadata="".join(self.server))
        context.load_cert_chain(self.files.certificate, self.files.key)
        try:
            line._socket = context.wrap_socket(line._socket, server_hostname=self.server_name)
        except ssl.SSLError:
            line._socket.close()
            raise
        OPEN.append(line)
        return line


class Site:
    """A cluster, its REST interface, and the doors of tenants."""

    def __init__(self, cluster: ClusterProcess) -> None:
        self.cluster = cluster
        self.first_door = 0
        self._turn = 0

    def ask(
        self, method: str, path: str, body: dict[str, Any] | None = None, *, code: int = 200
    ) -> Any:
        """Ask the nodes one after the other, which carry it out once; it must be answered so."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        name = f"{body}" if method == "POST" else f"{self._turn}"  # what is made is made once
        key = hashlib.blake2b(name.encode(), digest_size=8).hexdigest()
        headers = {} if method == "GET" else {"Idempotency-Key": f"{method}-{key}"}
        while True:
            self._turn += 1
            try:
                told = AdminApi(self.cluster.admin(NODES[self._turn % 3])).ask(
                    method, path, body=body, headers=headers
                )
            except AdminUnreachable:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
                continue
            if told.code not in (429, 503, 504):
                assert told.code == code, (method, path, told.body)
                return told.body
            assert time.monotonic() < deadline, told.body
            time.sleep(0.05)

    def create(self, name: str, **settings: object) -> None:
        self.first_door = free_base_port(3) + 11
        self.set(name, tenant_mqtt=f"127.0.0.1:{self.first_door}", **settings)
        self.ask("POST", "/v1/tenants", {"tenant_id": name, "sni": f"{name}.example"})
        count = int(str(settings.get("tenant_prg_count", 3)))
        self.cluster.until(lambda: self.serves(name, count), f"all of {name} is served")

    def serves(self, name: str, count: int, *, but: int = 0) -> bool:
        """Say whether so many partitions of a tenant are served by some node."""
        served: set[int] = set()
        for node in NODES:
            try:
                _, page = fetch(self.cluster.admin(node), "/v1/broker/status")
            except AdminUnreachable:
                continue
            rows = [each for each in page.get("partitions", ()) if each["tenant"] == name]
            served |= {each["partition"] for each in rows if each["serves"] and node != but}
        return len(served) == count

    def set(self, name: str, **settings: object) -> Any:
        scope = {"kind": "Tenant", "name": name}
        held = self.ask("GET", f"/v1/config?scope=Tenant&name={name}")
        before = held["in_force"]["document"] if held["in_force"] else {}
        document = {**before, **{key.replace("__", "."): v for key, v in settings.items()}}
        body = {"scope": scope, "expected_version": held["version"], "document": document}
        return self.ask("PUT", "/v1/config", body)

    def door(self, node: int) -> int:
        return self.first_door + 10 * (node - 1)

    def suspend(self, name: str, *, suspended: bool) -> None:
        body = {
            "tier": "Production",
            "group_fsync_allowed": False,
            "dr_shipping": True,
            "suspended": suspended,
        }
        self.ask("PUT", f"/v1/tenants/{name}", body)

    def acls(self, name: str, *rules: tuple[str, str, str]) -> int:
        """Set the rules; return the revision in which they stand."""
        version = self.ask("GET", f"/v1/tenants/{name}/acls")["version"]
        lines = [{"effect": e, "action": a, "filter": f} for e, a, f in rules]
        body = {"expected_version": version, "rules": lines}
        return int(self.ask("PUT", f"/v1/tenants/{name}/acls", body)["revision"])

    def quotas(self, name: str, **quotas: int) -> None:
        version = self.ask("GET", f"/v1/tenants/{name}/quotas")["version"]
        body = {"expected_version": version, "quotas": quotas}
        self.ask("PUT", f"/v1/tenants/{name}/quotas", body)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    data = tmp_path_factory.mktemp("by-control") / "var"
    prepared(data, fault_injection=True, patience=PATIENT)
    with ClusterProcess(data, tenant_prgs=3) as cluster:
        cluster.until(lambda: all_served(cluster), "the development tenant")
        yield Site(cluster)


CLIENTS: list[StockClient] = []


def tell(story: Callable[[str], Awaitable[None]]) -> None:
    """Live through a story; where a leader went from under a client, begin it anew.

    Which node leads is not what these stories are about, and a busy machine changes it.
    """
    for attempt in range(5):
        if asyncio.run(live(story, f"-{attempt}", is_last=attempt == 4)):
            return


async def live(story: Callable[[str], Awaitable[None]], life: str, *, is_last: bool) -> bool:
    """Live through a story once; say no where a client lost its leader in the middle of it."""
    CLIENTS.clear()
    try:
        await story(life)
    except (AssertionError, TimeoutError, Refused):
        if is_last or not await was_moved():
            raise
        for client in CLIENTS:  # no client of this life is met in the next one
            with suppress(Exception):
                await client.close()
        return False
    return True


async def was_moved() -> bool:
    """Say whether a client's leader went; what failed of it is seen before its end is told."""
    deadline = time.monotonic() + TOLD_SECONDS
    while time.monotonic() < deadline:
        ended = [each for each in CLIENTS if each.ended.is_set()]
        if any(each.end_reason in (SERVER_MOVED, None) for each in ended):
            return True
        await asyncio.sleep(0.05)
    return False


async def come(port: int, client_id: str, version: int = 5, **more: Any) -> StockClient:
    """Connect, as soon as the door is there and lets the client in."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while True:
        try:
            opening = Opening(port=port, client_id=client_id, version=version, **more)
            client = await Paho().open(opening)
        except (ConnectionError, Refused, OSError, TimeoutError):
            assert time.monotonic() < deadline, f"{client_id} never came in"
            await asyncio.sleep(0.02)
        else:
            CLIENTS.append(client)
            return client


async def listen(port: int, client_id: str, topic_filter: str, **more: Any) -> StockClient:
    """Connect and subscribe; on a busy machine a leader may go while a client waits for it."""
    while True:
        client = await come(port, client_id, **more)
        asked = asyncio.ensure_future(client.subscribe(Wish(topic_filter, 1)))
        ended = asyncio.ensure_future(client.ended.wait())
        await asyncio.wait((asked, ended), return_when=asyncio.FIRST_COMPLETED)
        ended.cancel()
        if asked.done() and asked.exception() is None:
            assert asked.result() == 1
            return client
        asked.cancel()


def undisturbed(client: StockClient) -> bool:
    """Say whether nobody sent a client away; that its leader moved is the machine's doing."""
    return not client.ended.is_set() or client.end_reason == SERVER_MOVED


async def until(holds: Callable[[], Awaitable[bool]], seconds: float, what: str) -> float:
    """Wait for an exact fact, and say how long it took, at most so long on a machine of our own."""
    begin, most = time.monotonic(), seconds
    while not await holds():
        if time.monotonic() - begin > most:
            most = max(most, LATE_TIMES * seconds * await asyncio.to_thread(slowness))
        assert time.monotonic() - begin < most, what
        await asyncio.sleep(0.01)
    return time.monotonic() - begin


async def until_ended(client: StockClient) -> None:
    async def ended() -> bool:
        return client.ended.is_set()

    await until(ended, IN_FORCE_SECONDS, "the client is sent away")


def test_a_new_tenant_is_connected_to_at_every_node_and_is_alone(site: Site) -> None:
    lives: list[str] = []

    async def story(life: str) -> None:
        lives.append(life)
        neighbour = await listen(site.cluster.base_port + 12, "neighbour", "#")
        site.create("acme" + life)
        clients = [await listen(site.door(node), f"c{node}", "#") for node in NODES]
        assert await clients[0].publish("hello", b"acme", 1) == 0
        for client in clients:
            assert (await client.take())[0].payload == b"acme"
        assert undisturbed(neighbour)
        if not neighbour.ended.is_set():
            await neighbour.publish("mine", b"still here", 1)
            assert (await neighbour.take())[0].payload == b"still here"
        for client in (*clients, neighbour):
            await client.close()

    tell(story)
    files = issue_client(site.cluster.data, "lamp", utc_now(), tenant=f"acme{lives[-1]}")
    mqtts = [site.cluster.base_port + 10 * node + 3 for node in NODES]
    deadline = time.monotonic() + DEADLINE_SECONDS
    for port in mqtts:
        while True:
            try:
                name = f"acme{lives[-1]}.example"
                client = connect(TlsDoor(port, files, name), client_id="lamp")
            except (OSError, AssertionError):  # refused, or its leader went before it answered
                if time.monotonic() > deadline:
                    raise
                continue
            client.cut()
            if not client.connack.reason_code.is_failure:
                break
            assert time.monotonic() < deadline, client.connack  # nobody leads at this moment


def test_rules_and_rates_are_in_force_soon_after_the_answer(site: Site) -> None:
    async def story(life: str) -> None:
        site.create("rules" + life)
        port = site.door(2)
        name = "reader" + life
        reader = await listen(site.door(3), name, "secret/#")
        writer, old = await come(port, "writer"), await come(port, "old", version=4)
        assert await writer.publish("secret/x", b"before", 1) == 0
        assert (await reader.take())[0].payload == b"before"
        site.acls("rules" + life, ("Allow", "Any", "open/#"))
        answered = time.monotonic()

        async def refused() -> bool:
            return await writer.publish("secret/x", b"after", 1) == NOT_AUTHORIZED

        await until(refused, IN_FORCE_SECONDS, "the rules")
        assert await writer.publish("open/x", b"", 1) in (0, 0x10)

        async def closed() -> bool:  # it is served by another node, which hears by itself
            return await reader.subscribe(Wish("secret/#", 1)) == NOT_AUTHORIZED

        await until(closed, IN_FORCE_SECONDS, "the rules at the reader's node")

        async def ended() -> bool:  # who reads by the server's own page sees the subscription go
            try:
                path = f"/v1/tenants/rules{life}/sessions/{name}"
                told = AdminApi(site.cluster.admin(1)).ask("GET", path)
            except AdminUnreachable:
                return False
            return not told.body.get("subscriptions")

        await until(ended, IN_FORCE_SECONDS, "the subscription")
        print(f"rules in force {time.monotonic() - answered:.2f} s after the answer")
        site.acls("rules" + life, ("Allow", "Any", "#"))
        site.quotas("rules" + life, connections_max=0)

        async def full() -> bool:
            try:
                client = await Paho().open(Opening(port=port, client_id="one-more", version=5))
            except Refused as refusal:
                return refusal.args == (0x97,)
            await client.close()
            return False

        await until(full, IN_FORCE_SECONDS + 1, "the quota")
        for client in (writer, reader, old):
            assert undisturbed(client), "a quota sends nobody away at once"
            await client.close()

    tell(story)


def leader_of(site: Site, name: str) -> tuple[int, int] | None:
    """Return who serves the one partition of a tenant, and in which term."""
    for node in NODES:
        try:
            _, page = fetch(site.cluster.admin(node), "/v1/broker/status")
            for each in page.get("partitions", ()):
                if each["tenant"] == name and each["serves"]:
                    path = f"/v1/groups/{each['group']}?linearizable=false"
                    told = AdminApi(site.cluster.admin(node)).ask("GET", path)
                    return node, int(told.body["local"]["term"])
        except AdminUnreachable:
            continue
    return None


def follows(site: Site, node: int) -> bool:
    """Say whether a node says that it does not lead the control plane."""
    told = control(site.cluster, node)
    assert told is None or told["group"]["role"] != "Leader", told
    return told is not None


def test_a_node_that_was_killed_holds_what_it_last_heard_without_the_control_plane(
    site: Site,
) -> None:
    """Two of three replicas of the control plane hang: nobody can call it, nobody confirms.

    A partition that elects a leader meanwhile is closed (§10.6: it has no proof), so the node
    that is killed leads nothing of the tenant; it is begun anew where a leader went by itself.
    """
    site.create("survivor", tenant_prg_count=1)
    revision = site.acls("survivor", ("Allow", "Any", "open/#"))

    async def story() -> bool:
        found: list[tuple[int, int]] = []

        def led() -> bool:
            leader = leader_of(site, "survivor")
            found.extend([] if leader is None else [leader])
            return bool(found)

        site.cluster.until(led, "a leader")
        before = found[0]
        victim = next(node for node in NODES if node != before[0])
        site.cluster.until(
            lambda: (
                (told := control(site.cluster, victim)) is not None
                and told["cache_saved_revision"] >= revision
            ),
            "the victim keeps it",
        )
        others = [node for node in NODES if node != victim]
        for node in others:
            pause(site.cluster, node, paused=True)
        try:
            starts = site.cluster.started(victim)
            site.cluster.kill(victim)
            site.cluster.until(lambda: site.cluster.starts[victim] > starts, "it comes back")
            port = site.door(victim)
            deadline = time.monotonic() + DEADLINE_SECONDS
            while (now := leader_of(site, "survivor")) in (None, before):
                try:
                    opening = Opening(port=port, client_id="alone", version=5)
                    client = await Paho().open(opening)
                    assert await client.publish("open/x", b"", 1) in (0, 0x10)
                    assert await client.publish("closed/x", b"", 1) == NOT_AUTHORIZED
                except (ConnectionError, Refused, OSError, TimeoutError, AssertionError):
                    assert time.monotonic() < deadline, site.cluster.last_words()
                    continue
                await client.close()
                site.cluster.until(lambda: follows(site, victim), "it follows")
                return True
            print(f"the leader moved: {before} {now}")
            return False
        finally:
            for node in others:
                pause(site.cluster, node, paused=False)

    for _ in range(5):
        if asyncio.run(story()):
            return
    raise AssertionError("leaders never stay")


def test_a_suspended_tenant_s_clients_go_and_its_data_stays(site: Site) -> None:
    async def story(life: str) -> None:
        neighbour = await come(site.cluster.base_port + 22, "neighbour")
        site.create("sleeper" + life)
        port = site.door(1)
        five = await listen(port, "five", "#", clean=False, expiry=3_600)
        four = await come(site.door(2), "four", version=4, clean=False)
        await five.publish("kept", b"retained", 1, retain=True)
        site.suspend("sleeper" + life, suspended=True)
        await until_ended(five)
        await until_ended(four)
        assert five.end_reason == ADMINISTRATIVE
        assert four.end_reason is None
        other = await come(site.cluster.base_port + 12, "other")
        await other.close()
        site.suspend("sleeper" + life, suspended=False)
        again = await come(port, "five", clean=False, expiry=3_600)
        assert again.session_present
        late = await listen(port, "late", "kept")
        assert (await late.take())[0].payload == b"retained"
        site.suspend("sleeper" + life, suspended=True)
        await until_ended(late)
        site.ask("DELETE", f"/v1/tenants/sleeper{life}")
        kept = [each.name for each in site.cluster.data.glob("node-1/state/20*")]
        assert len(kept) >= 3, "the disks keep what they had"
        assert undisturbed(neighbour)
        await neighbour.close()

    tell(story)


def test_a_tenant_s_own_authority_is_believed_and_a_revoked_certificate_is_not(
    site: Site, tmp_path: Path
) -> None:
    """BYO trust (quantumqtt §8.3): the provider's clients are strangers to the tenant then."""
    site.create("own")
    provided = issue_client(site.cluster.data, "provided", utc_now(), tenant="own")
    brought = issue_client(tmp_path, "brought", utc_now())
    port = site.cluster.base_port + 23
    server = (provided.authority.read_text(),)

    def comes(files: ClientFiles) -> bool:
        try:
            client = connect(OwnDoor(port, files, "own.example", server), client_id="byo")
        except (OSError, AssertionError):
            return False
        finally:
            while OPEN:
                OPEN.pop().cut()
        return not client.connack.reason_code.is_failure

    site.cluster.until(lambda: comes(provided), "the provider's client comes in")
    assert not comes(brought)
    roots = [brought.authority.read_text()]
    site.ask("PUT", "/v1/tenants/own/trust", {"expected_version": 0, "roots": roots})
    site.cluster.until(lambda: comes(brought), "the tenant's own client comes in")
    assert not comes(provided)
    certificate = x509.load_pem_x509_certificate(brought.certificate.read_bytes())
    body = {
        "expected_version": 1,
        "roots": roots,
        "revoked": [format(certificate.serial_number, "x")],
    }
    site.ask("PUT", "/v1/tenants/own/trust", body)
    site.cluster.until(lambda: not comes(brought), "its certificate is revoked")


def test_a_setting_says_when_it_takes_effect_and_who_set_it(site: Site) -> None:
    site.create("settings")
    told = site.set("settings", rates__publishes=5, connections_max=3, colour="blue")
    effects = told["result"]["takes_effect"]
    assert effects["rates.publishes"] == "live"
    assert effects["connections_max"] == effects["colour"] == "no broker takes it from here"
    said = site.ask("GET", "/v1/config/explain?key=rates.publishes&tenant=settings")
    assert (said["value"], said["takes_effect"]) == (5, "live")
    assert said["set_by"].endswith("/operator") and int(said["set_at"]) > 0
    body = {
        "scope": {"kind": "Tenant", "name": "settings"},
        "expected_version": said["version"],
        "document": {"rates.publishes": "many"},
    }
    refused = site.ask("PUT", "/v1/config", body, code=400)
    assert "rates.publishes" in refused["message"]
    rules = {
        "expected_version": 0,
        "rules": [{"effect": "Allow", "action": "Any", "filter": "a/#/b"}],
    }
    refused = site.ask("PUT", "/v1/tenants/settings/acls", rules, code=400)
    assert "rule 1" in refused["message"]
