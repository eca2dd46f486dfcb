"""Quotas: the numbers of §11.2, and the ladder against its history told from the start."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from quantum.tenancy import (
    QUOTA_MAXIMA,
    Alert,
    InvalidQuota,
    QuotaDecision,
    QuotaLedger,
    Quotas,
    QuotaVerdict,
    Resource,
    TenancyMisuse,
    Usage,
)
from quantum.tenancy.ladder import GRACE_MS

GROUPS = Resource.SHARED_GROUPS
HOUR = 3_600_000


def test_defaults_and_maxima_are_the_specification_s_but_for_filters() -> None:
    gib, tib = 1 << 30, 1 << 40
    assert Quotas() == Quotas(
        1_048_576, 64 * gib, 128 * gib, 1_000_000, 50_000, 64 << 20, 1_000, 10_000, 128
    )
    assert (
        Quotas(
            *(1_048_576, tib, 2 * tib, 10_000_000, 500_000, gib, 50_000, 100_000, 1024),
            *(100_000_000, 1_048_576, 1_000_000, 1_000_000_000, 16 * tib, 366 * GRACE_MS),
        )
        == QUOTA_MAXIMA
    )


@pytest.mark.parametrize("field", sorted(Quotas.__slots__))
def test_no_quota_is_beyond_its_maximum(field: str) -> None:
    most = getattr(QUOTA_MAXIMA, field)
    Quotas(**{field: most})
    for value in (most + 1, -1):
        with pytest.raises(InvalidQuota) as caught:
            Quotas(**{field: value})
        assert caught.value.facts["quota"] == field


def test_the_ladder_as_a_story() -> None:
    ledger = QuotaLedger(Quotas(shared_groups=100))
    assert ledger.charge(GROUPS, 100, 0).verdict is QuotaVerdict.ADMIT
    assert ledger.charge(GROUPS, 50, HOUR).verdict is QuotaVerdict.THROTTLE
    assert ledger.charge(GROUPS, 1, HOUR).verdict is QuotaVerdict.REJECT, "beyond one and a half"
    assert ledger.usage(GROUPS).used == 150
    assert ledger.exhausted(24 * HOUR) == []
    last = ledger.charge(GROUPS, 0, 25 * HOUR)
    assert (last.verdict, last.excess, last.grace_left_ms) == (QuotaVerdict.DISCONNECT, 50, 0)
    assert ledger.exhausted(25 * HOUR) == [last]
    ledger.release(GROUPS, 60, 25 * HOUR)
    assert ledger.exhausted(26 * HOUR) == []
    assert ledger.charge(GROUPS, 10, 26 * HOUR).verdict is QuotaVerdict.ADMIT
    assert ledger.charge(GROUPS, 1, 27 * HOUR).verdict is QuotaVerdict.DISCONNECT, (
        "a dip buys nothing"
    )
    assert ledger.charge(GROUPS, 1, 48 * HOUR).verdict is QuotaVerdict.DISCONNECT
    assert ledger.charge(GROUPS, 1, 49 * HOUR).verdict is QuotaVerdict.THROTTLE, (
        "a day within it does"
    )


@pytest.mark.parametrize(
    ("grace_ms", "admitted"), [(0, 2), (HOUR, 3)], ids=["no grace: N admits N", "an hour"]
)
def test_the_grace_is_as_long_as_the_policy_says(grace_ms: int, admitted: int) -> None:
    quotas = Quotas(connections=2, overage_grace_ms=grace_ms)
    ledger = QuotaLedger(quotas)
    connections = Resource.CONNECTIONS
    taken = (QuotaVerdict.ADMIT, QuotaVerdict.THROTTLE)
    verdicts = [ledger.charge(connections, 1, 0).verdict for _ in range(5)]
    assert [each in taken for each in verdicts] == [nth < admitted for nth in range(5)]
    assert quotas.ceiling(connections) == admitted
    after = ledger.charge(connections, 0, grace_ms)
    assert (after.verdict is QuotaVerdict.DISCONNECT) is (grace_ms > 0)
    ledger.release(connections, 2, grace_ms)
    assert ledger.charge(connections, 1, grace_ms).verdict is QuotaVerdict.ADMIT


def test_a_day_within_the_quota_counts_on_end_only() -> None:
    ledger = QuotaLedger(Quotas(shared_groups=100))
    ledger.charge(GROUPS, 120, 0)
    ledger.release(GROUPS, 30, HOUR)
    assert ledger.charge(GROUPS, 20, 2 * HOUR).verdict is QuotaVerdict.THROTTLE
    ledger.release(GROUPS, 20, 20 * HOUR)
    assert ledger.charge(GROUPS, 20, 26 * HOUR).verdict is QuotaVerdict.DISCONNECT


def test_other_quotas_do_not_take_an_earned_day_away() -> None:
    ledger = QuotaLedger(Quotas(shared_groups=100))
    ledger.charge(GROUPS, 120, 0)
    ledger.release(GROUPS, 30, HOUR)
    ledger.change(Quotas(shared_groups=80), 26 * HOUR)
    assert ledger.usage(GROUPS).grace_since_ms == 26 * HOUR
    assert ledger.exhausted(26 * HOUR) == []


def test_the_grace_never_reaches_beyond_the_maximum() -> None:
    ledger = QuotaLedger(Quotas())
    assert ledger.charge(Resource.CONNECTIONS, 1_048_576, 0).verdict is QuotaVerdict.ADMIT
    assert ledger.charge(Resource.CONNECTIONS, 1, 0).verdict is QuotaVerdict.REJECT


def test_lower_quotas_begin_a_grace_and_higher_ones_let_it_end() -> None:
    ledger = QuotaLedger(Quotas(shared_groups=100))
    ledger.charge(GROUPS, 90, 0)
    ledger.change(Quotas(shared_groups=50), HOUR)
    assert ledger.charge(GROUPS, 0, HOUR).verdict is QuotaVerdict.REJECT
    assert ledger.usage(GROUPS).grace_since_ms == HOUR
    assert [one.excess for one in ledger.exhausted(25 * HOUR)] == [40]
    ledger.change(Quotas(shared_groups=100), 26 * HOUR)
    assert ledger.charge(GROUPS, 1, 26 * HOUR).verdict is QuotaVerdict.ADMIT
    assert ledger.charge(GROUPS, 0, 51 * HOUR).grace_left_ms == GRACE_MS


def test_a_ledger_goes_on_from_what_another_one_held() -> None:
    first = QuotaLedger(Quotas(shared_groups=10))
    first.charge(GROUPS, 12, HOUR)
    second = QuotaLedger(first.quotas, {GROUPS: Usage(12, HOUR)})
    assert second.usage(GROUPS) == first.usage(GROUPS)
    assert second.charge(GROUPS, 0, 25 * HOUR).verdict is QuotaVerdict.DISCONNECT
    assert second.usage(Resource.CONNECTIONS).used == 0


@pytest.mark.parametrize(
    ("used", "alert"),
    [(0, Alert.NONE), (94, Alert.NONE), (95, Alert.NEAR), (104, Alert.NEAR), (105, Alert.OVER)],
)
def test_alerts(used: int, alert: Alert) -> None:
    assert QuotaDecision(QuotaVerdict.ADMIT, GROUPS, used, 100, 0).alert is alert
    assert QuotaDecision(QuotaVerdict.ADMIT, GROUPS, 0, 0, 0).alert is Alert.NONE


def test_misuse_is_refused_and_changes_nothing() -> None:
    ledger = QuotaLedger(Quotas())
    ledger.charge(GROUPS, 5, 0)
    for amount in (6, -1):
        with pytest.raises(TenancyMisuse):
            ledger.release(GROUPS, amount, 0)
    with pytest.raises(TenancyMisuse):
        ledger.charge(GROUPS, -1, 0)
    assert ledger.usage(GROUPS).used == 5


class LedgerMachine(RuleBasedStateMachine):
    """One resource, and the history of its usage from which the grace is worked out anew."""

    QUOTA = 10

    def __init__(self) -> None:
        super().__init__()
        self.ledger = QuotaLedger(Quotas(shared_groups=self.QUOTA))
        self.now = 0
        self.used = 0
        self.history = [(0, 0)]

    def grace_since(self) -> int | None:
        """When the present grace began, by the whole history."""
        since: int | None = None
        within: int | None = 0
        for at, used in [*self.history, (self.now, self.used)]:
            if within is not None and at - within >= GRACE_MS:
                since = None
            if used > self.QUOTA:
                since, within = (at if since is None else since), None
            elif within is None:
                within = at
        return since

    @rule(hours=st.sampled_from([0, 1, 12, 23, 24]))
    def wait(self, hours: int) -> None:
        self.now += hours * HOUR

    @rule(amount=st.sampled_from([0, 1, 4, 8]))
    def charge(self, amount: int) -> None:
        since = self.grace_since()
        spent = since is not None and self.now - since >= GRACE_MS
        after = self.used + amount
        if after <= self.QUOTA:
            expected = QuotaVerdict.ADMIT
        elif spent:
            expected = QuotaVerdict.DISCONNECT
        else:
            expected = QuotaVerdict.THROTTLE if after <= 15 else QuotaVerdict.REJECT
        assert self.ledger.charge(GROUPS, amount, self.now).verdict is expected
        if expected in (QuotaVerdict.ADMIT, QuotaVerdict.THROTTLE):
            self.used = after
            self.history.append((self.now, after))

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        amount = data.draw(st.integers(0, self.used))
        self.ledger.release(GROUPS, amount, self.now)
        self.used -= amount
        self.history.append((self.now, self.used))

    @invariant()
    def holds_what_was_taken(self) -> None:
        assert self.ledger.usage(GROUPS).used == self.used <= 15
        since = self.grace_since()
        spent = since is not None and self.now - since >= GRACE_MS
        assert bool(self.ledger.exhausted(self.now)) == (spent and self.used > self.QUOTA)


TestLedgerMachine = LedgerMachine.TestCase
TestLedgerMachine.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
