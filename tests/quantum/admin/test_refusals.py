"""Who is refused, how, and where that is on record."""

from __future__ import annotations

from typing import Any

import pytest

from clustor.control import AuditRecord, OverrideScope, scan
from clustor.raft.control_plane import CacheState
from quantum.admin import ApiServer
from quantum.admin.attaching import RefusalAuditor
from quantum.admin.node_pages import REFUSAL_LINES_MAX, REFUSAL_WINDOW_MS, REFUSALS_KEPT_MAX
from tests.clustor.control.plane import (
    ACTOR,
    OBSERVER,
    OPERATOR,
    STRANGER,
    TENANT_ADMIN,
    Plane,
    node_identity,
    settled_plane,
)
from tests.clustor.control.samples import SAMPLES
from tests.quantum.admin.certificates import certificate_of, der, issue, serial
from tests.quantum.admin.host import Desk

TENANT = {"tenant_id": "b", "sni": "b.example.com"}
DRAIN = ("POST", "/v1/nodes/4/drain", {"draining": True})
RESUME = ("POST", "/v1/groups/1/quarantines/1/resume", {"justification": "checked"})


def trail(plane: Plane) -> list[AuditRecord]:
    return list(scan(plane.machine.kv, AuditRecord, "calls"))


async def test_without_a_certificate_nothing_is_answered_and_it_is_on_record() -> None:
    desk = Desk()
    before = len(trail(desk.plane))
    for encrypted in (False, True):
        told = await desk.ask(*DRAIN, encrypted=encrypted)
        assert (told.code, told.body["error"]) == (401, "NoCertificate")
        assert told.headers["WWW-Authenticate"] == "mutualTLS"
    assert [note.error for note in desk.kept.notes] == ["NoCertificate"] * 2
    assert desk.kept.notes[0].path == "/v1/nodes/4/drain"
    assert len(trail(desk.plane)) == before, "a stranger must not write to the log"
    seen = await desk.ask("GET", "/v1/audit/refusals", certificate=certificate_of(OPERATOR))
    assert [row["error"] for row in seen.body["items"]] == ["NoCertificate"] * 2
    assert seen.body["total"] == "2"


@pytest.mark.parametrize(
    "uris", [(), ("https://test/operator",), (OPERATOR, OBSERVER)], ids=["none", "http", "two"]
)
async def test_a_certificate_that_does_not_name_one_caller_is_nobody(uris: tuple[str, ...]) -> None:
    desk = Desk()
    told = await desk.ask("GET", "/v1/nodes", certificate=der(issue(*uris)))
    assert (told.code, told.body["error"]) == (401, "NoIdentity")
    assert desk.kept.notes[0].identity is None


@pytest.mark.parametrize("spelled", [str.lower, str.upper, lambda each: f"00{each}"])
async def test_a_revoked_certificate_is_refused_and_on_record(spelled: Any) -> None:
    desk, certificate = Desk(), certificate_of(OPERATOR)
    body = {"expected_version": 0, "roots": [], "revoked": [spelled(serial(certificate))]}
    done = await desk.ask("PUT", "/v1/certificates/cluster", body, certificate=certificate)
    assert done.code == 200, done.body
    for method, target, content in (("GET", "/v1/nodes", None), DRAIN):
        told = await desk.ask(method, target, content, certificate=certificate)
        assert (told.code, told.body["error"]) == (401, "CertificateRevoked")
        assert told.body["facts"]["serial"] == serial(certificate)
    assert [note.identity for note in desk.kept.notes] == [OPERATOR] * 2
    another = der(issue(OPERATOR))
    assert (await desk.ask("GET", "/v1/nodes", certificate=another)).code == 200


async def test_a_role_that_lacks_is_refused_by_the_log_and_on_its_record() -> None:
    desk = Desk()
    told = await desk.ask(*DRAIN, certificate=certificate_of(OBSERVER))
    assert (told.code, told.body["error"]) == (403, "Unauthorized")
    assert told.body["facts"] == {"roles": ["Operator"]}
    assert "role" in told.body["next"]
    record = trail(desk.plane)[-1]
    assert (record.identity, record.kind, record.outcome) == (OBSERVER, "DrainNode", "Unauthorized")
    assert desk.kept.notes == [], "it is on record once"


async def test_a_stranger_is_refused_before_the_log_and_on_this_nodes_record() -> None:
    desk = Desk()
    before = len(trail(desk.plane))
    for method, target, content in (DRAIN, ("GET", "/v1/nodes", None), RESUME):
        told = await desk.ask(method, target, content, certificate=certificate_of(STRANGER))
        assert (told.code, told.body["error"]) == (403, "Unauthorized"), target
    invented = {"break-glass": "invented"}
    told = await desk.ask(*RESUME, certificate=certificate_of(STRANGER), headers=invented)
    assert told.code == 403
    assert [note.identity for note in desk.kept.notes] == [STRANGER] * 4
    assert len(trail(desk.plane)) == before


