"""Break-glass tokens and the ledger of overrides (clustor §§9.9, 12.3)."""

from __future__ import annotations

import msgspec

from clustor.control import (
    AuditRecord,
    BreakGlassToken,
    KeyPurpose,
    OverrideEntry,
    OverrideScope,
    RefusalCode,
    RevokeOverride,
    find,
    scan,
    sign,
)
from tests.clustor.control.plane import (
    ACTOR,
    OPERATOR,
    PROOF_KEY,
    RELEASE_KEY,
    Plane,
    settled_plane,
    signed_override,
)
from tests.clustor.control.samples import SAMPLES

SCOPE = OverrideScope.SURVIVABILITY


def attempt(plane: Plane, override_id: str = "o1", scope: OverrideScope = SCOPE) -> RefusalCode:
    command = signed_override(override_id, scope, plane.now_ms + 600_000)
    return plane.refused(command, by=ACTOR, token="t")


def test_a_token_is_used_once() -> None:
    plane = settled_plane()
    plane.break_glass("t", SCOPE)
    command = signed_override("o1", SCOPE, plane.now_ms + 600_000)
    assert plane.done(command, by=ACTOR, token="t") == {"override_ref": "o1"}
    token = find(plane.machine.kv, BreakGlassToken, "t")
    assert token is not None
    assert (token.used_at, token.used_for) == (plane.now_ms, "RecordOverride")
    assert attempt(plane, "o2") is RefusalCode.BREAK_GLASS_REFUSED
    assert [record.break_glass for record in scan(plane.machine.kv, AuditRecord)][-2:] == ["t", "t"]


def test_only_a_successful_use_consumes_a_token() -> None:
    plane = settled_plane()
    plane.break_glass("t", SCOPE)
    bad = msgspec.structs.replace(
        signed_override("o1", SCOPE, plane.now_ms + 1), expires_at=plane.now_ms + 2
    )
    assert plane.refused(bad, by=ACTOR, token="t") is RefusalCode.BAD_SIGNATURE
    plane.done(signed_override("o1", SCOPE, plane.now_ms + 600_000), by=ACTOR, token="t")


def test_a_token_lives_five_minutes_and_five_seconds_of_skew() -> None:
    plane = settled_plane()
    plane.break_glass("t", SCOPE)
    plane.now_ms += 305_001
    assert attempt(plane) is RefusalCode.BREAK_GLASS_REFUSED
    plane.break_glass("u", SCOPE)
    plane.now_ms += 305_000
    command = signed_override("o1", SCOPE, plane.now_ms + 600_000)
    plane.done(command, by=ACTOR, token="u")


def test_a_longer_token_is_not_issued() -> None:
    plane = settled_plane()
    command = msgspec.structs.replace(SAMPLES["IssueBreakGlass"], ttl_ms=300_001)
    assert plane.refused(command) is RefusalCode.MALFORMED


def test_a_token_is_its_actors_and_of_its_scope() -> None:
    plane = settled_plane()
    plane.break_glass("t", OverrideScope.CREDIT)
    assert attempt(plane) is RefusalCode.BREAK_GLASS_REFUSED
    plane.break_glass("u", SCOPE)
    command = signed_override("o1", SCOPE, plane.now_ms + 600_000)
    assert plane.refused(command, by=OPERATOR, token="u") is RefusalCode.BREAK_GLASS_REFUSED
    assert plane.refused(command, by=ACTOR) is RefusalCode.BREAK_GLASS_REFUSED


def test_a_token_is_not_issued_twice_and_old_ones_are_swept() -> None:
    plane = settled_plane()
    plane.break_glass("t", SCOPE)
    again = msgspec.structs.replace(SAMPLES["IssueBreakGlass"], token_id="t")
    assert plane.refused(again) is RefusalCode.ALREADY_EXISTS
    plane.now_ms += 90_000_000
    plane.break_glass("u", SCOPE)
    assert [token.token_id for token in scan(plane.machine.kv, BreakGlassToken)] == ["u"]


def test_an_override_needs_the_release_keys_signature() -> None:
    plane = settled_plane()
    plane.break_glass("t", SCOPE)
    command = signed_override("o1", SCOPE, plane.now_ms + 600_000)
    content = command.content()
    for key, key_id, purpose in [
        (PROOF_KEY, "r1", KeyPurpose.CP_RELEASE),
        (RELEASE_KEY, "r2", KeyPurpose.CP_RELEASE),
        (RELEASE_KEY, "r1", KeyPurpose.CONTROL_PLANE_PROOF),
    ]:
        forged = msgspec.structs.replace(command, signature=sign(key, key_id, purpose, content))
        assert plane.refused(forged, by=ACTOR, token="t") is RefusalCode.BAD_SIGNATURE


def test_an_override_ends_by_time_or_by_revocation() -> None:
    plane = settled_plane()
    plane.override("o1", SCOPE)
    entry = find(plane.machine.kv, OverrideEntry, "o1")
    assert entry is not None
    assert entry.is_active(plane.now_ms)
    assert not entry.is_active(entry.expires_at)
    plane.done(RevokeOverride(override_id="o1"))
    entry = find(plane.machine.kv, OverrideEntry, "o1")
    assert entry is not None
    assert not entry.is_active(plane.now_ms)
