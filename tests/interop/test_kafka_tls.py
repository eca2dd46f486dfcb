"""Kafka over TLS: a certificate, a user's password or a tenant's token lets in, nothing else."""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from typer.testing import CliRunner

from quantum.cli.admin_api import AdminApi
from quantum.cli.admin_client import parse_address
from quantum.cli.app import build
from quantum.edge.tls_development import pki_directory
from quantum.edge.tokens import BEARER_AUDIENCE, KAFKA_SCOPE, encode_key, sign_token
from quantum.tenancy import SCRAM_256, SCRAM_512, SCRAM_MECHANISMS
from quantum.tenants.passwords import hash_password
from quantum.tenants.token_keys import TOKENS_DIRECTORY
from tests.clustor.runtime.waiting import free_ports
from tests.interop.broker_process import HOST
from tests.interop.kafka_clients import PATIENCE_S, until
from tests.interop.test_listener_policy import PolicyBroker, users

pytestmark = pytest.mark.filterwarnings("default")
ISSUER = Ed25519PrivateKey.generate()


class KafkaTlsBroker(PolicyBroker):
    def __init__(self, data: Path) -> None:
        super().__init__(data)
        (self.kafkas,) = free_ports(1)
        self._command += ["--kafkas", f"{HOST}:{self.kafkas}"]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaTlsBroker]:
    data = tmp_path_factory.mktemp("kafkas") / "data"
    tokens = pki_directory(data) / TOKENS_DIRECTORY
    with KafkaTlsBroker(data) as started:
        tokens.mkdir(parents=True, exist_ok=True)
        keys = {"keys": [encode_key(ISSUER.public_key(), "k")]}
        (tokens / "dev.jwks").write_text(json.dumps(keys))
        assert users(started, "add", "ann", "--password-stdin", given="secret\n").exit_code == 0
        yield started


def delivers(broker: KafkaTlsBroker, seconds: float, **options: object) -> bool:
    """Say whether a producer with these options gets an acknowledgement."""
    told: list[object] = []
    known: dict[str, Any] = {
        "bootstrap.servers": f"localhost:{broker.kafkas}",
        "ssl.ca.location": broker.authority,
        "log_level": 0,
        **options,
    }
    producer = Producer(known)
    producer.produce("over-tls", b"x", on_delivery=lambda error, _message: told.append(error))
    producer.flush(seconds)
    producer.purge()
    return told[:1] == [None]


def plain(user: str, password: str) -> dict[str, object]:
    said = {"security.protocol": "sasl_ssl", "sasl.mechanism": "PLAIN"}
    return {**said, "sasl.username": user, "sasl.password": password}


def scram(user: str, password: str, mechanism: str = SCRAM_256) -> dict[str, object]:
    return plain(user, password) | {"sasl.mechanism": mechanism}


def bearer(tenant: str, lifetime: int = 600) -> dict[str, object]:
    now = int(time.time())
    claims = {"sub": "robot", "exp": now + lifetime, "tenant_id": tenant, "scope": KAFKA_SCOPE}
    token = sign_token(claims | {"aud": BEARER_AUDIENCE}, ISSUER, "k").decode()
    return {
        "security.protocol": "sasl_ssl",
        "sasl.mechanism": "OAUTHBEARER",
        "oauth_cb": lambda _config: (token, now + lifetime),
    }


def test_a_user_s_password_lets_in(broker: KafkaTlsBroker) -> None:
    until(lambda: delivers(broker, 10, **plain("ann", "secret")), "ann is let in")


@pytest.mark.parametrize("mechanism", SCRAM_MECHANISMS)
def test_a_user_s_password_lets_in_without_being_shown(
    broker: KafkaTlsBroker, mechanism: str
) -> None:
    until(lambda: delivers(broker, 10, **scram("ann", "secret", mechanism)), "ann is let in")


