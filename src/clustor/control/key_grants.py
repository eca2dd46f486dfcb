"""The data keys of a cluster, given to all its nodes at once (clustor §12.2).

    GrantDek ──► every node has it on disk ──► ActivateDek ──► zeroized everywhere ──► ForgetDek
    wrapped       ReportDekReady                a moment        ReportZeroization

A snapshot travels as it is on disk, so a key must be on every node before any node encrypts with
it. The key stands here wrapped: without the key encryption key, which never does, it is noise.
Each step is decided from what stands, so whoever leads next goes on with the same key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Final

import msgspec

from clustor.control.calls import Command
from clustor.control.draft import Draft, DraftReading, Refuse, find, scan
from clustor.control.key_epochs import DECRYPT_ONLY_MS, KeyEpochs, Zeroization
from clustor.control.nodes import NodeSpec
from clustor.control.objects import ControlObject, key_of
from clustor.control.rbac import CallerAuthority
from clustor.control.types import Count, Name, RefusalCode
from clustor.kv import Key

ACTIVATE_AFTER_MS: Final = 10_000
"""From every node's word to the moment: all have read it by then."""

WAIT_MS_MAX: Final = 60_000
"""For so long nobody is told that nodes lack a granted key."""

Hex = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{2,512}$(?!\n)")]
MaybeHex = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{0,512}$(?!\n)")]
Epoch = Annotated[int, msgspec.Meta(ge=1, le=2**32 - 1)]


class DekGrant(ControlObject, frozen=True, kw_only=True):
    """One data key, wrapped; `activates_at` is None until every node has it."""

    PREFIX: ClassVar[str] = "dek_grant/"
    epoch: Epoch
    wrapped: Hex
    kek_fingerprint: Name  # of the key that opens it
    mac_epoch: Count = 0  # of the key that seals segments from then on; 0: it stays the same
    mac_wrapped: MaybeHex = ""
    granted_at: Count
    activates_at: Count | None = None

    def key(self) -> Key:
        return key_of(DekGrant, self.epoch)


class DekReady(ControlObject, frozen=True, kw_only=True):
    """A node's word: it can decrypt with every key up to this epoch, after any crash."""

    PREFIX: ClassVar[str] = "dek_ready/"
    node_id: Count
    epoch: Epoch
    reported_at: Count

    def key(self) -> Key:
        return key_of(DekReady, self.node_id)


class GrantDek(Command, frozen=True, kw_only=True):
    """Give all nodes a new data key, and one that seals segments; nothing uses them yet."""

    epoch: Epoch
    wrapped: Hex
    kek_fingerprint: Name
    mac_epoch: Count = 0
    mac_wrapped: MaybeHex = ""


class ReportDekReady(Command, frozen=True, kw_only=True):
    """Say that a node has a granted key, durably."""

    node_id: Count
    epoch: Epoch


class ActivateDek(Command, frozen=True, kw_only=True):
    """Set the moment from which the granted key encrypts; refused while a node lacks it."""

    epoch: Epoch
    activates_at: Count


class ForgetDek(Command, frozen=True, kw_only=True):
    """Take back a key that every node has zeroized."""

    epoch: Epoch


def on_grant_dek(draft: Draft, _authority: CallerAuthority, command: GrantDek) -> dict[str, Any]:
    newest = newest_grant(draft.scan(DekGrant))
    held = draft.find(KeyEpochs, "newest")
    if newest is not None and newest.activates_at is None:
        raise Refuse(RefusalCode.IN_USE, "a granted key is not in force yet", epoch=newest.epoch)
    above = max(newest.epoch if newest else 0, held.dek_epoch if held else 0)
    if command.epoch <= above:
        raise Refuse(RefusalCode.KEY_EPOCH_REPLAY, "an epoch would go back", held=above)
    draft.put(
        DekGrant(
            epoch=command.epoch,
            wrapped=command.wrapped,
            kek_fingerprint=command.kek_fingerprint,
            mac_epoch=command.mac_epoch,
            mac_wrapped=command.mac_wrapped,
            granted_at=draft.now_ms,
        )
    )
    return {"epoch": command.epoch}


def on_report_dek_ready(
    draft: Draft, authority: CallerAuthority, command: ReportDekReady
) -> dict[str, Any]:
    authority.require_node(command.node_id)
    draft.need(DekGrant, command.epoch)
    held = draft.find(DekReady, command.node_id)
    if held is None or held.epoch < command.epoch:
        draft.put(DekReady(node_id=command.node_id, epoch=command.epoch, reported_at=draft.now_ms))
    return {}


