"""Break-glass tokens, and the ledger of overrides that they allow (clustor §§9.9, 12.3)."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Final

import msgspec

from clustor.control.calls import Command
from clustor.control.draft import Draft, Refuse
from clustor.control.objects import ControlObject, key_of
from clustor.control.rbac import CallerAuthority
from clustor.control.signing import Signature, require_signature
from clustor.control.types import (
    BREAK_GLASS_TTL_MS_MAX,
    CLOCK_SKEW_MS,
    Count,
    Identity,
    KeyPurpose,
    Name,
    OverrideScope,
    RefusalCode,
    Text,
)
from clustor.kv import Key

_TOKENS_KEPT_MS: Final = 86_400_000  # after their end; the audit trail keeps what they did


class BreakGlassToken(ControlObject, frozen=True, kw_only=True):
    """A registered SVID `urn:clustor:breakglass:<scope>`: for one actor, one scope, one use."""

    PREFIX: ClassVar[str] = "break_glass/"
    token_id: Name
    scope: OverrideScope
    actor_id: Identity
    ticket_url: Text
    issued_at: Count
    expires_at: Count
    issued_by: Identity
    used_at: Count | None = None
    used_for: Name | None = None  # the kind of the call
    used_request_id: Name | None = None

    def key(self) -> Key:
        return key_of(BreakGlassToken, self.token_id)


class OverrideEntry(ControlObject, frozen=True, kw_only=True):
    """A signed exception to a guardrail, for a while."""

    PREFIX: ClassVar[str] = "override/"
    override_id: Name
    scope: OverrideScope
    partitions: tuple[Count, ...]  # none: all
    actor_id: Identity
    ticket_url: Text
    justification: Text
    issued_at: Count
    expires_at: Count
    signature: Signature
    revoked_at: Count | None = None

    def key(self) -> Key:
        return key_of(OverrideEntry, self.override_id)

    def is_active(self, now_ms: int) -> bool:
        return self.revoked_at is None and self.issued_at <= now_ms < self.expires_at


class IssueBreakGlass(Command, frozen=True, kw_only=True):
    """Register a break-glass token: one scope, at most five minutes, one use, no renewal."""

    token_id: Name
    scope: OverrideScope
    actor_id: Identity
    ticket_url: Annotated[str, msgspec.Meta(min_length=1, max_length=1024)]
    ttl_ms: Annotated[int, msgspec.Meta(ge=1, le=BREAK_GLASS_TTL_MS_MAX)]


class OverrideContent(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What the signature of an override covers."""

    override_id: Name
    scope: OverrideScope
    partitions: tuple[Count, ...]
    ticket_url: Text
    justification: Text
    expires_at: Count


class RecordOverride(Command, frozen=True, kw_only=True):
    """Enter an override into the ledger; needs a break-glass token of the same scope."""

    override_id: Name
    scope: OverrideScope
    partitions: Annotated[tuple[Count, ...], msgspec.Meta(max_length=4096)] = ()
    ticket_url: Annotated[str, msgspec.Meta(min_length=1, max_length=1024)]
    justification: Annotated[str, msgspec.Meta(min_length=1, max_length=1024)]
    expires_at: Count
    signature: Signature

    def content(self) -> OverrideContent:
        return OverrideContent(
            override_id=self.override_id,
            scope=self.scope,
            partitions=self.partitions,
            ticket_url=self.ticket_url,
            justification=self.justification,
            expires_at=self.expires_at,
        )


class RevokeOverride(Command, frozen=True, kw_only=True):
    """End an override before its time."""

    override_id: Name


def on_issue_break_glass(
    draft: Draft, authority: CallerAuthority, command: IssueBreakGlass
) -> dict[str, Any]:
    draft.absent(BreakGlassToken, command.token_id)
    for token in draft.scan(BreakGlassToken):
        if draft.now_ms > token.expires_at + _TOKENS_KEPT_MS:
            draft.delete(BreakGlassToken, token.token_id)
    expires_at = draft.now_ms + command.ttl_ms
    draft.put(
        BreakGlassToken(
            token_id=command.token_id,
            scope=command.scope,
            actor_id=command.actor_id,
            ticket_url=command.ticket_url,
            issued_at=draft.now_ms,
            expires_at=expires_at,
            issued_by=authority.identity,
        )
    )
    return {"expires_at": expires_at}


def check_token(draft: Draft, token_id: str, identity: str, scope: OverrideScope) -> None:
    """Refuse a token that does not cover this call of this actor now."""
    token = draft.find(BreakGlassToken, token_id)
    if token is None or token.actor_id != identity:
        raise Refuse(RefusalCode.BREAK_GLASS_REFUSED, "no such token for this actor")
    if token.used_at is not None:
        raise Refuse(RefusalCode.BREAK_GLASS_REFUSED, "the token was used", used_at=token.used_at)
    if draft.now_ms > token.expires_at + CLOCK_SKEW_MS:
        raise Refuse(RefusalCode.BREAK_GLASS_REFUSED, "expired", expires_at=token.expires_at)
    if token.scope is not scope:
        raise Refuse(
            RefusalCode.BREAK_GLASS_REFUSED,
            "the scope does not cover this call",
            scope=token.scope,
            needed=scope,
        )


def consume_token(draft: Draft, token_id: str, kind: str, request_id: str) -> None:
    """Note the first successful use of a token: there is no second one."""
    token = draft.need(BreakGlassToken, token_id)
    draft.put(
        msgspec.structs.replace(
            token, used_at=draft.now_ms, used_for=kind, used_request_id=request_id
        )
    )


def on_record_override(
    draft: Draft, authority: CallerAuthority, command: RecordOverride
) -> dict[str, Any]:
    draft.absent(OverrideEntry, command.override_id)
    if command.expires_at <= draft.now_ms:
        raise Refuse(RefusalCode.INVALID, "it would have ended already")
    require_signature(draft, KeyPurpose.CP_RELEASE, command.content(), command.signature)
    draft.put(
        OverrideEntry(
            override_id=command.override_id,
            scope=command.scope,
            partitions=command.partitions,
            actor_id=authority.identity,
            ticket_url=command.ticket_url,
            justification=command.justification,
            issued_at=draft.now_ms,
            expires_at=command.expires_at,
            signature=command.signature,
        )
    )
    return {"override_ref": command.override_id}


def on_revoke_override(
    draft: Draft, _authority: CallerAuthority, command: RevokeOverride
) -> dict[str, Any]:
    held = draft.need(OverrideEntry, command.override_id)
    draft.put(msgspec.structs.replace(held, revoked_at=draft.now_ms))
    return {"revoked_at": draft.now_ms}


def require_override(
    draft: Draft, override_ref: str | None, scope: OverrideScope, partition_id: int | None = None
) -> None:
    """Refuse unless an active override of this scope covers the partition."""
    if override_ref is None:
        raise Refuse(RefusalCode.CAPACITY_EXCEEDED, "cite an override", scope=scope)
    held = draft.find(OverrideEntry, override_ref)
    covers = held is not None and (not held.partitions or partition_id in held.partitions)
    if held is None or held.scope is not scope or not covers or not held.is_active(draft.now_ms):
        raise Refuse(
            RefusalCode.OVERRIDE_REFUSED,
            "no active override of this scope covers the call",
            override_ref=override_ref,
            scope=scope,
        )
