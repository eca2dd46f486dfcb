"""A past message's way, told by the logs: where it was logged, passed on, queued, acknowledged.

Each partition's log is searched for the message. What sessions did with it is not written down
anywhere: the session's partition is replayed by the broker's own machine, from the newest snapshot
that is older than the message, and watched.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from clustor.log.types import Entry, PartitionId
from clustor.replica.chain import restore_contents
from clustor.security.receipts import digest_message, receipt_id
from clustor.snapshot.catalog import open_catalog, read_content
from quantum.broker import Broker, Message
from quantum.broker.commands import Acknowledge, Command, RemoveSession, decode_known
from quantum.broker.mentions import (
    Mention,
    MentionKind,
    MessageIdentity,
    mentions_in,
    stamp_of,
)
from quantum.broker.outbound import Delivery
from quantum.broker.session import Session
from quantum.node.delivery_rows import MessageTrail, TrailStep
from quantum.node.log_reading import CommittedLog, commands_of, wait_for_entry
from quantum.node.receipts import MessageId
from quantum.topics import matches

if TYPE_CHECKING:
    from quantum.mesh.tenant import Tenant
    from quantum.model.records import Record
    from quantum.node.service import BrokerService

SKEW_MS: Final = 5_000
"""How far the clocks of two leaders may differ before a search looks too late."""
SESSIONS_SHOWN_MAX: Final = 32

_SENTENCES: Final = {
    MentionKind.PUBLISHED: "logged in the partition of its topic",
    MentionKind.TAKEN: "taken once (QoS 2) in the partition of its publisher's session",
    MentionKind.FORWARDED: "logged in the partition of its topic, once",
    MentionKind.DELIVERED: "logged in a partition whose sessions want it",
    MentionKind.TARGETED: "given to one session",
    MentionKind.RETURNED: "given back by a member of a shared subscription",
}
_ARRIVALS: Final = frozenset(MentionKind) - {MentionKind.TAKEN}


class TrailBusy(Exception):
    """A question of this kind is being answered: one at a time reads logs."""


class MessageUnknown(Exception):
    """The logs of this node do not have the message; says why."""


@dataclass(slots=True)
class _Story:
    """What was found so far."""

    identity: MessageIdentity
    message: Message
    digest: str
    id: str
    steps: list[TrailStep] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    arrivals: dict[int, int] = field(default_factory=dict)
    """By partition: the entry with which the message came to it."""


class MessageTrails:
    """Reads the logs of this node's replicas; every node has a replica of every partition."""

    def __init__(self, service: BrokerService) -> None:
        self._service = service
        self._is_busy = False

    async def of_id(self, tenant: Tenant, wanted: MessageId, client: bytes) -> MessageTrail:
        """Tell of the message that an acknowledgement named. Raises MessageUnknown, TrailBusy."""
        for prg in tenant.prgs:
            if int(prg.group.partition_id) == wanted.group:
                await wait_for_entry(prg, wanted.index)
        return await self._told(tenant, client, wanted, None, wanted.group)

    async def of_record(
        self, tenant: Tenant, record: Record, partition: int, client: bytes
    ) -> MessageTrail:
        """Tell of a message that a stream has. Raises MessageUnknown, TrailBusy."""
        group = int(tenant.prgs[partition].group.partition_id)
        return await self._told(tenant, client, None, record, group)

    async def _told(
        self,
        tenant: Tenant,
        client: bytes,
        wanted: MessageId | None,
        record: Record | None,
        group: int,
    ) -> MessageTrail:
        if self._is_busy:
            raise TrailBusy
        self._is_busy = True
        keys = self._service.node.settings.keys
        logs = [CommittedLog(prg, keys) for prg in tenant.prgs]
        home = tenant.session_prg(client).number if client else None
        try:
            owner = next((log for log in logs if log.group == group), None)
            if owner is None:
                raise MessageUnknown(f"group {group} is no partition of tenant {tenant.name}")
            story = await asyncio.to_thread(_search, logs, owner, wanted, record)
            await asyncio.to_thread(_watch_sessions, logs, story, client, home)
        finally:
            self._is_busy = False
            for log in logs:
                log.close()
        return MessageTrail(
            id=story.id,
            tenant=tenant.name,
            topic=story.message.topic.decode(errors="replace"),
            publisher=story.message.client_id.decode(errors="replace"),
            qos=story.message.qos,
            bytes=len(story.message.payload),
            message_sha256=story.digest,
            answered_by=self._service.node.node_id,
            steps=sorted(story.steps, key=lambda step: step.at_ms),
            unknown=story.unknown,
        )


# Searching the logs.


