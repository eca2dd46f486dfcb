"""Devices without certificates on a real broker: they prove by tokens who they are (§10.4)."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import ssl
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from clustor.runtime.pki.identity import utc_now
from quantum.cli import audit
from quantum.cli.admin_api import AdminApi
from quantum.cli.admin_client import AdminUnreachable
from quantum.edge.tls_development import pki_directory, prepare_server
from quantum.edge.tokens import confirmation_of, encode_key, sign_token
from quantum.protocols.mqtt.codec import (
    Auth,
    ClientId,
    Connack,
    Connect,
    Direction,
    Disconnect,
    Packet,
    PacketReader,
    Properties,
    ProtocolVersion,
    ReasonCode,
    decode_packet,
    encode_packet,
)
from quantum.protocols.mqtt.session.token_authentication import METHOD
from quantum.tenants.broker_file import DEVELOPMENT_TENANT
from tests.interop.broker_process import HOST, BrokerProcess
from tests.interop.machine import slowness
from tests.interop.test_rotation import quantum

KEY = Ed25519PrivateKey.generate()
V5 = ProtocolVersion.V5


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    data = tmp_path_factory.mktemp("tokens") / "var"
    prepare_server(data, utc_now())
    keys = pki_directory(data) / "tokens" / f"{DEVELOPMENT_TENANT}.jwks"
    keys.parent.mkdir()
    keys.write_text(json.dumps({"keys": [encode_key(KEY.public_key(), "k1")]}))
    with BrokerProcess(data, partitions=1) as running:
        yield running
        assert running.interrupt() == 0
    code, output = quantum(audit.app, "show", data / "node-1")
    assert code == 0 and "TOKEN_BINDING_MISMATCH" in output


def token(nonce: str, client_id: str, **changed: Any) -> bytes:
    drawn = decoded(nonce)
    claims = {
        "sub": "device-7",
        "exp": int(time.time()) + 300,
        "aud": "quantumqtt",
        "scope": "mqtt.connect",
        "tenant_id": DEVELOPMENT_TENANT,
        "client_id": client_id,
        "nonce": nonce,
        "cnf": {"nonce#S256": confirmation_of(drawn)},
    }
    signer, kid = changed.pop("signer", (KEY, "k1"))
    return sign_token(claims | changed, signer, kid)


def decoded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


class Device:
    """A bare client: no library of the common ones speaks AUTH."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._packets = PacketReader(1 << 20, 1 << 20)

    def send(self, packet: Packet) -> None:
        self._writer.write(encode_packet(packet, V5))

    async def next(self) -> Packet | None:
        async with asyncio.timeout(180):
            while (taken := self._packets.next_packet()) is None:
                data = await self._reader.read(4096)
                if not data:
                    return None
                self._packets.receive(data)
        return decode_packet(*taken, V5, direction=Direction.TO_CLIENT)

    async def nonce(self) -> str:
        asked = await self.next()
        assert isinstance(asked, Auth), asked
        assert asked.reason_code is ReasonCode.CONTINUE_AUTHENTICATION
        data = asked.properties.authentication_data
        assert data is not None
        return data.decode()

    async def end(self) -> None:
        self._writer.close()
        with suppress(ssl.SSLError, ConnectionError):
            await self._writer.wait_closed()

    def show(self, shown: bytes, reason: ReasonCode = ReasonCode.CONTINUE_AUTHENTICATION) -> None:
        said = Properties(authentication_method=METHOD, authentication_data=shown)
        self.send(Auth(reason, said))


async def device(broker: BrokerProcess, client_id: str, *, method: str | None = METHOD) -> Device:
    context = ssl.create_default_context(cafile=str(pki_directory(broker.data) / "ca.pem"))
    reader, writer = await asyncio.open_connection(
        HOST, broker.mqtts, ssl=context, server_hostname="localhost"
    )
    made = Device(reader, writer)
    properties = Properties(authentication_method=method)
    made.send(Connect(client_id=ClientId(client_id), version=V5, properties=properties))
    return made


async def connected(broker: BrokerProcess, client_id: str, **changed: Any) -> Device:
    made = await device(broker, client_id)
    made.show(token(await made.nonce(), client_id, **changed))
    answer = await made.next()
    assert isinstance(answer, Connack) and answer.reason_code is ReasonCode.SUCCESS, answer
    return made


async def test_a_device_without_a_certificate_comes_in_by_its_token(broker: BrokerProcess) -> None:
    made = await connected(broker, "lamp")
    said = Properties(authentication_method=METHOD)
    made.send(Auth(ReasonCode.RE_AUTHENTICATE, said))
    made.show(token(await made.nonce(), "lamp"))
    done = await made.next()
    assert isinstance(done, Auth) and done.reason_code is ReasonCode.SUCCESS
    await made.end()


async def test_who_shows_neither_is_refused(broker: BrokerProcess) -> None:
    made = await device(broker, "nobody", method=None)
    answer = await made.next()
    assert isinstance(answer, Connack) and answer.reason_code is ReasonCode.NOT_AUTHORIZED
    await made.end()


