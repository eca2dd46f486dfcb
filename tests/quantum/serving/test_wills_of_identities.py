"""Wills of clients that show who they are, and of those whose connection we broke (C23)."""

from __future__ import annotations

import pytest

from quantum.protocols.mqtt.session.terms import patience_seconds
from tests.quantum.serving.client import Client, connect, will
from tests.quantum.serving.tenant_lab import TenantLab

ALICE = "spiffe://dev/client/alice"
LASTS = 600


@pytest.fixture
def lab() -> TenantLab:
    rules: dict[str, object] = {"acl": [{"effect": "allow", "pattern": "#"}]}
    return TenantLab({"blue": rules, "red": {**rules, "wills": "standard"}})


def watch(lab: TenantLab, tenant: str) -> Client:
    watcher = connect(lab.door(tenant, "watcher"), session_expiry_interval=LASTS)
    watcher.subscribe(b"will", 1)
    return watcher


def device(lab: TenantLab, tenant: str, *, clean: bool = False, lasts: int = LASTS) -> Client:
    door = lab.door(tenant, ALICE)
    last = will(b"will", b"gone", 1)
    return connect(
        door,
        client_id="device",
        clean=clean,
        will=last,
        keep_alive=10,
        session_expiry_interval=lasts,
    )


def test_a_proven_client_that_goes_on_with_its_session_says_nothing(lab: TenantLab) -> None:
    watcher = watch(lab, "blue")
    device(lab, "blue")
    device(lab, "blue")
    lab.advance(9)  # within its keep-alive
    watcher.expect_quiet()


def test_a_proven_client_that_starts_clean_ends_its_session_and_says_its_will(
    lab: TenantLab,
) -> None:
    watcher = watch(lab, "blue")
    device(lab, "blue")
    device(lab, "blue", clean=True)
    assert watcher.take().payload == b"gone"
    lab.advance(9)  # within its keep-alive
    watcher.expect_quiet()


def test_a_tenant_may_want_the_standard_for_every_takeover(lab: TenantLab) -> None:
    watcher = watch(lab, "red")
    device(lab, "red")
    device(lab, "red")
    assert watcher.take().payload == b"gone"
    watcher.expect_quiet()


@pytest.mark.parametrize("lasts", [0, LASTS])
def test_another_leader_is_no_end_of_a_client(lab: TenantLab, lasts: int) -> None:
    device(lab, "blue", lasts=lasts)
    lab.lead(leads=False)
    lab.lead(leads=True)
    watcher = watch(lab, "blue")
    lab.advance(patience_seconds(10) - 1)
    watcher.expect_quiet()
    device(lab, "blue", clean=not lasts, lasts=lasts)
    lab.advance(1)
    watcher.expect_quiet()


@pytest.mark.parametrize("lasts", [0, LASTS])
def test_who_stays_away_after_another_leader_is_dead_in_its_own_time(
    lab: TenantLab, lasts: int
) -> None:
    device(lab, "blue", lasts=lasts)
    lab.lead(leads=False)
    lab.lead(leads=True)
    watcher = watch(lab, "blue")
    lab.advance(patience_seconds(10) + 1)
    assert watcher.take().payload == b"gone"
    lab.advance(100)
    watcher.expect_quiet()


@pytest.mark.parametrize(("keep_alive", "patience"), [(0, 60), (1, 5), (10, 15), (11, 17)])
def test_a_client_s_own_time(keep_alive: int, patience: int) -> None:
    assert patience_seconds(keep_alive) == patience
