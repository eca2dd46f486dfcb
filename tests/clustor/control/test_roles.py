"""Who may call what: every role against every command (clustor §12.3), refusals audited."""

from __future__ import annotations

import pytest

from clustor.control import (
    KINDS,
    AuditRecord,
    OverrideScope,
    RefusalCode,
    Refused,
    SetQuotas,
    describe,
    scan,
)
from tests.clustor.control.plane import (
    ACTOR,
    OBSERVER,
    OPERATOR,
    STRANGER,
    TENANT_ADMIN,
    node_identity,
    settled_plane,
)
from tests.clustor.control.samples import SAMPLES

CALLERS = {
    "Operator": OPERATOR,
    "TenantAdmin": TENANT_ADMIN,
    "Observer": OBSERVER,
    "Node": node_identity(1),
    "nobody": STRANGER,
}
OPERATOR_ONLY = "Operator"
TABLE = {
    "ActivateDek": OPERATOR_ONLY,
    "AdminResumePartition": "",  # break-glass alone
    "AdvanceKeyEpochs": OPERATOR_ONLY,
    "ArmBarrier": OPERATOR_ONLY,
    "ClearProofConflict": OPERATOR_ONLY,
    "ClearQuarantine": OPERATOR_ONLY,
    "CommitFence": OPERATOR_ONLY,
    "CompactHistory": OPERATOR_ONLY,
    "CreateTenant": OPERATOR_ONLY,
    "DefineActivate": OPERATOR_ONLY,
    "DeleteTenant": OPERATOR_ONLY,
    "DrainNode": OPERATOR_ONLY,
    "ForgetDek": OPERATOR_ONLY,
    "GrantDek": OPERATOR_ONLY,
    "IndexAudit": "Operator Node",
    "IssueBootstrapToken": OPERATOR_ONLY,
    "IssueBreakGlass": OPERATOR_ONLY,
    "LiftFence": OPERATOR_ONLY,
    "PlacePartition": OPERATOR_ONLY,
    "PromoteRegion": OPERATOR_ONLY,
    "PublishBundle": OPERATOR_ONLY,
    "PublishFeatureManifest": OPERATOR_ONLY,
    "PublishProofs": "Node",
    "PublishRbacManifest": OPERATOR_ONLY,
    "RecordDurabilityMode": "Node",
    "RecordMembership": "Node",
    "RecordOverride": "",  # break-glass alone
    "RegisterKey": OPERATOR_ONLY,
    "RegisterNode": OPERATOR_ONLY,
    "RemoveNode": OPERATOR_ONLY,
    "ReportDekReady": "Node",
    "ReportNode": "Node",
    "ReportSilence": "Operator",
    "ReportLag": "Node",
    "ReportQuarantine": "Operator Node",
    "ReportWarmup": "Node",
    "ReportZeroization": "Node",
    "RetireKey": OPERATOR_ONLY,
    "RetirePartition": OPERATOR_ONLY,
    "RevokeOverride": OPERATOR_ONLY,
    "RollBackConfiguration": OPERATOR_ONLY,
    "SetAcls": OPERATOR_ONLY,
    "SetConfiguration": OPERATOR_ONLY,
    "SetDurabilityMode": OPERATOR_ONLY,
    "SetFeatureGate": OPERATOR_ONLY,
    "SetFollowerReads": OPERATOR_ONLY,
    "SetQuotas": "Operator TenantAdmin",
    "SetRoutingMap": OPERATOR_ONLY,
    "SetTrust": OPERATOR_ONLY,
    "UpdateTenant": OPERATOR_ONLY,
}
OPEN = {"InitializeCluster", "EnrollNode"}  # decided by what is presented, not by a role
DENIALS = {RefusalCode.UNAUTHORIZED, RefusalCode.BREAK_GLASS_REFUSED}


def test_the_tables_name_the_same_commands() -> None:
    assert set(TABLE) | OPEN == {kind.name for kind in KINDS} == set(SAMPLES)


@pytest.mark.parametrize("role", CALLERS)
@pytest.mark.parametrize("name", TABLE)
def test_each_role_may_call_what_the_table_says(name: str, role: str) -> None:
    plane = settled_plane()
    answer = plane.call(SAMPLES[name], by=CALLERS[role])
    denied = isinstance(answer, Refused) and answer.code in DENIALS
    assert denied == (role not in TABLE[name].split()), answer
    newest = list(scan(plane.machine.kv, AuditRecord))[-1]
    if denied:
        assert newest.outcome in DENIALS
        assert newest.identity == CALLERS[role]
        assert newest.touched == ()


@pytest.mark.parametrize("name", sorted(TABLE))
def test_a_break_glass_token_opens_its_own_calls_and_no_other(name: str) -> None:
    plane = settled_plane()
    scope = OverrideScope.QUARANTINE
    if name == "RecordOverride":
        scope = OverrideScope.SURVIVABILITY
    plane.break_glass("glass", scope)
    answer = plane.call(SAMPLES[name], by=ACTOR, token="glass")
    denied = isinstance(answer, Refused) and answer.code in DENIALS
    assert denied == (name not in {"RecordOverride", "AdminResumePartition"}), answer


def test_a_tenant_admin_stays_in_its_tenant() -> None:
    plane = settled_plane()
    plane.add_tenant("b")
    ours = SetQuotas(tenant_id="a", expected_version=0, quotas={})
    theirs = SetQuotas(tenant_id="b", expected_version=0, quotas={})
    assert plane.refused(theirs, by=TENANT_ADMIN) is RefusalCode.UNAUTHORIZED
    assert plane.done(ours, by=TENANT_ADMIN) == {"version": 1}


@pytest.mark.parametrize(
    "name", ["PublishProofs", "RecordMembership", "ReportNode", "ReportWarmup"]
)
def test_a_node_speaks_for_itself_alone(name: str) -> None:
    plane = settled_plane()
    assert plane.refused(SAMPLES[name], by=node_identity(2)) is RefusalCode.UNAUTHORIZED


def test_a_removed_node_has_no_role() -> None:
    plane = settled_plane()
    plane.done(SAMPLES["RemoveNode"])
    report = SAMPLES["ReportNode"]
    assert plane.refused(report, by=node_identity(4)) is RefusalCode.UNAUTHORIZED


def test_every_command_describes_itself() -> None:
    descriptions, components = describe()
    assert [each.name for each in descriptions] == sorted(kind.name for kind in KINDS)
    for each in descriptions:
        assert each.summary.endswith((".", ":")), each.name
        schema = components[each.name]
        assert schema["properties"]["kind"]["enum"] == [each.name]
        assert schema["additionalProperties"] is False