def quarantined() -> Plane:
    plane = settled_plane()
    plane.call(_report(), by=node_identity(1))
    plane.break_glass("g1", OverrideScope.QUARANTINE)
    return plane


def _report() -> Any:
    return SAMPLES["ReportQuarantine"]


async def test_a_break_glass_token_works_once_for_its_actor() -> None:
    desk, actor = Desk(quarantined()), certificate_of(ACTOR)
    told = await desk.ask(*RESUME, certificate=actor, headers={"break-glass": "g1"})
    assert told.code == 200, told.body
    desk.plane.call(_report(), by=node_identity(1))
    again = await desk.ask(*RESUME, certificate=actor, headers={"break-glass": "g1"})
    assert (again.code, again.body["error"]) == (403, "BreakGlassRefused")
    assert again.body["message"] == "the token was used"
    record = trail(desk.plane)[-1]
    assert (record.break_glass, record.outcome) == ("g1", "BreakGlassRefused")


async def test_a_token_of_somebody_else_does_not_reach_the_log() -> None:
    desk = Desk(quarantined())
    before = len(trail(desk.plane))
    told = await desk.ask(
        *RESUME, certificate=certificate_of(STRANGER), headers={"break-glass": "g1"}
    )
    assert (told.code, len(trail(desk.plane))) == (403, before)


async def test_roles_count_as_soon_as_they_are_bound() -> None:
    desk, stranger = Desk(), certificate_of(STRANGER)
    assert (await desk.ask("GET", "/v1/nodes", certificate=stranger)).code == 403
    bindings = [
        {"identity": OPERATOR, "role": "Operator"},
        {"identity": STRANGER, "role": "Observer"},
    ]
    body = {"expected_version": 1, "bindings": bindings}
    told = await desk.ask("PUT", "/v1/roles", body, certificate=certificate_of(OPERATOR))
    assert told.code == 200, told.body
    assert (await desk.ask("GET", "/v1/nodes", certificate=stranger)).code == 200
    assert (await desk.ask("GET", "/v1/nodes", certificate=certificate_of(OBSERVER))).code == 403


async def test_an_expired_break_glass_token_is_refused_and_on_record() -> None:
    desk = Desk(quarantined())
    desk.plane.now_ms += 300_000 + 5_001
    told = await desk.ask(*RESUME, certificate=certificate_of(ACTOR), headers={"break-glass": "g1"})
    assert (told.code, told.body["message"]) == (403, "expired")
    assert "five minutes" in told.body["next"]
    assert trail(desk.plane)[-1].outcome == "BreakGlassRefused"


async def test_a_tenant_admin_sees_and_sets_what_is_theirs() -> None:
    desk, admin = Desk(), certificate_of(TENANT_ADMIN)
    desk.plane.add_tenant("b")
    assert (await desk.ask("GET", "/v1/tenants/a", certificate=admin)).code == 200
    for target in ("/v1/tenants/b", "/v1/tenants/b/quotas", "/v1/routes/b", "/v1/nodes"):
        told = await desk.ask("GET", target, certificate=admin)
        assert (told.code, told.body["error"]) == (403, "Unauthorized"), target
    quotas = {"expected_version": 0, "quotas": {"connections_max": 7}}
    assert (await desk.ask("PUT", "/v1/tenants/a/quotas", quotas, certificate=admin)).code == 200
    assert (await desk.ask("PUT", "/v1/tenants/b/quotas", quotas, certificate=admin)).code == 403


async def test_development_is_plaintext_on_loopback_and_says_so() -> None:
    desk = Desk(development=OPERATOR)
    told = await desk.ask("POST", "/v1/tenants", TENANT)
    assert told.code == 200
    assert "every caller is Operator" in told.headers["Quantum-Development"]
    state = await desk.ask("GET", "/v1/cluster/state")
    assert state.body["access"]["development"] is True
    assert state.body["access"]["identity"] == OPERATOR
    assert trail(desk.plane)[-1].identity == OPERATOR


@pytest.mark.parametrize("host", ["evil.example.com", "10.0.0.1:9080", "", "127.0.0.1.evil", "["])
async def test_in_development_a_name_that_is_not_loopbacks_is_refused(host: str) -> None:
    """A web page may let its own name point at 127.0.0.1."""
    desk = Desk(development=OPERATOR)
    told = await desk.ask("GET", "/v1/nodes", headers={"host": host})
    assert (told.code, told.body["error"]) == (421, "NotLoopback")
    for good in ("localhost:9080", "127.0.0.1", "[::1]:9080"):
        assert (await desk.ask("GET", "/v1/nodes", headers={"host": good})).code == 200


