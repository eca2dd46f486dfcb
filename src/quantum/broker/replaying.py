"""What is retained, sent to new subscriptions: a page at a time, however much there is.

The first page belongs to the Subscribe, and shows what is retained at its index. What is left is
a `Replay` of the session: `Elapse` sends the next page of what is here, when the session's queue
has room, and a `WantRetained` asks another partition for its next one. A later page shows what
is retained when it is sent, never something older than what the subscription brought meanwhile.
"""

from __future__ import annotations

from typing import Final

from quantum.broker.commands import SubscriptionSpec
from quantum.broker.delivering import deliver_targeted, room_for_retained
from quantum.broker.interest import partitions_of, send_item
from quantum.broker.items import MoreRetained, Targeted, WantRetained
from quantum.broker.message import Message
from quantum.broker.outbound import Delivery
from quantum.broker.session import Replay, Session
from quantum.broker.state import BrokerState
from quantum.topics import has_wildcard

PAGE_BYTES_MAX: Final = 1 << 20
PAGES_PER_ELAPSE: Final = 16
_RETAINED = True


def begin_replay(state: BrokerState, session: Session, spec: SubscriptionSpec) -> None:
    """Send what is retained for a subscription, or begin to."""
    session.replays = [each for each in session.replays if each.filter != spec.filter]
    here = state.settings.prg
    for prg in [*partitions_of(state, spec.filter), here]:
        session.replays.append(Replay(prg, spec.filter, spec.qos, spec.identifier, b""))
        _next_page(state, session, session.replays[-1])
    if session.replays:
        state.replaying[session.client_id] = None


def continue_replays(state: BrokerState) -> None:
    """Send the next page to some of the sessions that wait for one and have room."""
    for client_id in list(state.replaying)[:PAGES_PER_ELAPSE]:
        del state.replaying[client_id]
        session = state.sessions[client_id]
        if session.replays and _next_page(state, session, session.replays[0]) and session.replays:
            state.replaying[client_id] = None


def _next_page(state: BrokerState, session: Session, replay: Replay) -> bool:
    """Send a page, or ask for one; say whether there was room for it."""
    room = room_for_retained(state, session)
    if not room:
        return False
    state.changes.sessions.add(session.client_id)
    if replay.prg == state.settings.prg:
        _send_page(state, session, replay, room)
        return True
    session.replays.remove(replay)  # `MoreRetained` brings it back
    want = WantRetained(
        session.client_id,
        session.epoch,
        replay.filter,
        replay.qos,
        replay.identifier,
        replay.after,
        room,
        state.prg_count,
    )
    send_item(state, replay.prg, want)
    return True


def _send_page(state: BrokerState, session: Session, replay: Replay, limit: int) -> None:
    page, after = _page(state, replay.filter, replay.after, limit, not_moving=True)
    if after is None:
        session.replays.remove(replay)
    else:
        replay.after = after
    identifiers = (replay.identifier,) if replay.identifier else ()
    for message in page:
        qos = min(replay.qos, message.qos)
        deliver_targeted(state, session, Delivery(message, qos, _RETAINED, identifiers))


def _page(
    state: BrokerState, topic_filter: bytes, after: bytes, limit: int, *, not_moving: bool
) -> tuple[list[Message], bytes | None]:
    """Return what comes next, what has expired left out, and where to go on if there is more.

    `not_moving`: who asks will get what moves away from its new owner.
    """
    leaves_out = not_moving and state.move is not None
    page = state.retained.match_after(topic_filter, after, limit)
    messages: list[Message] = []
    size = 0
    for topic, message in page.matches:
        if 0 < message.expires_at_ms <= state.now_ms:
            continue
        if leaves_out and state.owner(topic) != state.settings.prg:
            continue
        messages.append(message)
        size += message.weight
        if size >= PAGE_BYTES_MAX:
            return messages, topic
    return messages, page.after


def answer_retained(state: BrokerState, origin: int, want: WantRetained) -> None:
    """Send a page of what is retained here to a session of another partition."""
    limit = max(1, min(want.limit, state.settings.retained_page))
    move = state.move
    has_begun = move is not None and origin in move.began
    page, after = _page(state, want.filter, want.after, limit, not_moving=has_begun)
    for message in page:
        item = Targeted(
            want.client_id,
            want.epoch,
            message.record,
            min(want.qos, message.qos),
            _RETAINED,
            want.identifier,
            filter=want.filter,
        )
        send_item(state, origin, item)
    if after is not None:
        more = MoreRetained(
            want.client_id,
            want.epoch,
            want.filter,
            want.qos,
            want.identifier,
            after,
            want.prg_count,
        )
        send_item(state, origin, more)


def on_more_retained(state: BrokerState, origin: int, more: MoreRetained) -> None:
    """Ask for the next page now, or when the session has room for it."""
    session = state.sessions.get(more.client_id)
    prg = origin if more.prg < 0 else more.prg
    if session is None and state.is_fenced(more.client_id):
        more.prg = prg
        send_item(state, state.home(more.client_id), more)  # it went there
        return
    if session is None or session.epoch != more.epoch or more.filter not in session.subscriptions:
        return
    replay = Replay(prg, more.filter, more.qos, more.identifier, more.after)
    session.replays.append(replay)
    state.changes.sessions.add(session.client_id)
    if 0 < more.prg_count < state.prg_count:
        _extend(session, range(more.prg_count, state.prg_count), [replay])
        state.replaying[session.client_id] = None
    _next_page(state, session, replay)


def extend_replays(state: BrokerState, old_count: int) -> None:
    """The ring grew: what was not sent yet may be in a fresh partition from now on."""
    fresh = range(old_count, state.prg_count)
    for session in state.sessions.values():
        if session.replays:
            _extend(session, fresh, list(session.replays))
            for replay in session.replays:
                if not has_wildcard(replay.filter) and replay.prg != state.settings.prg:
                    replay.prg = state.owner(replay.filter)


def _extend(session: Session, fresh: range, unfinished: list[Replay]) -> None:
    """Let a session ask fresh partitions for what others may not have any more.

    What they got from partitions that were done with it comes a second time.
    """
    for replay in unfinished:
        for prg in fresh if has_wildcard(replay.filter) else ():
            there = [
                each for each in session.replays if (each.prg, each.filter) == (prg, replay.filter)
            ]
            if not there:
                session.replays.append(
                    Replay(prg, replay.filter, replay.qos, replay.identifier, replay.after)
                )
            elif _place(replay.after) < _place(there[0].after):
                there[0].after = replay.after


def _place(topic: bytes) -> bytes:
    """Return what topics are ordered by where they are retained."""
    return topic.replace(b"/", b"\0")
