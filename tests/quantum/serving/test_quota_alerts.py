"""Operators hear of a quota at 0.95 and at 1.05 of it, once for each step (quantumqtt A.4)."""

from __future__ import annotations

import logging

import pytest

from quantum.tenancy import Alert, Resource, describe_tenants
from quantum.tenants.policy import TenantGuard


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [each.getMessage() for each in caplog.records if "QUOTA_ALERT" in each.getMessage()]
    caplog.clear()
    return found


def test_each_step_is_told_once_and_forgotten_below(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    guard = TenantGuard("blue", 0)
    described = describe_tenants({"tenants": {"blue": {"quotas": {"connections": 100}}}})
    guard.change(described["blue"], 0)
    for _ in range(94):
        assert guard.enter(1_000)
    assert (told(caplog), guard.alerts) == ([], {})
    for _ in range(5):
        guard.enter(1_000)
    (line,) = told(caplog)
    assert "tenant=blue" in line and "95 of 100" in line
    assert guard.alerts == {Resource.CONNECTIONS: Alert.NEAR}
    for _ in range(6):
        guard.enter(1_000)
    (line,) = told(caplog)
    assert "1.05" in line and guard.alerts == {Resource.CONNECTIONS: Alert.OVER}
    for _ in range(20):
        guard.leave(2_000)
    assert guard.alerts == {}
