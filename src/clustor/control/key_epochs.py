"""Key epochs (clustor §12.2): they only grow, and what was zeroized is on record."""

from __future__ import annotations

from typing import Any, ClassVar, Final

from clustor.control.calls import Command
from clustor.control.draft import Draft, Refuse
from clustor.control.objects import ControlObject, key_of
from clustor.control.rbac import CallerAuthority
from clustor.control.types import Count, Digest, RefusalCode
from clustor.kv import Key

DECRYPT_ONLY_MS: Final = 172_800_000  # 48 h
DEK_PERIOD_MS: Final = 604_800_000  # a week


class KeyEpochs(ControlObject, frozen=True, kw_only=True):
    """The epochs in force. The DEK before them decrypts until `decrypt_only_until`."""

    PREFIX: ClassVar[str] = "key_epochs/"
    kek_version: Count
    dek_epoch: Count
    integrity_mac_epoch: Count
    advanced_at: Count
    decrypt_only_until: Count

    def key(self) -> Key:
        return key_of(KeyEpochs, "newest")

    def parts(self) -> tuple[int, int, int]:
        return (self.kek_version, self.dek_epoch, self.integrity_mac_epoch)


class Zeroization(ControlObject, frozen=True, kw_only=True):
    """A node's word that a DEK's contexts are gone, with `crypto.zeroization_digest`."""

    PREFIX: ClassVar[str] = "zeroization/"
    node_id: Count
    dek_epoch: Count
    digest: Digest
    reported_at: Count

    def key(self) -> Key:
        return key_of(Zeroization, self.node_id, self.dek_epoch)


class AdvanceKeyEpochs(Command, frozen=True, kw_only=True):
    """Begin new key epochs; none may go back (KeyEpochReplay), one at least must grow."""

    kek_version: Count
    dek_epoch: Count
    integrity_mac_epoch: Count


class ReportZeroization(Command, frozen=True, kw_only=True):
    """Record that a node has zeroized an old DEK."""

    node_id: Count
    dek_epoch: Count
    digest: Digest


def on_advance_key_epochs(
    draft: Draft, _authority: CallerAuthority, command: AdvanceKeyEpochs
) -> dict[str, Any]:
    held = draft.find(KeyEpochs, "newest")
    fresh = KeyEpochs(
        kek_version=command.kek_version,
        dek_epoch=command.dek_epoch,
        integrity_mac_epoch=command.integrity_mac_epoch,
        advanced_at=draft.now_ms,
        decrypt_only_until=draft.now_ms + DECRYPT_ONLY_MS,
    )
    if held is not None:
        pairs = list(zip(fresh.parts(), held.parts(), strict=True))
        if any(new < old for new, old in pairs):
            raise Refuse(RefusalCode.KEY_EPOCH_REPLAY, "an epoch would go back", held=held.parts())
        if fresh.parts() == held.parts():
            raise Refuse(RefusalCode.INVALID, "no epoch would grow")
    draft.put(fresh)
    return {"decrypt_only_until": fresh.decrypt_only_until}


def on_report_zeroization(
    draft: Draft, authority: CallerAuthority, command: ReportZeroization
) -> dict[str, Any]:
    authority.require_node(command.node_id)
    held = draft.need(KeyEpochs, "newest")
    if command.dek_epoch >= held.dek_epoch:
        raise Refuse(RefusalCode.IN_USE, "this DEK is in force", dek_epoch=held.dek_epoch)
    draft.put(
        Zeroization(
            node_id=command.node_id,
            dek_epoch=command.dek_epoch,
            digest=command.digest,
            reported_at=draft.now_ms,
        )
    )
    return {}
