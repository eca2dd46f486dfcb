"""MQTT 3.1.1 and 5.0, sections 3.14, 3.15 and 4.12: DISCONNECT, AUTH, authentication."""

from __future__ import annotations

import pytest

from quantum.protocols.mqtt.codec import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Pingreq,
    Pingresp,
    Properties,
    ProtocolVersion,
    Publish,
    ReasonCode,
)
from quantum.protocols.mqtt.codec.types import ClientId, TopicName
from quantum.protocols.mqtt.session.authentication import (
    AuthenticationAccepted,
    AuthenticationRefused,
    Challenge,
    Exchange,
    Verdict,
    Who,
)
from tests.quantum.serving.client import (
    V5,
    V31,
    V311,
    Client,
    Dialer,
    connect,
    dial,
    topic,
    unique,
)
from tests.quantum.serving.lab import Lab

ALL = pytest.mark.parametrize("version", [V31, V311, V5], ids=["3.1", "3.1.1", "5"])


@ALL
def test_mqtt_3_14_4_the_server_closes_and_takes_nothing_more(
    broker: Dialer, version: ProtocolVersion
) -> None:
    """[MQTT-3.14.4-1] [MQTT-3.14.4-2]: no packet behind DISCONNECT counts"""
    reader = connect(broker)
    reader.subscribe(news := topic(), 1)
    client = connect(broker, version)
    client.send(
        Publish(TopicName(news), b"before"), Disconnect(), Publish(TopicName(news), b"after")
    )
    client.expect_end()
    assert reader.take().payload == b"before"
    reader.expect_quiet()


class TestExpiry:
    """§3.14.2.2.2"""

    @pytest.mark.parametrize(
        "reason", [ReasonCode.SUCCESS, ReasonCode.DISCONNECT_WITH_WILL_MESSAGE]
    )
    def test_disconnect_may_change_the_interval(self, lab: Lab, reason: ReasonCode) -> None:
        for new, present in ((0, False), (10, False), (100, True)):
            name = unique("client")
            client = connect(lab, client_id=name, session_expiry_interval=60)
            client.leave(reason, Properties(session_expiry_interval=new))
            lab.advance(11)
            again = connect(lab, client_id=name, clean=False)
            assert again.connack.session_present is present

    def test_without_a_word_it_stays(self, lab: Lab) -> None:
        name = unique("client")
        connect(lab, client_id=name, session_expiry_interval=60).leave()
        lab.advance(59)
        assert connect(lab, client_id=name, clean=False).connack.session_present

    def test_zero_cannot_become_something(self, broker: Dialer) -> None:
        """§3.14.2.2.2: a protocol error"""
        client = connect(broker)
        client.send(Disconnect(properties=Properties(session_expiry_interval=1)))
        client.expect_disconnect(ReasonCode.PROTOCOL_ERROR)

    def test_zero_may_stay_zero(self, broker: Dialer) -> None:
        connect(broker).leave(properties=Properties(session_expiry_interval=0))


class TestProblemInformation:
    """[MQTT-3.1.2-29] §3.1.2.11.7"""

    @pytest.mark.parametrize(("asked", "told"), [(None, True), (True, True), (False, False)])
    def test_reason_strings_only_for_who_wants_them(
        self, broker: Dialer, asked: bool | None, told: bool
    ) -> None:
        properties = {} if asked is None else {"request_problem_information": asked}
        client = connect(broker, **properties)  # type: ignore[arg-type]
        client.send(Connect(V5, ClientId("again")))
        found = client.expect_disconnect(ReasonCode.PROTOCOL_ERROR)
        assert (found.properties.reason_string is not None) is told

    @pytest.mark.parametrize("asked", [True, False])
    def test_other_answers_have_no_properties(self, broker: Dialer, asked: bool) -> None:
        """[MQTT-3.4.2-2] [MQTT-3.4.2-3] [MQTT-3.5.2-2] [MQTT-3.5.2-3] [MQTT-3.6.2-2]

        [MQTT-3.6.2-3] [MQTT-3.7.2-2] [MQTT-3.7.2-3] [MQTT-3.9.2-1] [MQTT-3.9.2-2]
        [MQTT-3.11.2-1] [MQTT-3.11.2-2]: so none makes them too large.
        """
        client = connect(broker, request_problem_information=asked)
        for sent, answer in {
            "320b0006245359532f78" + "000100": "4003000187",
            "340b0006245359532f78" + "000200": "5003000287",
            "62020003": "70020003",
            "50020004": "62020004",
            "a206000500000174": "b00400050011",
            "8207000600000174" + "00": "900400060000",
        }.items():
            client.send(bytes.fromhex(sent))
            first, body = client.receive_raw() or (0, b"")
            assert bytes((first, len(body))) + body == bytes.fromhex(answer)


# Authentication.


class Echo:
    """A method for tests: the client says its name, is asked for a word, and must repeat it."""

    def __init__(self) -> None:
        self.again = 0

    def begin(self, connect: Connect | None, _who: Who, /) -> Exchange:
        self.again += connect is None
        return EchoExchange()


class EchoExchange:
    def __init__(self) -> None:
        self._steps = 0

    def step(self, data: bytes | None) -> Verdict:
        self._steps += 1
        if self._steps == 1:
            return Challenge(b"say " + (data or b"nothing"))
        return AuthenticationAccepted(b"welcome") if data == b"word" else AuthenticationRefused()


@pytest.fixture
def echoing(lab: Lab) -> Lab:
    lab.service.mqtt.authenticators["ECHO"] = Echo()
    return lab