async def test_roles_that_are_too_old_stop_changes_first_and_then_local_reads() -> None:
    """Clustor §12.3: two missed refreshes, then the grace. A confirmed read is a refresh."""
    desk, operator = Desk(), certificate_of(OPERATOR)
    local = "/v1/nodes?linearizable=false"
    for age_ms, reachable, changes, reads in (
        (60_000, True, 200, 200),
        (60_001, False, 503, 200),
        (60_001, True, 200, 200),
        (120_001, False, 503, 503),
        (None, False, 503, 503),
        (None, True, 200, 503),
    ):
        desk.host.age_ms, desk.host.reachable = age_ms, reachable
        told = await desk.ask(*DRAIN, certificate=operator)
        assert told.code == changes, age_ms
        if changes == 503:
            assert told.body["error"] == "RBACUnavailable"
            assert told.headers["Retry-After"] == "1"
        assert (await desk.ask("GET", local, certificate=operator)).code == reads, age_ms


async def test_a_node_publishes_whatever_the_age_of_its_copy() -> None:
    desk = Desk()
    desk.host.age_ms, desk.host.cache = None, CacheState.EXPIRED
    report = {"cause": "Integrity", "detail": "mac failure"}
    told = await desk.ask(
        "PUT",
        "/v1/groups/1/quarantines/1",
        report,
        certificate=certificate_of(node_identity(1)),
    )
    assert told.code == 200, told.body


async def test_an_outage_of_the_control_plane_has_its_name_and_local_reads_go_on() -> None:
    desk, operator = Desk(), certificate_of(OPERATOR)
    desk.host.reachable = False
    for method, target, content, reason in (
        (*DRAIN, "NoLeader"),
        ("GET", "/v1/nodes", None, "NeededForReadIndex"),
    ):
        told = await desk.ask(method, target, content, certificate=operator)
        assert (told.code, told.body["error"]) == (503, "ControlPlaneUnavailable")
        assert told.body["facts"]["reason"] == reason
    told = await desk.ask("GET", "/v1/nodes?linearizable=false", certificate=operator)
    assert told.code == 200
    assert told.headers["Quantum-Cache-Age-Ms"] == "0"


async def test_a_call_that_needs_a_fresh_copy_says_so() -> None:
    desk = Desk()
    desk.host.cache = CacheState.CACHED
    body = {"expected_version": 0, "rules": []}
    told = await desk.ask("PUT", "/v1/tenants/a/acls", body, certificate=certificate_of(OPERATOR))
    assert (told.code, told.body["facts"]["reason"]) == (503, "CacheNotFresh")


async def test_a_signed_log_hears_who_was_refused_what() -> None:
    heard: list[tuple[str, dict[str, str]]] = []

    class Log:
        def refused(self, what: str, **facts: str) -> None:
            heard.append((what, facts))

    desk = Desk()
    desk.api = ApiServer(
        desk.host, now_ms=lambda: 1, draw_id=lambda: "r", sink=RefusalAuditor(Log())
    )
    await desk.ask(*DRAIN, certificate=certificate_of(STRANGER))
    target = "POST /v1/nodes/4/drain"
    facts = {"who": STRANGER, "why": "Unauthorized", "target": target}
    assert heard == [("AdminRequestRefused", facts)]


async def test_many_refusals_do_not_fill_the_disk(caplog: pytest.LogCaptureFixture) -> None:
    desk = Desk()
    for _ in range(REFUSALS_KEPT_MAX + 10):
        await desk.ask(*DRAIN, encrypted=True)
    lines = [each for each in caplog.records if each.name == "quantum.audit"]
    assert len(lines) == REFUSAL_LINES_MAX + 1
    desk.plane.now_ms += REFUSAL_WINDOW_MS
    await desk.ask(*DRAIN, encrypted=True)
    assert len([each for each in caplog.records if each.name == "quantum.audit"]) == len(lines) + 1
    seen = await desk.ask(
        "GET", "/v1/audit/refusals?limit=1000", certificate=certificate_of(OPERATOR)
    )
    assert (len(seen.body["items"]), seen.body["total"]) == (1000, str(REFUSALS_KEPT_MAX + 11))


async def test_a_bug_of_ours_is_an_answer_and_never_silent(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = Desk(development=OPERATOR)

    async def broken(_linearizable: bool = False, **_more: object) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr(desk.host, "state", broken)
    told = await desk.ask("GET", "/v1/nodes")
    assert (told.code, told.body["error"]) == (500, "OurFault")
    assert "ZeroDivisionError" in caplog.text
