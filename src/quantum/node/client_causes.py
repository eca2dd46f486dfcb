"""What stands in a client's way, in sentences and in order: the first cause is the one to look at.

Facts in, words out: pure. Nothing is guessed: where nothing is in the way, it says so.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from quantum.tenants.recent import Remark

_FORBIDDEN_SHOWN_MAX: Final = 5
_LARGER_QUEUES: Final = "queues of new tenants are as large as `queue_messages_max` says"
_RECENT_MS: Final = 600_000
"""What happened longer ago than this explains nothing about now."""


class ClientClause(StrEnum):
    """What stands in a client's way."""

    NO_LEADER = "NoLeader"
    LEADER_UNREACHABLE = "LeaderUnreachable"
    LEADER_STARTING = "LeaderStarting"
    NOT_CONNECTED = "NotConnected"
    UNKNOWN = "UnknownClient"
    RECEIVE_WINDOW_FULL = "ReceiveWindowFull"
    NOT_READING = "ClientNotReading"
    QUEUE_FULL = "QueueFull"
    RATE = "RateLimited"
    BACKLOG = "LogBacklog"
    SLOW_SUBSCRIBERS = "SlowSubscribers"
    TURN_SHARE = "TurnShare"
    CREDITS = "NoCredits"
    FORWARD = "ForwardWaits"
    CLOSED = "PermanentDurability"
    PARTITION_ILL = "PartitionIll"
    SHUT = "TenantShut"
    ACL = "NotAuthorized"
    CONGESTED = "TopicCongested"
    NO_SUBSCRIPTIONS = "NoSubscriptions"
    RECENTLY = "Recently"
    NONE = "None"


@dataclass(frozen=True, slots=True)
class Cause:
    """One thing in the way, and what helps."""

    clause: ClientClause
    sentence: str
    remedy: str = ""
    is_wrong: bool = True


@dataclass(frozen=True, slots=True)
class Ill:
    """What keeps one partition from its work: the group's own word."""

    partition: int
    sentence: str
    remedy: str


@dataclass(slots=True)
class ClientFacts:
    """One client as one node sees it. What a node that does not serve it cannot know is None."""

    client_id: str
    tenant: str
    partition: int
    group: int
    leader_node: int | None
    is_served_here: bool
    is_led_here: bool
    is_leader_reachable: bool
    group_sentence: str = ""
    closed: dict[str, str] = field(default_factory=dict)
    """What its partition may not do now, and why: the control plane's copy, or its group."""
    ills: list[Ill] = field(default_factory=list)
    """What is wrong with its tenant's partitions as they are here, its own first."""
    fenced: str = ""
    """What it asked for that is closed; it is left unread."""
    shut: str = ""
    """Why its tenant is not served."""
    has_session: bool = False
    is_connected: bool = False
    subscriptions: int = 0
    # Towards the client.
    queued: int = 0
    queue_max: int = 0
    is_queue_full: bool = False
    under_way: int = 0
    window: int = 0
    ceiling: int = 0
    waiting: int = 0
    is_window_full: bool = False
    is_writable: bool = True
    # From the client.
    unanswered: int = 0
    is_held: bool = False
    rates: list[tuple[str, str, int]] = field(default_factory=list)
    backlogs: list[int] = field(default_factory=list)
    is_held_by_queues: bool = False
    held_by_full: str = ""
    """The lasting session whose full queue it waits for (C24)."""
    slowed_by: str = ""
    """The subscriber that it is too fast for."""
    is_held_by_share: bool = False
    stalled: int = 0
    credit_sentence: str = ""
    forwards: list[tuple[int, int, int, str]] = field(default_factory=list)
    """Partition, publishes that wait for it, for how many milliseconds, and what is with it."""
    forbidden: list[str] = field(default_factory=list)
    topic: str | None = None
    topic_ground: str | None = None
    topic_congested: bool = False
    remarks: list[Remark] = field(default_factory=list)
    now_ms: int = 0


