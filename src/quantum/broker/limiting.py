"""What a partition does about what its tenant may not hold: every replica refuses the same."""

from __future__ import annotations

from typing import Final

from quantum.broker.commands import SetFullQueues, SetPolicy
from quantum.broker.delivering import check_room
from quantum.broker.full_queues import FullQueue
from quantum.broker.holdings import (
    RETAINED_BYTES,
    RETAINED_TOPICS,
    SESSION_BYTES,
)
from quantum.broker.interest import send_item
from quantum.broker.items import StoreFull
from quantum.broker.reasons import QUOTA_EXCEEDED, QUOTA_EXHAUSTED, SUCCESS
from quantum.broker.state import BrokerState
from quantum.broker.types import TRANSFER
from quantum.tenancy import HELD, Amounts, QuotaVerdict

_REASONS: Final = {
    QuotaVerdict.ADMIT: SUCCESS,
    QuotaVerdict.THROTTLE: SUCCESS,  # the leader slows its publishers down
    QuotaVerdict.REJECT: QUOTA_EXCEEDED,
    QuotaVerdict.DISCONNECT: QUOTA_EXHAUSTED,
}


def held(state: BrokerState) -> Amounts:
    """Return what the partition holds of each resource."""
    return (
        len(state.retained),
        state.retained_bytes,
        state.queued.amount,
        len(state.sessions),
        state.subscription_count,
        len(state.groups),
    )


def judge(state: BrokerState, nth: int, amount: int) -> int:
    """Return why so much more may not be held of a resource; SUCCESS if it may."""
    holdings = state.holdings
    used, quota, usage = held(state)[nth], holdings.shares[nth], holdings.usages[nth]
    if used + amount <= quota and usage.grace_since_ms is None:
        return SUCCESS
    now_ms = state.now_ms
    usage.note(used, quota, now_ms)
    verdict = usage.judge(used + amount, quota, holdings.ceilings[nth], now_ms)
    if verdict is QuotaVerdict.THROTTLE:
        usage.note(used + amount, quota, now_ms)
    return _REASONS[verdict]


def judge_retained(state: BrokerState, topic: bytes, weight: int) -> int:
    """Return why a message of this weight may not be retained; one that is not heavier may."""
    old = state.retained.get(topic)
    if old is None:
        reason = judge(state, RETAINED_TOPICS, 1)
        return reason or judge(state, RETAINED_BYTES, weight)
    return judge(state, RETAINED_BYTES, weight - old.weight) if weight > old.weight else SUCCESS


def is_over_quota(state: BrokerState) -> bool:
    """Say whether more is stored than the quota: publishers are throttled (§11.2)."""
    shares = state.holdings.shares
    return (
        state.retained_bytes > shares[RETAINED_BYTES]
        or state.queued.amount > shares[SESSION_BYTES]
        or len(state.retained) > shares[RETAINED_TOPICS]
    )


def apply_set_policy(state: BrokerState, command: SetPolicy) -> bytes:
    """Put another part of the tenant's quotas in force; what is held beyond it is in grace."""
    state.see_time(command.now_ms)
    state.hashes_shares = command.hashes_shares
    if len(command.shares) != len(HELD) or len(command.ceilings) != len(HELD):
        return b""
    holdings = state.holdings
    holdings.shares, holdings.ceilings = tuple(command.shares), tuple(command.ceilings)
    now_held = held(state)
    for usage, used, quota in zip(holdings.usages, now_held, holdings.shares, strict=True):
        usage.note(used, quota, state.now_ms)
    return b""


def apply_set_full_queues(state: BrokerState, command: SetFullQueues) -> bytes:
    """Let full queues cost what the tenant chose; who waits for one waits no more."""
    state.see_time(command.now_ms)
    if command.policy not in FullQueue._value2member_map_:
        return b""
    state.full_queues = FullQueue(command.policy)
    for client_id in sorted(state.routes.full):
        check_room(state, state.sessions[client_id])
    return b""


# The queues of all sessions together (§13): beyond their bound nothing above QoS 0 is taken that
# they would get, wherever its topic is.


def check_store(state: BrokerState) -> None:
    """Note when the queues here hold too much, or have room again; tell everyone."""
    here, holdings = state.settings.prg, state.holdings
    quota, usage = holdings.shares[SESSION_BYTES], holdings.usages[SESSION_BYTES]
    used = state.queued.amount
    usage.note(used, quota, state.now_ms)
    most = holdings.ceilings[SESSION_BYTES] if usage.grace_left_ms(state.now_ms) else quota
    is_full = used > (most - most // 8 if here in state.full_stores else most)
    if is_full == (here in state.full_stores) or not state.is_open:
        return
    for prg in range(state.prg_count):
        if prg != here:
            send_item(state, state.way(prg), StoreFull(here, is_full))
    note_store(state, here, is_full=is_full)


def note_store(state: BrokerState, prg: int, *, is_full: bool) -> None:
    """Take note of whether a partition's queues hold too much."""
    if is_full:
        state.full_stores.add(prg)
    else:
        state.full_stores.discard(prg)
    state.routes.invalidate()


def tell_store(state: BrokerState, prg: int) -> None:
    """Tell a fresh partition what the others were told."""
    here = state.settings.prg
    if here in state.full_stores:
        send_item(state, prg + TRANSFER, StoreFull(here, full=True))


def store_reason(state: BrokerState) -> int:
    """Return how a publish is refused for the sake of full queues here."""
    is_over = state.holdings.usages[SESSION_BYTES].grace_left_ms(state.now_ms) == 0
    return QUOTA_EXHAUSTED if is_over else QUOTA_EXCEEDED