def test_kafka_python_and_aiokafka_speak_scram_too(broker: KafkaTlsBroker) -> None:
    from kafka import KafkaProducer  # it warns of itself where it is imported

    until(lambda: delivers(broker, 10, **plain("ann", "secret")), "it serves")
    said: dict[str, Any] = {
        "bootstrap_servers": f"localhost:{broker.kafkas}",
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": SCRAM_512,
        "sasl_plain_username": "ann",
        "sasl_plain_password": "secret",
    }
    context = ssl.create_default_context(cafile=broker.authority)
    by_python = KafkaProducer(**said, ssl_context=context)
    sent = by_python.send("over-tls", b"python").get(PATIENCE_S)
    by_python.close()

    async def by_asyncio() -> int:
        producer = AIOKafkaProducer(**said, ssl_context=context)
        await producer.start()
        try:
            return int((await producer.send_and_wait("over-tls", b"asyncio")).offset)
        finally:
            await producer.stop()

    assert asyncio.run(by_asyncio()) > sent.offset


def test_a_user_without_keys_comes_by_its_password_and_the_log_says_why_not_by_scram(
    broker: KafkaTlsBroker,
) -> None:
    """What an older release kept opens still: a scrypt hash alone."""
    set_document(broker, {"users.old": hash_password(b"secret")})
    until(lambda: delivers(broker, 10, **plain("old", "secret")), "old is let in by its password")
    assert not delivers(broker, 4, **scram("old", "secret"))
    until(lambda: "user old has no keys for SCRAM-SHA-256" in audited(broker), "the log says why")
    assert users(broker, "add", "old", "--password-stdin", given="other\n").exit_code == 0
    until(lambda: delivers(broker, 4, **scram("old", "other")), "its password set again")
    assert users(broker, "remove", "old").exit_code == 0


def test_who_is_no_user_any_more_must_go(broker: KafkaTlsBroker) -> None:
    assert users(broker, "add", "tim", "--password-stdin", given="secret\n").exit_code == 0
    until(lambda: delivers(broker, 10, **scram("tim", "secret")), "tim is let in")
    known: dict[str, Any] = {
        "bootstrap.servers": f"localhost:{broker.kafkas}",
        "ssl.ca.location": broker.authority,
        **scram("tim", "secret"),
        "log_level": 0,
    }
    admin = AdminClient(known)
    assert admin.list_topics(timeout=PATIENCE_S).topics
    assert users(broker, "remove", "tim").exit_code == 0

    def is_out() -> bool:
        try:
            admin.list_topics(timeout=3)
        except KafkaException:
            return True
        return False

    until(is_out, "tim is out")


def set_document(broker: KafkaTlsBroker, keys: dict[str, str]) -> None:
    """Lay keys over the tenant's document, as an operator does."""
    api = AdminApi(parse_address(str(broker.admin)))

    def is_set() -> bool:
        told = api.ask("GET", "/v1/config", query={"scope": "Tenant", "name": "dev"})
        held = told.body["in_force"]
        body = {
            "scope": {"kind": "Tenant", "name": "dev"},
            "expected_version": told.body["version"],
            "document": {**(held["document"] if held else {}), **keys},
        }
        return api.ask("PUT", "/v1/config", body=body).is_done

    until(is_set, "the document is set")


def audited(broker: KafkaTlsBroker) -> str:
    """Return what the node's audit log says, by the command that reads it."""
    (node,) = sorted(broker.data.glob("node-*"))
    return CliRunner().invoke(build(["audit"]), ["audit", "show", str(node)]).output


def test_a_token_of_the_tenant_lets_in(broker: KafkaTlsBroker) -> None:
    until(lambda: delivers(broker, 10, **bearer("dev")), "the robot is let in")


@pytest.mark.parametrize(
    "options",
    {
        "a wrong password": lambda: plain("ann", "guess"),
        "a wrong password by SCRAM": lambda: scram("ann", "guess"),
        "nobody's name by SCRAM": lambda: scram("eve", "secret", SCRAM_512),
        "nobody's name": lambda: plain("eve", "secret"),
        "another tenant's token": lambda: bearer("other"),  # made when its turn comes: it ages
        "nothing shown": lambda: {"security.protocol": "ssl"},
    }.items(),
    ids=lambda each: each[0],
)
def test_nobody_else_is_let_in(
    broker: KafkaTlsBroker, options: tuple[str, Callable[[], dict[str, object]]]
) -> None:
    until(lambda: delivers(broker, 10, **plain("ann", "secret")), "it serves")
    assert not delivers(broker, 4, **options[1]())
