"""ControlPlaneRaft's machine: committed bytes in, answers out; all state is one watchable store.

A call is decided from the state before it and its own stamp, then its objects, its audit record
and its answer stand at one revision, or (refused) the audit record alone. There is no state
beside the key-value store: what is kept in memory follows from it and is built anew by `restore`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

import msgspec

from clustor.control.admission import PolicyAdmission
from clustor.control.audit import TOUCHED_MAX, AuditRecord, AuditRing, AuditTrail
from clustor.control.calls import Answer, Call, Command, Done, Refused, decode_call, is_call
from clustor.control.commands import KIND_OF, KINDS, CommandKind, decode_command, scope_needed
from clustor.control.confinement import refuse_reserved
from clustor.control.draft import Draft, Refuse, find, prefix_of, scan, scan_records
from clustor.control.genesis import InitializeCluster
from clustor.control.indexes import Indexes
from clustor.control.nodes import ClusterConfig, NodeIdentity, identity_digest
from clustor.control.objects import canonical, decode_object
from clustor.control.overrides import check_token, consume_token
from clustor.control.placement import Placement
from clustor.control.rbac import CallerAuthority, RbacManifest
from clustor.control.tenants import TenantSpec
from clustor.control.types import STAMP_MAX, AccessRole, RefusalCode
from clustor.kv import Compact, Key, KvLimits, KvMachine, StoreId, encode_command

_PLACEMENTS: Final = prefix_of(Placement)
_TENANTS: Final = prefix_of(TenantSpec)
_MANIFEST: Final = prefix_of(RbacManifest)
_POLICIES: Final = frozenset(kind.name for kind in KINDS if kind.is_policy)
_MALFORMED: Final = canonical(Refused(RefusalCode.MALFORMED, "not a call of this version", {}))


@dataclass(slots=True)
class _Case:
    """One call while it is decided; without a command it is none of this version."""

    call: Call
    command: Command | None
    kind: CommandKind | None
    command_sha256: bytes
    draft: Draft
    authority: CallerAuthority


class ControlMachine:
    """One replica's copy of the control plane. `kv` is the store that everybody watches."""

    def __init__(self, store_id: StoreId, limits: KvLimits | None = None) -> None:
        self._become(KvMachine(store_id, limits))

    def _become(self, store: KvMachine) -> None:
        indexes, admission = Indexes(), PolicyAdmission()
        for placement in scan(store, Placement):
            indexes.place(placement, 1)
        indexes.tenants = sum(1 for _ in scan_records(store, _TENANTS))

        def observe(record: AuditRecord) -> None:
            if _is_policy_change(record):
                admission.note(record.sequence, record.at)

        trail = AuditTrail(store, observe)
        self.kv = store
        self._indexes, self._admission, self._trail = indexes, admission, trail
        self._authorities = _authorities(find(store, RbacManifest, "manifest"))

    # The machine of a replica.

    def apply_batch(self, index: int, commands: Sequence[bytes]) -> list[bytes]:
        """Apply the commands of one committed entry, in order; one answer for each."""
        self.kv.advance(index)
        return [self._apply(command) for command in commands]

    def snapshot(self) -> Iterator[bytes]:
        """Give the state of this moment; what is applied later does not show in it."""
        return self.kv.snapshot()

    def restore(self, chunks: Iterable[bytes]) -> None:
        """Become what a snapshot says, or raise and be unchanged."""
        store = KvMachine(self.kv.store_id, self.kv.limits)
        store.restore(chunks)
        self._become(store)

    def mark(self, base_index: int) -> None:
        """Remember this moment: a delta can begin at it."""
        self.kv.mark(base_index)

    def delta(self, base_index: int) -> Iterator[bytes] | None:
        """Give what changed since a mark; None where nobody knows any more."""
        return self.kv.delta(base_index)

    def restore_delta(self, chunks: Iterable[bytes]) -> None:
        """Go on to what a delta ends with, or raise and be unchanged."""
        self.kv.restore_delta(chunks)
        self._become(self.kv)

    def digest(self) -> bytes:
        """Return bytes that are equal for equal state."""
        return self.kv.digest()

    @property
    def applied_index(self) -> int:
        return self.kv.applied_index

    def draft(self, now_ms: int) -> Draft:
        """Return a draft of this moment, for rehearsals: nothing of it is ever kept."""
        # A plain command may have moved the store's clock to where no call's stamp can be.
        return Draft(self.kv, self._indexes, min(max(now_ms, self.kv.now_ms), STAMP_MAX))

    # Calls.

    def _apply(self, encoded: bytes) -> bytes:
        if not is_call(encoded):
            return refuse_reserved(encoded) or self.kv.execute(encoded)
        try:
            call = decode_call(encoded)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return _MALFORMED
        return self._on_call(call)

    def _on_call(self, call: Call) -> bytes:
        case = self._case_of(call)
        known = self._trail.known(call.caller.identity, call.request_id)
        if known is not None and known.command_sha256 == case.command_sha256:
            return known.answer
        try:
            if known is not None:
                raise Refuse(RefusalCode.REQUEST_ID_REUSED, "another call has this request id")
            answer: Answer = self._decide(case)
        except Refuse as refusal:
            case.draft.compact_through = None
            if not refusal.keep_changes:
                case.draft.changes.clear()
            answer = Refused(refusal.code, refusal.reason, refusal.facts)
        record = self._record(case, answer)
        self._write(case.draft, record)
        return record.answer

    def _case_of(self, call: Call) -> _Case:
        command = _command_of(call)
        essence = bytes(call.command) if command is None else canonical(command.essence())
        draft = self.draft(call.now_ms)
        return _Case(
            call=call,
            command=command,
            kind=KIND_OF[type(command)] if command is not None else None,
            command_sha256=sha256(essence).digest(),
            draft=draft,
            authority=self._authority(draft, call.caller.identity),
        )

    def _decide(self, case: _Case) -> Done:
        """Carry out a call in its draft, or refuse it."""
        draft, kind, command = case.draft, case.kind, case.command
        if kind is None or command is None:
            raise Refuse(RefusalCode.MALFORMED, "not a command of this version")
        if not isinstance(command, InitializeCluster):
            if draft.find(ClusterConfig, "config") is None:
                raise Refuse(RefusalCode.NOT_INITIALIZED, "initialize the cluster first")
            self._authorize(case, kind, command)
        if kind.is_policy:
            self._admission.check(draft.now_ms, self._trail.oldest_sequence(kind.ring))
        result = kind.handler(draft, case.authority, command)
        token = case.call.caller.break_glass
        if AccessRole.BREAK_GLASS in kind.roles and token is not None:
            consume_token(draft, token, kind.name, case.call.request_id)
        self._require_values_fit(draft)
        return Done(self.kv.revision + 1, result)

    def _require_values_fit(self, draft: Draft) -> None:
        limit = self.kv.limits.value_bytes_max
        for key, value in draft.changes.items():
            if value is not None and len(value) > limit:
                raise Refuse(RefusalCode.INVALID, "too large", key=key.decode(), limit=limit)

    # Who calls, and whether it may.

    def _authority(self, draft: Draft, identity: str) -> CallerAuthority:
        """Find the caller's roles in the state as it stands."""
        bound = self._authorities.get(identity) or CallerAuthority(identity, frozenset())
        node = draft.find(NodeIdentity, identity_digest(identity))
        if node is None:
            return bound
        return CallerAuthority(
            identity, bound.roles | {AccessRole.NODE}, bound.tenants, node.node_id
        )

    def _authorize(self, case: _Case, kind: CommandKind, command: Command) -> None:
        if kind.is_open or case.authority.roles & kind.roles:
            return
        scope = scope_needed(kind, command)
        if AccessRole.BREAK_GLASS in kind.roles and scope is not None:
            token = case.call.caller.break_glass
            if token is None:
                raise Refuse(RefusalCode.BREAK_GLASS_REFUSED, "present a token", scope=scope)
            check_token(case.draft, token, case.authority.identity, scope)
            return
        raise Refuse(
            RefusalCode.UNAUTHORIZED, "the caller has none of these roles", roles=sorted(kind.roles)
        )

    # What stands afterwards.

    def _record(self, case: _Case, answer: Answer) -> AuditRecord:
        ring = case.kind.ring if case.kind is not None else AuditRing.CALLS
        return AuditRecord(
            ring=ring,
            sequence=self._trail.next_sequence(ring),
            at=case.draft.now_ms,
            identity=case.authority.identity,
            roles=tuple(sorted(case.authority.roles)),
            break_glass=case.call.caller.break_glass,
            kind=case.kind.name if case.kind is not None else "Malformed",
            request_id=case.call.request_id,
            command_sha256=case.command_sha256,
            outcome="Done" if isinstance(answer, Done) else answer.code.value,
            touched=tuple(key.decode() for key in list(case.draft.changes)[:TOUCHED_MAX]),
            answer=canonical(answer),
            previous=self._trail.previous(ring),
        )

    def _write(self, draft: Draft, record: AuditRecord) -> None:
        if _is_policy_change(record):
            self._admission.note(record.sequence, record.at)
        changes = draft.changes
        for key, value in changes.items():
            self._index(key, value)
        self._trail.append(record, changes)
        self.kv.change(changes, draft.now_ms)
        if any(key.startswith(_MANIFEST) for key in changes):
            self._authorities = _authorities(find(self.kv, RbacManifest, "manifest"))
        if draft.compact_through is not None:
            through = min(draft.compact_through, self.kv.revision)
            self.kv.execute(encode_command(Compact(through)))

    def _index(self, key: Key, value: bytes | None) -> None:
        """Let what is counted follow a change that is about to be made."""
        if key.startswith(_PLACEMENTS):
            before = self.kv.get(key)
            if before is not None:
                self._indexes.place(decode_object(Placement, before.value), -1)
            if value is not None:
                self._indexes.place(decode_object(Placement, value), 1)
        elif key.startswith(_TENANTS):
            self._indexes.tenants += (value is not None) - (self.kv.get(key) is not None)


def _is_policy_change(record: AuditRecord) -> bool:
    return record.kind in _POLICIES and record.outcome == "Done"


def _command_of(call: Call) -> Command | None:
    try:
        return decode_command(call.command)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _authorities(manifest: RbacManifest | None) -> dict[str, CallerAuthority]:
    """Gather the bindings by identity."""
    found: dict[str, CallerAuthority] = {}
    for binding in manifest.bindings if manifest is not None else ():
        held = found.get(binding.identity) or CallerAuthority(binding.identity, frozenset())
        tenants = {binding.tenant_id} if binding.tenant_id is not None else frozenset()
        found[binding.identity] = CallerAuthority(
            binding.identity, held.roles | {binding.role}, held.tenants | tenants
        )
    return found
