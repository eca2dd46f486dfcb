"""Structural lag as the control plane hears of it (clustor §10.6): one alert for each partition.

The group's leader raises it, keeps it true and takes it back; a later leader speaks over an earlier
one. It is a word for people and tools: nothing is placed or refused because of it.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Final

import msgspec

from clustor.control.calls import Command
from clustor.control.draft import Draft, Refuse
from clustor.control.objects import ControlObject, key_of
from clustor.control.placement import Placement, voters_of
from clustor.control.rbac import CallerAuthority
from clustor.control.types import Count, RefusalCode
from clustor.kv import Key

_FOLLOWERS_MAX: Final = 64


class LagAlert(ControlObject, frozen=True, kw_only=True):
    """A partition whose followers are so far behind that the loss of one more would be felt."""

    PREFIX: ClassVar[str] = "lag_alert/"
    partition_id: Count
    node_id: Count  # the leader that says so
    term: Count
    followers: tuple[Count, ...]
    lag_bytes: Count  # of the worst, when it was said
    since: Count

    def key(self) -> Key:
        return key_of(LagAlert, self.partition_id)


class ReportLag(Command, frozen=True, kw_only=True):
    """Raise the alert of a structural lag, or take it back: then nobody is named."""

    partition_id: Count
    node_id: Count
    term: Count
    followers: Annotated[tuple[Count, ...], msgspec.Meta(max_length=_FOLLOWERS_MAX)]
    lag_bytes: Count = 0


def on_report_lag(draft: Draft, authority: CallerAuthority, command: ReportLag) -> dict[str, Any]:
    authority.require_node(command.node_id)
    placed = draft.need(Placement, command.partition_id)
    if command.node_id not in voters_of(placed):
        raise Refuse(RefusalCode.MEMBERSHIP_MISMATCH, "the node is no voter of this partition")
    held = draft.find(LagAlert, command.partition_id)
    if held is not None and command.term < held.term:
        raise Refuse(RefusalCode.CONFLICT, "a later leader has spoken", held_term=held.term)
    if not command.followers:
        if held is not None:
            draft.delete(LagAlert, command.partition_id)
        return {}
    draft.put(
        LagAlert(
            partition_id=command.partition_id,
            node_id=command.node_id,
            term=command.term,
            followers=tuple(sorted(set(command.followers))),
            lag_bytes=command.lag_bytes,
            since=held.since if held is not None else draft.now_ms,
        )
    )
    return {}


# The leader's side.


def plan_lag_report(held: LagAlert | None, wanted: ReportLag) -> ReportLag | None:
    """Return what a leader must say; None: what stands is true. Bytes alone are no news."""
    if held is None:
        return wanted if wanted.followers else None
    said = (held.followers, held.node_id, held.term)
    now = (tuple(sorted(set(wanted.followers))), wanted.node_id, wanted.term)
    return wanted if said != now else None
