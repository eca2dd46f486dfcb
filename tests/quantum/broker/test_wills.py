"""When a will is said at a takeover, after a break that was ours, and once only (ruling C23)."""

from __future__ import annotations

import pytest

from quantum.broker import LeaderStarted, WillSpec
from tests.quantum.broker.desk import Desk, record, spec

SAID = [b"last words"]
QUIET: list[bytes] = []
ME = b"spiffe://me"
PATIENCE = 30
LASTS, ENDS = 100, 0  # MQTT 3.1.1: clean session off and on; MQTT 5: the session expiry


def will(delay: int = 0) -> WillSpec:
    return WillSpec(record(b"will", b"last words"), delay, PATIENCE)


def heard(desk: Desk) -> list[bytes]:
    return desk.payloads()


def listen(desk: Desk) -> None:
    """Let somebody hear every will; it ends with each leader, as all that do not last."""
    desk.subscribe(spec(b"will"), client_id=b"listener", epoch=0)


def lead(desk: Desk, term: int) -> None:
    desk.do(LeaderStarted(desk.now_ms, term))
    assert heard(desk) == QUIET
    listen(desk)


def attached(expiry: int, delay: int, identity: bytes) -> Desk:
    desk = Desk()
    listen(desk)
    desk.attach(expiry=expiry, will=will(delay), identity=identity)
    return desk


#    expiry, clean, identity, delay, standard, what is heard at the takeover of a live connection
TAKEOVERS = {
    "proven, goes on": (LASTS, False, ME, 0, False, QUIET),
    "proven, goes on, delayed": (LASTS, False, ME, 9, False, QUIET),
    "proven, goes on, the tenant wants the standard": (LASTS, False, ME, 0, True, SAID),
    "proven, goes on, delayed, the standard": (LASTS, False, ME, 9, True, QUIET),
    "proven, starts clean": (LASTS, True, ME, 0, False, SAID),
    "proven, starts clean, delayed": (LASTS, True, ME, 9, False, SAID),
    "proven, a session that ends": (ENDS, False, ME, 0, False, SAID),
    "proven, a session that ends, clean": (ENDS, True, ME, 0, False, SAID),
    "nobody proven, goes on": (LASTS, False, b"", 0, False, SAID),
    "nobody proven, goes on, delayed": (LASTS, False, b"", 9, False, QUIET),
    "nobody proven, starts clean": (LASTS, True, b"", 0, False, SAID),
    "nobody proven, starts clean, delayed": (LASTS, True, b"", 9, False, SAID),
    "nobody proven, a session that ends": (ENDS, True, b"", 0, False, SAID),
}


@pytest.mark.parametrize("order", ["attach first", "detach first"])
@pytest.mark.parametrize(
    ("expiry", "clean", "identity", "delay", "standard", "said"),
    TAKEOVERS.values(),
    ids=TAKEOVERS.keys(),
)
def test_the_will_of_whom_a_connection_takes_over(
    expiry: int,
    clean: bool,
    identity: bytes,
    delay: int,
    standard: bool,
    said: list[bytes],
    order: str,
) -> None:
    """Its leader may log the end of the older connection before the new one, or behind it."""
    desk = attached(expiry, delay, identity)
    older = desk.session(b"c").attachment
    if order == "detach first":
        desk.detach(gracefully=False, by_us=True, attachment=older)
        assert heard(desk) == QUIET
    desk.attach(
        expiry=expiry,
        clean=clean,
        identity=identity,
        takes_over=True,
        standard_wills=standard,
    )
    assert heard(desk) == said
    if order == "attach first":
        desk.detach(gracefully=False, by_us=True, attachment=older, epoch=1)
    desk.elapse(1_000)
    assert heard(desk) == QUIET, "it is said once"


def test_a_delayed_will_is_not_lost_by_a_clean_start() -> None:
    desk = attached(LASTS, 50, ME)
    desk.detach(gracefully=False)
    desk.attach(clean=True, identity=ME)
    assert heard(desk) == SAID


BREAKS = ["a leader", "a node on the way"]


def broken(desk: Desk, how: str) -> None:
    if how == "a leader":
        lead(desk, 2)
    else:
        desk.detach(gracefully=False, by_us=True)


@pytest.mark.parametrize("how", BREAKS)
@pytest.mark.parametrize("clean", [False, True], ids=["goes on", "clean"])
@pytest.mark.parametrize("expiry", [LASTS, ENDS], ids=["lasts", "ends"])
@pytest.mark.parametrize("identity", [ME, b""], ids=["proven", "nobody"])
def test_who_comes_back_in_its_own_time_after_our_break_is_not_dead(
    how: str, clean: bool, expiry: int, identity: bytes
) -> None:
    desk = attached(expiry, 0, identity)
    broken(desk, how)
    assert heard(desk) == QUIET
    desk.elapse(PATIENCE - 1)
    assert heard(desk) == QUIET
    desk.attach(expiry=expiry, clean=clean, identity=identity, will=will())
    assert heard(desk) == QUIET
    desk.elapse(1_000)
    assert heard(desk) == QUIET
    desk.detach(gracefully=False)
    assert heard(desk) == SAID, "its new will is its own"


@pytest.mark.parametrize("how", BREAKS)
@pytest.mark.parametrize("expiry", [LASTS, ENDS], ids=["lasts", "ends"])
def test_who_stays_away_is_dead_once_however_many_leaders_came(how: str, expiry: int) -> None:
    desk = attached(expiry, 0, ME)
    broken(desk, how)
    desk.elapse(10)
    lead(desk, 3)
    desk.elapse(PATIENCE - 10)
    assert heard(desk) == SAID
    lead(desk, 4)
    desk.elapse(1_000)
    assert heard(desk) == QUIET


def test_a_delay_begins_when_the_client_s_own_time_is_over() -> None:
    desk = attached(LASTS, 20, ME)
    broken(desk, "a leader")
    desk.elapse(PATIENCE + 19)
    assert heard(desk) == QUIET
    desk.elapse(1)
    assert heard(desk) == SAID


def test_a_session_that_ends_with_its_connection_keeps_nothing_but_its_will() -> None:
    desk = attached(ENDS, 0, ME)
    desk.subscribe(spec(b"a/#"))
    broken(desk, "a leader")
    assert not desk.session(b"c").subscriptions
    assert not desk.attach(expiry=ENDS, identity=ME).present


def test_a_disconnect_that_a_client_says_ends_its_will_even_if_we_break_then() -> None:
    desk = attached(LASTS, 0, ME)
    desk.detach(gracefully=True, by_us=True)
    desk.elapse(1_000)
    assert heard(desk) == QUIET