def begun(lab: Lab, client_id: str | None = None, **more: object) -> Client:
    """Connect with the method, up to the challenge."""
    client = dial(lab)
    asked = Properties(
        authentication_method="ECHO",
        authentication_data=b"me",
        **more,  # type: ignore[arg-type]
    )
    client.send(Connect(V5, ClientId(client_id or unique("client")), properties=asked))
    challenge = client.expect(Auth)
    assert challenge.reason_code is ReasonCode.CONTINUE_AUTHENTICATION
    assert challenge.properties == Properties(
        authentication_method="ECHO", authentication_data=b"say me"
    )
    return client


def word(
    data: bytes, reason: ReasonCode = ReasonCode.CONTINUE_AUTHENTICATION, method: str = "ECHO"
) -> Auth:
    return Auth(reason, Properties(authentication_method=method, authentication_data=data))


class TestAuthentication:
    """§4.12"""

    def test_mqtt_4_12_0_1_an_unknown_method_is_refused(self, broker: Dialer) -> None:
        """[MQTT-4.12.0-1]"""
        client = dial(broker)
        asked = Properties(authentication_method="UNKNOWN")
        client.send(Connect(V5, ClientId(unique("client")), properties=asked))
        client.expect_refusal(ReasonCode.BAD_AUTHENTICATION_METHOD)

    def test_who_answers_is_let_in(self, echoing: Lab) -> None:
        """[MQTT-4.12.0-2] [MQTT-4.12.0-3] [MQTT-4.12.0-5]: the method in every packet

        [MQTT-3.15.2-2] [MQTT-3.15.2-3]: and nothing that could make it too large
        """
        client = begun(echoing)
        client.send(word(b"word"), Pingreq())
        connack = client.expect(Connack)
        assert connack.properties.authentication_method == "ECHO"
        assert connack.properties.authentication_data == b"welcome"
        client.expect(Pingresp)

    def test_who_does_not_is_refused(self, echoing: Lab) -> None:
        """[MQTT-4.12.0-4]"""
        client = begun(echoing)
        client.send(word(b"wrong"))
        client.expect_refusal(ReasonCode.NOT_AUTHORIZED)

    def test_nobody_is_taken_over_before(self, echoing: Lab) -> None:
        name = unique("client")
        owner = connect(echoing, client_id=name)
        thief = begun(echoing, name)
        owner.expect_quiet()
        thief.send(word(b"wrong"))
        owner.expect_quiet()

    @pytest.mark.parametrize(
        "packet",
        [Pingreq(), word(b"word", method="OTHER"), word(b"word", ReasonCode.RE_AUTHENTICATE)],
        ids=["another packet", "another method", "begin again"],
    )
    def test_only_that_exchange_may_go_on_before_connack(
        self, echoing: Lab, packet: Pingreq | Auth
    ) -> None:
        """[MQTT-3.1.2-30] [MQTT-4.12.0-5] [MQTT-3.14.0-1]"""
        client = begun(echoing)
        client.send(packet)
        client.expect_refusal(ReasonCode.PROTOCOL_ERROR)

    def test_who_waits_too_long_is_dropped(self, echoing: Lab) -> None:
        client = begun(echoing)
        echoing.advance(6)
        assert client.receive() is None and getattr(client.line, "is_closed", True)

    @ALL
    def test_without_a_method_there_is_no_auth(
        self, broker: Dialer, version: ProtocolVersion
    ) -> None:
        """[MQTT-4.12.0-6] [MQTT-4.12.0-7]"""
        client = connect(broker, version)
        client.send(bytes.fromhex("f00918071500044543484f"))
        reason = ReasonCode.PROTOCOL_ERROR if version is V5 else ReasonCode.MALFORMED_PACKET
        client.expect_disconnect(reason)


class TestReauthentication:
    """§4.12.1"""

    def live(self, lab: Lab) -> Client:
        client = begun(lab)
        client.send(word(b"word"))
        client.expect(Connack)
        return client

    def test_a_client_may_authenticate_again(self, echoing: Lab) -> None:
        """[MQTT-4.12.1-1]: other packets go on meanwhile"""
        client = self.live(echoing)
        for _ in range(2):
            client.send(word(b"still me", ReasonCode.RE_AUTHENTICATE))
            assert client.expect(Auth).properties.authentication_data == b"say still me"
            client.expect_quiet()
            client.send(word(b"word"))
            success = client.expect(Auth)
            assert success.reason_code is ReasonCode.SUCCESS
            assert success.properties.authentication_method == "ECHO"
            client.expect_quiet()

    def test_who_fails_must_go(self, echoing: Lab) -> None:
        """[MQTT-4.12.1-2]"""
        client = self.live(echoing)
        client.send(word(b"me", ReasonCode.RE_AUTHENTICATE))
        client.expect(Auth)
        client.send(word(b"wrong"))
        client.expect_disconnect(ReasonCode.NOT_AUTHORIZED)

    @pytest.mark.parametrize(
        "packets",
        [
            [word(b"me", ReasonCode.RE_AUTHENTICATE, "OTHER")],
            [word(b"word")],
            [word(b"me", ReasonCode.RE_AUTHENTICATE)] * 2,
        ],
        ids=["another method", "no exchange", "two at once"],
    )
    def test_it_must_be_in_order(self, echoing: Lab, packets: list[Auth]) -> None:
        """[MQTT-4.12.1-1]"""
        client = self.live(echoing)
        client.send(*packets)
        if len(packets) == 2:
            client.expect(Auth)
        client.expect_disconnect(ReasonCode.PROTOCOL_ERROR)
