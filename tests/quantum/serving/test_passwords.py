"""Users and passwords: how they are kept, who is asked for one, and what the audit log hears."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from quantum.config.live import mistakes, read_value
from quantum.edge.errors import PolicyTooOpen
from quantum.edge.tls import ClientAuth, TlsPolicy
from quantum.node.listeners import Door, Doors, password_policy
from quantum.protocols.mqtt.codec import ReasonCode
from quantum.protocols.mqtt.session.limits import MqttLimits
from quantum.tenants.passwords import PasswordPolicy, Passwords, hash_password, is_password
from tests.quantum.serving.client import V5, V311, connect
from tests.quantum.serving.tenant_lab import TenantLab

KEPT = hash_password(b"secret", bytes(16))


class Book(Passwords):
    """The users, checked at once: the lab has no loop that threads could call."""

    def judge(self, tenant: str, name: str, password: bytes, then: Callable[[bool], None]) -> bool:
        kept = self._settings(tenant).get(f"users.{name}")
        then(isinstance(kept, str) and is_password(password, kept))
        return True


def lab_with(kind: str, *, acl: list[dict[str, object]] | None = None) -> TenantLab:
    lab = TenantLab({"blue": {} if acl is None else {"acl": acl}})
    lab.service.mqtt.passwords = Book()
    lab.service.mqtt.passwords.policy = PasswordPolicy(kind)
    users = {"users.ann": KEPT}
    lab.service.mqtt.passwords.words = SimpleNamespace(settings=lambda _tenant: users)
    return lab


def come(lab: TenantLab, version: Any = V5, **credentials: Any) -> ReasonCode:
    reason: ReasonCode = connect(lab.door("blue"), version, **credentials).connack.reason_code
    return reason


def test_a_hash_says_nothing_and_only_its_password_fits() -> None:
    assert b"secret" not in KEPT.encode() and hash_password(b"secret") != KEPT
    assert is_password(b"secret", KEPT)
    for other in (b"", b"Secret", b"secret\0", b"secre"):
        assert not is_password(other, KEPT)
    for broken in ("", "secret", KEPT[:-9], KEPT.replace("ln=14", "ln=30"), "$md5$a$b$c"):
        assert not is_password(b"secret", broken)


def test_a_hash_is_what_the_control_plane_takes_and_no_refusal_repeats_it() -> None:
    assert read_value("users.ann", KEPT) == KEPT
    (said,) = mistakes({"users.ann": "hunter2"})
    assert "hunter2" not in said


OPEN, BAD = ReasonCode.SUCCESS, ReasonCode.BAD_USER_NAME_OR_PASSWORD
WANTED = ReasonCode.NOT_AUTHORIZED
RIGHT = {"user_name": "ann", "password": b"secret"}
TABLE: dict[str, tuple[str, dict[str, Any], ReasonCode]] = {
    "off looks at nothing": ("off", {"user_name": "ann", "password": b"no"}, OPEN),
    "optional, right": ("optional", RIGHT, OPEN),
    "optional, wrong": ("optional", {**RIGHT, "password": b"no"}, BAD),
    "optional, no such user": ("optional", {**RIGHT, "user_name": "bob"}, BAD),
    "optional, no password": ("optional", {"user_name": "ann"}, BAD),
    "optional, none": ("optional", {}, OPEN),
    "required, right": ("required", RIGHT, OPEN),
    "required, none": ("required", {}, WANTED),
    "required, wrong": ("required", {**RIGHT, "password": b""}, BAD),
}


@pytest.mark.parametrize("version", [V311, V5], ids=["3.1.1", "5"])
@pytest.mark.parametrize(("kind", "credentials", "reason"), TABLE.values(), ids=TABLE)
def test_who_is_let_in(
    kind: str, credentials: dict[str, Any], reason: ReasonCode, version: Any
) -> None:
    if version is V311 and credentials.get("user_name") and "password" not in credentials:
        credentials = {**credentials, "password": b""}
    assert come(lab_with(kind), version, **credentials) is reason


def test_the_user_is_the_principal_of_the_access_rules() -> None:
    rules = [{"effect": "allow", "pattern": "own/%u/#", "principals": ["user:ann"]}]
    lab = lab_with("required", acl=rules)  # type: ignore[arg-type]
    client = connect(lab.door("blue"), client_id="c", **RIGHT)  # type: ignore[arg-type]
    assert not client.publish(b"own/user:ann/x", b"", 1).is_failure
    assert client.publish(b"own/bob/x", b"", 1) is ReasonCode.NOT_AUTHORIZED


def test_who_is_no_user_any_more_must_go() -> None:
    lab = lab_with("required")
    client = connect(lab.door("blue"), client_id="c", **RIGHT)  # type: ignore[arg-type]
    lab.service.mqtt.passwords.words = SimpleNamespace(settings=lambda _tenant: {})
    lab.advance(2.0)
    client.expect_disconnect(ReasonCode.NOT_AUTHORIZED)


TLS = Door("0.0.0.0", 8883)
HERE = Door("127.0.0.1", 8883)
NONE = TlsPolicy(client_auth=ClientAuth.NONE)


@pytest.mark.parametrize(
    ("doors", "opens"),
    [
        (Doors(mqtts=TLS), True),
        (Doors(mqtts=TLS, tls=NONE), False),
        (Doors(wss=TLS, tls=NONE), False),
        (Doors(mqtts=TLS, tls=NONE, password="required"), True),
        (Doors(mqtts=HERE, tls=NONE), True),
        (Doors(mqtts=HERE, tls=TlsPolicy("1.2"), tls_records="own"), False),
    ],
    ids=["strict", "open", "open wss", "passwords", "loopback", "own records are of 1.3"],
)
def test_a_policy_that_lets_strangers_in_is_refused_off_loopback(
    doors: Doors, *, opens: bool
) -> None:
    if opens:
        assert password_policy(doors).allows_nobody is (doors.mqtts is HERE)
    else:
        with pytest.raises(PolicyTooOpen):
            password_policy(doors)


class TestExpiry:
    """What is cut is said: in CONNACK to MQTT 5, in the audit log of all others."""

    def test_nothing_is_cut_by_default(self) -> None:
        lab = TenantLab({"blue": {}})
        for asked in (60, 31_536_000, 0xFFFF_FFFF):
            client = connect(lab.door("blue"), session_expiry_interval=asked)
            assert client.connack.properties.session_expiry_interval is None

    def test_a_cut_is_said_in_connack_and_written_down(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        lab = TenantLab({"blue": {}}, MqttLimits(session_expiry_seconds_max=60))
        with caplog.at_level(logging.INFO, "quantum.audit"):
            for _ in range(2):
                client = connect(lab.door("blue"), client_id="c", session_expiry_interval=90)
                assert client.connack.properties.session_expiry_interval == 60
        assert caplog.messages == [
            "SESSION_EXPIRY tenant=blue client=b'c' kept for 60 s (session_expiry_seconds_max)"
        ]

    def test_an_old_client_s_time_is_written_down(self, caplog: pytest.LogCaptureFixture) -> None:
        lab = TenantLab({"blue": {}})
        with caplog.at_level(logging.INFO, "quantum.audit"):
            connect(lab.door("blue"), V311, client_id="old", clean=False)
            connect(lab.door("blue"), V311, client_id="clean")
        assert caplog.messages == [
            "SESSION_EXPIRY tenant=blue client=b'old' kept for 604800 s "
            "(session_expiry_seconds_default)"
        ]


async def test_who_guesses_passwords_keeps_out_no_other_tenant_and_nobody_who_was_right() -> None:
    passwords = Passwords()
    passwords.words = SimpleNamespace(settings=lambda _tenant: {"users.ann": KEPT})
    answered: asyncio.Queue[bool] = asyncio.Queue()
    assert passwords.judge("blue", "ann", b"secret", answered.put_nowait)
    assert await answered.get()
    waiting = 0
    while passwords.judge("blue", "ann", b"%d" % waiting, answered.put_nowait):
        waiting += 1
    assert waiting == 16
    assert passwords.judge("blue", "ann", b"secret", answered.put_nowait)  # remembered
    assert passwords.judge("red", "ann", b"no", answered.put_nowait)
    assert sorted([await answered.get() for _ in range(18)]) == [False] * 17 + [True]
    assert passwords.judge("blue", "ann", b"no", answered.put_nowait)
    assert not await answered.get()