def explain_client(facts: ClientFacts) -> list[Cause]:
    """Say what stands in a client's way, the first thing first."""
    if not facts.is_served_here:
        causes = _elsewhere(facts)
    elif not facts.is_connected:
        causes = _away(facts)
    else:
        causes = [*_slow(facts), *_not_receiving(facts), *_refused(facts)]
    causes = [*_ills(facts), *_closed(facts), *causes, *_recently(facts)]
    if not any(cause.is_wrong for cause in causes) and facts.is_served_here:
        words = "nothing stands in its way here: what is published to it leaves at once"
        if not facts.is_connected:
            words = "it is not connected, and nothing else is wrong"
        causes.insert(0, Cause(ClientClause.NONE, words, is_wrong=False))
    return causes


def _ills(facts: ClientFacts) -> list[Cause]:
    """Say once what is wrong with partitions: one disk under many of them is one cause."""
    partitions: dict[tuple[str, str], list[int]] = {}
    for ill in facts.ills:
        partitions.setdefault((ill.sentence, ill.remedy), []).append(ill.partition)
    causes = []
    for (sentence, remedy), numbers in partitions.items():
        its = "its own" if facts.partition in numbers else "other"
        shown = ", ".join(map(str, sorted(numbers)))
        words = f"partition {shown} of its tenant ({its}) does not work: {sentence}"
        causes.append(Cause(ClientClause.PARTITION_ILL, words, remedy))
    return causes


def _closed(facts: ClientFacts) -> list[Cause]:
    """Say what the control plane's word, or its silence, keeps from it."""
    causes = []
    if facts.shut:
        causes.append(Cause(ClientClause.SHUT, facts.shut, "see `quantum admin tenants show`"))
    remedy = "bring the control plane back; see `quantum why GROUP`"
    if facts.fenced:
        words = f"it is left unread, and must go if this lasts: {facts.fenced}"
        causes.append(Cause(ClientClause.CLOSED, words, remedy))
    elif facts.closed:
        words = f"{', '.join(facts.closed)} must wait: {next(iter(facts.closed.values()))}"
        causes.append(Cause(ClientClause.CLOSED, words, remedy))
    return causes


def _elsewhere(facts: ClientFacts) -> list[Cause]:
    where = f"partition {facts.partition} of tenant {facts.tenant} (group {facts.group})"
    if facts.leader_node is None:
        words = f"its session lives in {where}, which has no leader: {facts.group_sentence}"
        return [Cause(ClientClause.NO_LEADER, words, "bring back a quorum of the nodes")]
    if facts.is_led_here:
        words = f"{where} has just begun its term here and does not serve yet"
        return [Cause(ClientClause.LEADER_STARTING, words, "wait a moment")]
    if not facts.is_leader_reachable:
        words = f"{where} is led by node {facts.leader_node}, which this node cannot reach"
        return [Cause(ClientClause.LEADER_UNREACHABLE, words, "look at the network between them")]
    words = f"{where} is served by node {facts.leader_node}: it knows more"
    return [Cause(ClientClause.NONE, words, is_wrong=False)]


def _away(facts: ClientFacts) -> list[Cause]:
    if not facts.has_session:
        words = "it is not connected and has no session: whatever is published meanwhile is lost"
        remedy = "connect it, with a session expiry if it should get what it misses"
        return [Cause(ClientClause.UNKNOWN, words, remedy)]
    words = f"it is not connected; {facts.queued} messages wait for it"
    causes = [Cause(ClientClause.NOT_CONNECTED, words, "connect it")]
    return causes + _queue_full(facts)