def on_activate_dek(
    draft: Draft, _authority: CallerAuthority, command: ActivateDek
) -> dict[str, Any]:
    grant = draft.need(DekGrant, command.epoch)
    if grant.activates_at is not None:
        return {"activates_at": grant.activates_at}
    lacking = lacking_nodes(draft.scan(NodeSpec), draft.scan(DekReady), command.epoch)
    if lacking:
        raise Refuse(RefusalCode.NOT_READY, "nodes lack the key", nodes=lacking[:32])
    draft.put(msgspec.structs.replace(grant, activates_at=command.activates_at))
    held = draft.find(KeyEpochs, "newest")
    draft.put(
        KeyEpochs(
            kek_version=held.kek_version if held is not None else 1,
            dek_epoch=command.epoch,
            integrity_mac_epoch=max(
                grant.mac_epoch, held.integrity_mac_epoch if held is not None else 1
            ),
            advanced_at=draft.now_ms,
            decrypt_only_until=command.activates_at + DECRYPT_ONLY_MS,
        )
    )
    return {"activates_at": command.activates_at}


def on_forget_dek(draft: Draft, _authority: CallerAuthority, command: ForgetDek) -> dict[str, Any]:
    draft.need(DekGrant, command.epoch)
    gone = {each.node_id for each in draft.scan(Zeroization) if each.dek_epoch == command.epoch}
    left = [each.node_id for each in draft.scan(NodeSpec) if each.node_id not in gone]
    newest = newest_grant(draft.scan(DekGrant))
    if left or newest is None or newest.epoch == command.epoch:
        raise Refuse(RefusalCode.IN_USE, "nodes still have the key", nodes=left[:32])
    draft.delete(DekGrant, command.epoch)
    return {}


def newest_grant(grants: Iterable[DekGrant]) -> DekGrant | None:
    return max(grants, key=lambda each: each.epoch, default=None)


def lacking_nodes(nodes: Iterable[NodeSpec], ready: Iterable[DekReady], epoch: int) -> list[int]:
    """Return the nodes that have not said that they have a key."""
    has = {each.node_id for each in ready if each.epoch >= epoch}
    return [each.node_id for each in nodes if each.node_id not in has]


# What whoever leads the control plane must call.


@dataclass(frozen=True, slots=True)
class DekFacts:
    """What the leader knows of its own ring: the key that encrypts, and since when."""

    epoch: int
    activated_at_ms: int
    period_ms: int


def plan_deks(
    store: DraftReading, facts: DekFacts, now_ms: int, new_key: Callable[[int], GrantDek]
) -> Command | None:
    """Return the next call that the cluster's data keys need; None: nothing is due.

    `new_key` draws a key for an epoch. Nothing is drawn while a granted one is not in force.
    """
    newest = newest_grant(scan(store, DekGrant))
    if newest is not None and newest.activates_at is None:
        if lacking_nodes(scan(store, NodeSpec), scan(store, DekReady), newest.epoch):
            return None
        return ActivateDek(epoch=newest.epoch, activates_at=now_ms + ACTIVATE_AFTER_MS)
    forgotten = _forgettable(store, newest)
    if forgotten is not None:
        return forgotten
    since_ms = facts.activated_at_ms
    if newest is not None and newest.activates_at is not None:
        since_ms = max(since_ms, newest.activates_at)
    if now_ms < since_ms + facts.period_ms:
        return None
    above = max(facts.epoch, newest.epoch if newest is not None else 0)
    held = find(store, KeyEpochs, "newest")
    return new_key(max(above, held.dek_epoch if held is not None else 0) + 1)


def _forgettable(store: DraftReading, newest: DekGrant | None) -> ForgetDek | None:
    nodes = {each.node_id for each in scan(store, NodeSpec)}
    for grant in scan(store, DekGrant):
        gone = {z.node_id for z in scan(store, Zeroization) if z.dek_epoch == grant.epoch}
        if grant != newest and nodes <= gone:
            return ForgetDek(epoch=grant.epoch)
    return None


def waits_for(store: DraftReading, now_ms: int) -> tuple[int, list[int]] | None:
    """Name a granted key that has waited too long, and the nodes that lack it: they are down."""
    newest = newest_grant(scan(store, DekGrant))
    if newest is None or newest.activates_at is not None:
        return None
    lacking = lacking_nodes(scan(store, NodeSpec), scan(store, DekReady), newest.epoch)
    is_late = now_ms - newest.granted_at >= WAIT_MS_MAX
    return (newest.epoch, lacking) if lacking and is_late else None


def grant_to_learn(store: DraftReading, known_epoch: int) -> DekGrant | None:
    """Return the granted key that a node must put on disk next: the oldest that it lacks.

    `known_epoch` is the newest in its ring. Older ones come first, each with its own moment, so
    that a node that was away reads what was sealed meanwhile.
    """
    missing = (each for each in scan(store, DekGrant) if each.epoch > known_epoch)
    return min(missing, key=lambda each: each.epoch, default=None)