async def test_a_token_of_another_connection_or_client_is_refused(broker: BrokerProcess) -> None:
    first = await device(broker, "lamp-1")
    stolen = token(await first.nonce(), "lamp-1")
    for client_id in ("lamp-1", "lamp-2"):
        made = await device(broker, client_id)
        await made.nonce()
        made.show(stolen)
        answer = await made.next()
        assert isinstance(answer, Connack) and answer.reason_code is ReasonCode.NOT_AUTHORIZED
        assert await made.next() is None
        await made.end()
    await first.end()


async def test_a_token_that_ends_ends_the_connection(broker: BrokerProcess) -> None:
    made = await connected_briefly(broker, 3)
    began = time.time()
    said = await made.next()
    assert isinstance(said, Disconnect) and said.reason_code is ReasonCode.NOT_AUTHORIZED
    if time.time() - began >= 20:  # unless the machine is busy with something else
        assert time.time() - began < 100 + 20 * await asyncio.to_thread(slowness)
    await made.end()


async def connected_briefly(broker: BrokerProcess, seconds: int) -> Device:
    """Connect; a token that ends before it is shown is refused rightly, the next lives longer."""
    try:
        return await connected(broker, f"brief-{seconds}", exp=int(time.time()) + seconds)
    except AssertionError:
        if seconds > 60:
            raise
        return await connected_briefly(broker, 3 * seconds)


async def test_who_authenticates_again_as_somebody_else_is_shown_out(broker: BrokerProcess) -> None:
    made = await connected(broker, "turncoat")
    made.send(Auth(ReasonCode.RE_AUTHENTICATE, Properties(authentication_method=METHOD)))
    made.show(token(await made.nonce(), "turncoat", sub="device-8"))
    said = await made.next()
    assert isinstance(said, Disconnect) and said.reason_code is ReasonCode.NOT_AUTHORIZED
    await made.end()


async def test_a_client_id_belongs_to_whom_its_token_named(broker: BrokerProcess) -> None:
    made = await connected(broker, "bound")
    other = await device(broker, "bound")
    other.show(token(await other.nonce(), "bound", sub="thief"))
    answer = await other.next()
    assert isinstance(answer, Connack) and answer.reason_code is ReasonCode.NOT_AUTHORIZED
    for each in (made, other):
        await each.end()


def configure(broker: BrokerProcess, **document: object) -> None:
    """Set the tenant's configuration, as an Operator does; it wins over files.

    Who is not answered by a busy broker looks again: the version says whether it was done.
    """
    scope = {"kind": "Tenant", "name": DEVELOPMENT_TENANT}
    query = {"scope": scope["kind"], "name": scope["name"]}
    deadline = time.monotonic() + 180
    while True:
        assert time.monotonic() < deadline, broker.last_words()
        with suppress(AdminUnreachable):
            told = AdminApi(broker.admin).ask("GET", "/v1/config", query=query)
            if told.code != 200:
                continue
            body = {"scope": scope, "expected_version": told.body["version"], "document": document}
            done = AdminApi(broker.admin).ask("PUT", "/v1/config", body=body)
            if done.is_done:
                return
            assert done.code in (409, 429, 503, 504), (told.body, done.body)


async def asked(broker: BrokerProcess, client_id: str, **changed: Any) -> tuple[Device, Connack]:
    made = await device(broker, client_id)
    made.show(token(await made.nonce(), client_id, **changed))
    answer = await made.next()
    assert isinstance(answer, Connack), answer
    return made, answer


async def asked_until(broker: BrokerProcess, wanted: ReasonCode, **changed: Any) -> Device:
    """Connect again and again until it is answered so; within a second or two it should be."""
    deadline = time.monotonic() + 180
    for number in itertools.count():
        made, answer = await asked(broker, f"asks-{number}", **changed)
        if answer.reason_code is wanted:
            return made
        await made.end()
        assert time.monotonic() < deadline, answer
    raise AssertionError


async def test_the_control_plane_has_keys_and_an_epoch_for_tokens(broker: BrokerProcess) -> None:
    """Quantumqtt §10.4: keys that no file has are found there, and old tokens end with an epoch."""
    key = Ed25519PrivateKey.generate()
    signer = (key, "k2")
    early, answer = await asked(broker, "early", signer=signer)
    assert answer.reason_code is ReasonCode.NOT_AUTHORIZED
    keys = json.dumps({"keys": [encode_key(key.public_key(), "k2")]})
    await asyncio.to_thread(configure, broker, token_keys=keys)
    made = await asked_until(broker, ReasonCode.SUCCESS, signer=signer)
    await asyncio.to_thread(configure, broker, token_keys=keys, token_auth_epoch=1)
    said = await made.next()
    assert isinstance(said, Disconnect) and said.reason_code is ReasonCode.NOT_AUTHORIZED
    old, answer = await asked(broker, "old", signer=signer)
    assert answer.reason_code is ReasonCode.NOT_AUTHORIZED
    new = await asked_until(broker, ReasonCode.SUCCESS, signer=signer, auth_epoch=1)
    await asyncio.to_thread(configure, broker, token_auth_epoch=1)
    gone = await asked_until(broker, ReasonCode.NOT_AUTHORIZED, signer=signer, auth_epoch=1)
    await asyncio.to_thread(configure, broker)
    for each in (early, made, old, new, gone):
        await each.end()
