"""Users, access rules and quotas of a running node by stock administrators' clients."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
)
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType
from confluent_kafka.admin._scram import (
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from kio.index import load_response_schema

from quantum.protocols.kafka.codec import VERSIONS, ApiKey, KafkaCode, decode
from tests.interop.broker_process import HOST, BrokerProcess
from tests.interop.kafka_clients import PATIENCE_S, make_topic, until
from tests.interop.test_access_and_quotas import done
from tests.interop.test_listener_policy import users
from tests.quantum.kafka.session.test_connection import request

pytestmark = pytest.mark.filterwarnings("default")
SALT = b"a salt of the tool"
INFO = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 8192)
OPEN = [
    {"effect": "Allow", "action": "Any", "filter": "#"},
    {"effect": "Allow", "action": "Any", "resource": "Cluster"},
]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("kafka-admin") / "var", partitions=2) as made:
        yield made


def address(broker: BrokerProcess) -> str:
    return f"{HOST}:{broker.kafka}"


def as_user(broker: BrokerProcess, name: str, password: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": address(broker),
        "security.protocol": "sasl_plaintext",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": name,
        "sasl.password": password,
        "log_level": 0,
    }


def outcome(broker: BrokerProcess, name: str, password: str, topic: str) -> str | None:
    """Produce one record as a user; return the name of the error, None: it was acknowledged."""
    told: list[Any] = []
    known = as_user(broker, name, password) | {"message.timeout.ms": 5_000}
    producer = Producer(known)
    producer.produce(topic, b"x", on_delivery=lambda error, _message: told.append(error))
    producer.flush(PATIENCE_S)
    return None if told[0] is None else str(told[0].name())


def described(admin: AdminClient, user: str) -> Any:
    futures: Any = admin.describe_user_scram_credentials([user])  # one future, or one each
    return futures[user].result(PATIENCE_S)


def answer_to(broker: BrokerProcess, key: ApiKey, **facts: Any) -> Any:
    """Ask by bytes what no Python client has a call for."""
    version = VERSIONS[key].last
    with socket.create_connection((HOST, broker.kafka), PATIENCE_S) as connection:
        connection.sendall(request(key, version, 1, facts))
        data = connection.makefile("rb")
        (size,) = struct.unpack(">i", data.read(4))
        return decode(load_response_schema(key, version), data.read(size), 5)


def test_a_user_made_by_kafka_s_administrator_is_a_user_and_goes_as_one(
    broker: BrokerProcess,
) -> None:
    make_topic(address(broker), "users")
    admin = AdminClient({"bootstrap.servers": address(broker)})

    def alter(*changes: Any) -> None:
        for each in admin.alter_user_scram_credentials(list(changes)).values():
            each.result(PATIENCE_S)

    alter(UserScramCredentialUpsertion("kim", INFO, b"secret", SALT))
    until(lambda: outcome(broker, "kim", "secret", "users") is None, "kim is let in")
    assert outcome(broker, "kim", "guess", "users") is not None
    found = described(admin, "kim")
    (info,) = found.scram_credential_infos
    assert (info.mechanism, info.iterations) == (ScramMechanism.SCRAM_SHA_256, 8192)
    assert "kim" in users(broker, "list").output
    alter(UserScramCredentialUpsertion("kim", INFO, b"other", SALT))
    until(lambda: outcome(broker, "kim", "other", "users") is None, "the new password counts")
    assert outcome(broker, "kim", "secret", "users") is not None
    alter(UserScramCredentialDeletion("kim", ScramMechanism.SCRAM_SHA_256))
    until(lambda: "kim" not in users(broker, "list").output, "kim is gone")
    until(lambda: outcome(broker, "kim", "other", "users") is not None, "kim is let in no more")
    with pytest.raises(KafkaException) as refused:
        alter(UserScramCredentialDeletion("kim", ScramMechanism.SCRAM_SHA_256))
    assert refused.value.args[0].name() == "RESOURCE_NOT_FOUND"


def test_what_users_add_made_is_described_and_survives_kill_nine(broker: BrokerProcess) -> None:
    assert users(broker, "add", "lea", "--password-stdin", given="secret\n").exit_code == 0
    make_topic(address(broker), "users")
    until(lambda: outcome(broker, "lea", "secret", "users") is None, "lea is let in")
    broker.kill()
    broker.start()
    until(lambda: outcome(broker, "lea", "secret", "users") is None, "lea is let in again")
    admin = AdminClient({"bootstrap.servers": address(broker)})
    found = described(admin, "lea")
    assert {each.mechanism.name for each in found.scram_credential_infos} == {
        "SCRAM_SHA_256",
        "SCRAM_SHA_512",
    }


def test_a_quota_is_told_as_throttle_time_and_enforced(broker: BrokerProcess) -> None:
    make_topic(address(broker), "rated")
    entity = [{"entity_type": "user", "entity_name": None}]
    op = {"key": "producer_byte_rate", "value": 20_000.0, "remove": False}

    def alter(**other: Any) -> KafkaCode:
        entry = {"entity": entity, "ops": [op | other]}
        facts = {"entries": [entry], "validate_only": False}
        told = answer_to(broker, ApiKey.ALTER_CLIENT_QUOTAS, **facts)
        code: KafkaCode = told.entries[0].error_code
        return code

    def rates() -> list[float]:
        told = answer_to(broker, ApiKey.DESCRIBE_CLIENT_QUOTAS, components=[], strict=False)
        return [each.value for entry in told.entries for each in entry.values]

    assert alter() is KafkaCode.none
    until(lambda: rates() == [20_000.0], "the quota is told")
    throttled: list[int] = []
    producer = Producer(
        {
            "bootstrap.servers": address(broker),
            "linger.ms": 0,
            "throttle_cb": lambda event: throttled.append(event.throttle_time),
        }
    )

    def is_throttled() -> bool:
        producer.produce("rated", bytes(30_000))
        producer.flush(PATIENCE_S)
        return any(throttled)

    until(is_throttled, "a producer is told to wait")
    assert alter(remove=True) is KafkaCode.none
    until(lambda: rates() == [], "the quota is gone")


def binding(operation: AclOperation, **other: Any) -> AclBinding:
    facts: dict[str, Any] = {"restype": ResourceType.TOPIC, "name": "ruled", "host": "*"}
    facts |= {"resource_pattern_type": ResourcePatternType.LITERAL, "principal": "User:max"}
    facts |= {"operation": operation, "permission_type": AclPermissionType.ALLOW}
    return AclBinding(**facts | other)


def test_rules_by_kafka_s_administrator_hold(broker: BrokerProcess) -> None:
    make_topic(address(broker), "ruled")
    admin = AdminClient({"bootstrap.servers": address(broker)})
    write, create = binding(AclOperation.WRITE), binding(AclOperation.CREATE)
    with pytest.raises(KafkaException) as refused:
        admin.create_acls([write])[write].result(PATIENCE_S)
    assert refused.value.args[0].name() == "SECURITY_DISABLED", "no list is begun by one entry"
    assert users(broker, "add", "max", "--password-stdin", given="secret\n").exit_code == 0
    until(lambda: outcome(broker, "max", "secret", "ruled") is None, "without a list all may")
    done(broker, "admin", "tenants", "set-acls", "dev", "--rules", json.dumps(OPEN))
    until(
        lambda: outcome(broker, "max", "secret", "ruled") is not None, "no rule allows it any more"
    )
    made = admin.create_acls([write, create])
    made[write].result(PATIENCE_S)
    with pytest.raises(KafkaException) as refused:
        made[create].result(PATIENCE_S)
    assert "ALTER stands for all that manages one" in str(refused.value)
    until(lambda: outcome(broker, "max", "secret", "ruled") is None, "a rule allows it")
    facts: Any = (ResourceType.TOPIC, "ruled", ResourcePatternType.MATCH, "User:max", None)
    wanted: Any = AclBindingFilter  # its stub has no arguments for these
    mine = wanted(*facts, AclOperation.ANY, AclPermissionType.ANY)
    assert admin.describe_acls(mine).result(PATIENCE_S) == [write]
    assert admin.delete_acls([mine])[mine].result(PATIENCE_S) == [write]
    until(lambda: outcome(broker, "max", "secret", "ruled") is not None, "the rule is gone")
