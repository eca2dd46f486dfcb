"""Stock clients show who they are, by every mechanism, and the wrong ones are told so."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import confluent_kafka
import pytest

from quantum.protocols.kafka.codec import ApiKey, KafkaCode, answer, decode_request, read_head
from quantum.protocols.kafka.requests import (
    OAUTHBEARER,
    PLAIN,
    CheckPassword,
    CheckToken,
    KafkaSaslExchange,
    LookUpScram,
    SaslReply,
)
from quantum.tenancy import SCRAM_256, SCRAM_512, derive_credential
from tests.quantum.kafka import golden
from tests.quantum.kafka.listener import HIDDEN, Listener, listening

ALL = (PLAIN, SCRAM_256, SCRAM_512, OAUTHBEARER)
QUIET = logging.getLogger("quantum.tests.silent")
QUIET.disabled = True


class SaslListener(Listener):
    """A listener that serves nobody who has not shown who it is; the driver's part is below."""

    hidden = HIDDEN - {ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE}

    def __init__(self) -> None:
        super().__init__()
        self.principals: list[str] = []
        self.refused_with: list[KafkaCode] = []

    def connect(self) -> Callable[[bytes], bytes]:
        sasl = KafkaSaslExchange(ALL, lambda: "nonce", b"secret")
        return lambda request: self._reply(sasl, request)

    def _reply(self, sasl: KafkaSaslExchange, request: bytes) -> bytes:
        head = read_head(request)
        if head.api_key == ApiKey.SASL_HANDSHAKE:
            body: Any = decode_request(head, request)
            code = sasl.on_handshake(body.mechanism)
            return answer(head, {"error_code": code, "mechanisms": ALL})
        if head.api_key == ApiKey.SASL_AUTHENTICATE:
            body = decode_request(head, request)
            reply = self._find_out(sasl, sasl.on_message(body.auth_bytes))
            if reply.principal is not None:
                self.principals.append(reply.principal)
            if reply.error is not KafkaCode.none:
                self.refused_with.append(reply.error)
            facts = {"error_code": reply.error, "error_message": reply.reason}
            more = {"auth_bytes": reply.data, "session_lifetime": reply.session_ms}
            return answer(head, facts | more)
        assert head.api_key == ApiKey.API_VERSIONS or sasl.principal is not None
        return self.reply(request)

    def _find_out(self, sasl: KafkaSaslExchange, step: Any) -> SaslReply:
        match step:
            case CheckPassword(user, password):
                return sasl.on_password(matches=(user, password) == ("al,ice", b"secret"))
            case LookUpScram(mechanism, user):
                kept = derive_credential(mechanism, b"secret", b"salt", 4096)
                return sasl.on_credential(kept if user == "al,ice" else None)
            case CheckToken(token):
                return sasl.on_token("al,ice" if token == "good" else None, 3_600_000)
            case _:
                assert isinstance(step, SaslReply)
                return step


def admin(listener: Listener, mechanism: str, user: str, password: str) -> Any:
    settings: dict[str, Any] = {
        "bootstrap.servers": listener.address,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "logger": QUIET,
    }
    if mechanism == OAUTHBEARER:
        token = "good" if password == "secret" else "bad"
        settings["oauth_cb"] = lambda _: (token, 1e12)
    else:
        settings |= {"sasl.username": user, "sasl.password": password}
    made = confluent_kafka.Producer(settings)
    made.poll(0)
    return made


def ask_until_refused(client: Any, listener: SaslListener) -> None:
    """Ask in vain until the listener has said why; a busy machine may need more than one try."""
    for _ in range(60):
        with pytest.raises(confluent_kafka.KafkaException):
            client.list_topics(timeout=1)
        if listener.refused_with:
            return


@pytest.mark.parametrize("mechanism", ALL)
def test_who_shows_who_it_is_is_served(mechanism: str) -> None:
    with listening(SaslListener()) as listener:
        client = admin(listener, mechanism, "al,ice", "secret")
        assert client.list_topics(timeout=20).cluster_id == "listener"
        assert set(listener.principals) == {"al,ice"}
        golden.keep(f"librdkafka-sasl-{mechanism.lower()}", listener.requests)


@pytest.mark.parametrize("mechanism", ALL)
def test_who_does_not_is_refused(mechanism: str) -> None:
    with listening(SaslListener()) as listener:
        client = admin(listener, mechanism, "al,ice", "wrong")
        ask_until_refused(client, listener)
        assert not listener.principals
        assert set(listener.refused_with) == {KafkaCode.sasl_authentication_failed}


@pytest.mark.parametrize("mechanism", [SCRAM_256, SCRAM_512])
def test_an_unknown_user_is_refused_as_a_wrong_password_is(mechanism: str) -> None:
    with listening(SaslListener()) as listener:
        client = admin(listener, mechanism, "nobody", "secret")
        ask_until_refused(client, listener)
        assert not listener.principals
        assert set(listener.refused_with) == {KafkaCode.sasl_authentication_failed}