def _slow(facts: ClientFacts) -> list[Cause]:
    """Say what keeps its publishes waiting."""
    causes = []
    for scope, rate, rest_ms in facts.rates:
        whose = "its own" if scope == "connection" else "its tenant's"
        words = f"it is left unread for {rest_ms} ms more: {whose} rate of {rate} is exceeded"
        setting = f"connection_rates.{rate}" if scope == "connection" else f"rates.{rate}"
        causes.append(Cause(ClientClause.RATE, words, f"send less, or raise `{setting}`"))
    for partition in facts.backlogs:
        words = f"it is left unread until partition {partition} has logged what waits there"
        causes.append(Cause(ClientClause.BACKLOG, words, "look at the group's disk and quorum"))
    if facts.held_by_full:
        words = f"it is left unread: the queue of session {facts.held_by_full} is full"
        remedy = f"connect {facts.held_by_full}, or end its session; {_LARGER_QUEUES}"
        causes.append(Cause(ClientClause.QUEUE_FULL, words, remedy))
    if facts.slowed_by:
        words = f"it is left unread until {facts.slowed_by} has read what waits for it"
        remedy = f"look why {facts.slowed_by} is slower than its publishers"
        causes.append(Cause(ClientClause.SLOW_SUBSCRIBERS, words, remedy))
    if facts.is_held_by_queues:
        words = "it is left unread until its tenant's slow subscribers have caught up"
        causes.append(Cause(ClientClause.SLOW_SUBSCRIBERS, words, "look for slow subscribers"))
    if facts.is_held_by_share:
        words = "it is left unread for the rest of this turn: its tenant had its share"
        causes.append(Cause(ClientClause.TURN_SHARE, words, is_wrong=False))
    if facts.stalled:
        words = f"{facts.stalled} commands wait for its partition's log: {facts.credit_sentence}"
        causes.append(Cause(ClientClause.CREDITS, words, "see `quantum why GROUP`"))
    for partition, count, waited_ms, state in facts.forwards:
        words = (
            f"{count} publishes of its partition's clients have waited {waited_ms} ms "
            f"for partition {partition}, which owns their topics{state}"
        )
        causes.append(Cause(ClientClause.FORWARD, words, f"look at partition {partition}"))
    return causes


def _not_receiving(facts: ClientFacts) -> list[Cause]:
    """Say what keeps messages from it."""
    causes = _queue_full(facts)
    if not facts.is_writable:
        words = f"it does not read its connection; {facts.waiting} messages wait"
        causes.append(Cause(ClientClause.NOT_READING, words, "look at the client or its network"))
    if facts.is_window_full:
        words = (
            f"its receive window is full: {facts.under_way} messages are unacknowledged and "
            f"{facts.window} may be (at most {facts.ceiling}); {facts.waiting + facts.queued} wait"
        )
        remedy = "let it acknowledge what it has, or connect with a larger Receive Maximum"
        causes.append(Cause(ClientClause.RECEIVE_WINDOW_FULL, words, remedy))
    if not facts.subscriptions:
        words = "it subscribes to nothing"
        causes.append(Cause(ClientClause.NO_SUBSCRIPTIONS, words, is_wrong=False))
    return causes


def _queue_full(facts: ClientFacts) -> list[Cause]:
    if not facts.is_queue_full:
        return []
    words = (
        f"its queue is full ({facts.queued} messages, {facts.queue_max} may be): "
        "publishes to what it subscribes to wait, and are refused with 0x97 at last"
    )
    return [Cause(ClientClause.QUEUE_FULL, words, f"let it read; {_LARGER_QUEUES}")]


def _refused(facts: ClientFacts) -> list[Cause]:
    causes = []
    if facts.topic_ground is not None:
        words = f"it may not publish to {facts.topic}: {facts.topic_ground}"
        causes.append(Cause(ClientClause.ACL, words, "change the tenant's access rules"))
    if facts.topic_congested:
        words = f"publishes to {facts.topic} are refused with 0x97: a subscriber's queue is full"
        causes.append(Cause(ClientClause.CONGESTED, words, "look for the subscriber that is full"))
    if facts.forbidden:
        shown = ", ".join(facts.forbidden[:_FORBIDDEN_SHOWN_MAX])
        words = f"the access rules forbid subscriptions that it has: {shown}"
        causes.append(Cause(ClientClause.ACL, words, "change the tenant's access rules"))
    return causes


def _recently(facts: ClientFacts) -> list[Cause]:
    remarks = [each for each in facts.remarks if facts.now_ms - each.at_ms <= _RECENT_MS]
    refusals = [each for each in remarks if not each.what.startswith("its connection")]
    causes = []
    for remark in refusals[-3:]:
        clause = ClientClause.ACL if "REFUSED" in remark.what else ClientClause.RECENTLY
        causes.append(Cause(clause, f"{_ago(facts, remark)} it was refused: {remark.what}"))
    ends = [each for each in remarks if each.what.startswith("its connection")]
    for remark in ends[-1:]:
        words = f"{_ago(facts, remark)} {remark.what}"
        causes.append(Cause(ClientClause.RECENTLY, words, is_wrong=not facts.is_connected))
    return causes


def _ago(facts: ClientFacts, remark: Remark) -> str:
    return f"{max(0, facts.now_ms - remark.at_ms) // 1000} s ago"


# Reading the facts.