def _search(
    logs: list[CommittedLog],
    owner: CommittedLog,
    wanted: MessageId | None,
    record: Record | None,
) -> _Story:
    if wanted is not None:
        entry, found = _find_id(owner, wanted)
    else:
        assert record is not None
        entry, found = _find_record(owner, record)
    message = found.message
    digest = digest_message(message.topic, message.payload)
    name = receipt_id(owner.group, int(entry.index), digest)
    story = _Story(MessageIdentity.of(message), message, digest, name)
    for log in logs:
        first = int(entry.index) if log is owner else log.first_since(found.at_ms - SKEW_MS)
        for each, mention in _mentions(log, first, story.identity):
            _note(story, log, each, mention)
        if log.is_cut:
            story.unknown.append(f"the log of partition {log.number} was not read to its end")
    return story


def _find_id(log: CommittedLog, wanted: MessageId) -> tuple[Entry, Mention]:
    entry = log.entry(wanted.index)
    if wanted.index > log.last:
        raise MessageUnknown(f"the log of group {log.group} is committed up to {log.last} here")
    if entry is None:
        raise MessageUnknown(
            f"the log of group {log.group} has the entries {log.base + 1} to {log.last}: "
            "what is older was compacted into a snapshot"
        )
    for mention in mentions_in(commands_of(entry)):
        said = mention.message
        if digest_message(said.topic, said.payload).startswith(wanted.digest):
            return entry, mention
    raise MessageUnknown("the entry has no message of this digest")


def _find_record(log: CommittedLog, record: Record) -> tuple[Entry, Mention]:
    origin = record.origin
    identity = MessageIdentity(
        origin.sender, origin.epoch, origin.sequence, record.address, record.body or b""
    )
    for entry, mention in _mentions(log, log.first_since(record.timestamp_ms), identity):
        return entry, mention
    raise MessageUnknown(
        f"the log of group {log.group} does not have it any more: it begins at {log.base + 1}"
    )


def _mentions(
    log: CommittedLog, first: int, identity: MessageIdentity
) -> Iterator[tuple[Entry, Mention]]:
    needle = identity.needle
    for entry in log.entries(first):
        if needle in entry.payload:
            for mention in mentions_in(commands_of(entry)):
                if MessageIdentity.of(mention.message) == identity:
                    yield entry, mention


def _note(story: _Story, log: CommittedLog, entry: Entry, mention: Mention) -> None:
    sentence = _SENTENCES[mention.kind]
    if mention.kind is MentionKind.PUBLISHED and mention.origin is not None:
        sentence += f", passed on by partition {mention.origin}"
    elif mention.origin is not None:
        sentence += f", from partition {mention.origin}"
    if mention.share:
        sentence += f", of group {mention.share.decode(errors='replace')}"
    story.steps.append(
        _step(log, entry, mention.at_ms, mention.kind.value, sentence, mention.client_id)
    )
    if mention.kind in _ARRIVALS:
        story.arrivals.setdefault(log.number, int(entry.index))


def _step(  # noqa: PLR0917  # a step is all of these
    log: CommittedLog, entry: Entry, at_ms: int, what: str, sentence: str, client: bytes = b""
) -> TrailStep:
    return TrailStep(
        at_ms=at_ms,
        what=what,
        partition=log.number,
        group=log.group,
        index=int(entry.index),
        term=int(entry.term),
        sentence=sentence,
        client_id=client.decode(errors="replace"),
    )


# Watching the sessions.


def _watch_sessions(
    logs: list[CommittedLog], story: _Story, client: bytes, home: int | None
) -> None:
    for log in logs:
        arrival = story.arrivals.get(log.number)
        if arrival is None:
            if log.number == home:
                story.unknown.append(
                    f"nothing of it was logged in partition {home}, where the session of "
                    f"{client.decode(errors='replace')} is: what only a connection gets is not kept"
                )
        elif home is None or log.number == home:
            _Watch(log, story, client).run(arrival)


class _Watch:
    """The replay of one partition around a message."""

    def __init__(self, log: CommittedLog, story: _Story, client: bytes) -> None:
        self._log = log
        self._story = story
        self._client = client
        self._seen: dict[bytes, Delivery] = {}
        """Who has the message queued or in flight, and as which delivery."""
        self._sent: set[bytes] = set()

    def run(self, arrival: int) -> None:
        """Replay up to the message's arrival, and on until nobody has it any more."""
        broker = self._restored(arrival)
        if broker is None:
            return
        has_arrived = False
        for entry in self._log.entries(broker.applied_index + 1):
            commands = commands_of(entry)
            if int(entry.index) == arrival:
                self._tell_matches(broker, entry)
            if commands:
                broker.apply_batch(int(entry.index), commands)
            if int(entry.index) >= arrival:
                self._look(broker, entry, commands, is_arrival=int(entry.index) == arrival)
                has_arrived = True
                if not self._seen:
                    return
        if not has_arrived:
            self._story.unknown.append(
                f"partition {self._log.number} was not replayed as far as the message"
            )

    def _restored(self, arrival: int) -> Broker | None:
        """Make the machine as it was some time before the message; None: nobody knows."""
        log = self._log
        broker = Broker(log.settings)
        catalog = open_catalog(log.storage, PartitionId(log.group))
        older = [
            each
            for each in catalog.snapshots
            if log.base <= int(each.manifest.base_index) < arrival
        ]
        if not older:
            if log.base == 0:
                return broker
            self._story.unknown.append(
                f"what the sessions of partition {log.number} did with it: its log before entry "
                f"{log.base + 1} is in a snapshot that is younger than the message"
            )
            return None
        contents = (
            map(bytes, read_content(log.storage, each.manifest, log.keys, catalog.partition))
            for each in catalog.chain(older[-1])
        )
        restore_contents(broker, contents)
        return broker

    def _tell_matches(self, broker: Broker, entry: Entry) -> None:
        """Say by which subscriptions the client of the question wanted it at that time."""
        if not self._client:
            return
        session = broker.state.sessions.get(self._client)
        topic = self._story.message.topic
        if session is None:
            self._tell(entry, "unwanted", "it had no session then", self._client)
            return
        keys = [key for key, spec in session.subscriptions.items() if matches(spec.filter, topic)]
        if not keys:
            self._tell(entry, "unwanted", "no subscription of it matched then", self._client)
            return
        named = b", ".join(keys).decode(errors="replace")
        words = f"wanted by its subscription {named}"
        if not session.keeps_queue:
            words += "; its session ends with its connection, so what left for it is not logged"
        self._tell(entry, "matched", words, self._client)

    def _look(
        self, broker: Broker, entry: Entry, commands: list[bytes], *, is_arrival: bool
    ) -> None:
        sessions = broker.state.sessions
        if is_arrival:
            self._seen = dict(self._find(sessions))
        for client_id, delivery in list(self._seen.items()):
            session = sessions.get(client_id)
            where = None if session is None else _place(session, delivery)
            if where is None:
                del self._seen[client_id]
                what, sentence = _ending(commands, client_id, delivery, has_session=bool(session))
                self._tell(entry, what, sentence, client_id)
            elif where == "in flight" and client_id not in self._sent:
                self._sent.add(client_id)
                words = f"sent at QoS {delivery.qos} with packet id {delivery.packet_id}"
                self._tell(entry, "sent", words, client_id)
            elif is_arrival and session is not None:
                words = f"waits in its queue of {len(session.outbound)}"
                self._tell(entry, "queued", words, client_id)

    def _find(self, sessions: dict[bytes, Session]) -> Iterator[tuple[bytes, Delivery]]:
        named = [self._client] if self._client else sessions
        for client_id in named:
            session = sessions.get(client_id)
            for delivery in () if session is None else session.outbound.unfinished():
                if MessageIdentity.of(delivery.message) == self._story.identity:
                    if len(self._seen) >= SESSIONS_SHOWN_MAX:
                        return
                    yield client_id, delivery
                    break

    def _tell(self, entry: Entry, what: str, sentence: str, client: bytes) -> None:
        at_ms = max(map(stamp_of, commands_of(entry)), default=0)
        self._story.steps.append(_step(self._log, entry, at_ms, what, sentence, client))


def _place(session: Session, delivery: Delivery) -> str | None:
    """Say where a delivery is; None: it is over."""
    outbound = session.outbound
    if outbound.in_flight.get(delivery.packet_id) is delivery:
        return "in flight"
    return "queued" if any(each is delivery for each in outbound.queue) else None


def _ending(
    commands: list[bytes], client_id: bytes, delivery: Delivery, *, has_session: bool
) -> tuple[str, str]:
    """Say by which command of an entry a delivery ended."""
    said: list[Command] = [each for each in map(decode_known, commands) if each is not None]
    for command in said:
        if isinstance(command, Acknowledge):
            for client, kind, packet_id in command.acknowledgements:
                if client == client_id and packet_id == delivery.packet_id:
                    what = "acknowledged" if kind else "refused"
                    return what, f"{what} by the client, packet id {packet_id}"
        if isinstance(command, RemoveSession) and command.client_id == client_id:
            return "ended", "an operator ended the session"
    if not has_session:
        return "ended", "its session ended before it was acknowledged"
    if delivery.share:
        return "returned", "given back to the group of the shared subscription"
    return "dropped", "it expired, or gave way in a full queue"
