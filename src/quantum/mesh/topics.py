"""The topics of one tenant on this node: what adapters of streaming protocols call.

Nothing here does I/O but reads that are not in memory, which the node gives as a port. A call with
a `done` answers once: at once, or in a later turn; None says that nobody knows what became of it
(the leader changed, or the link broke), and whoever asked may ask again without harm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Protocol, TypeAlias

from xxhash import xxh3_128_digest

from quantum.broker.stream_table import Stream
from quantum.broker.streams import (
    STREAM_FAMILY,
    AbortedRange,
    AlterTopic,
    AppendOutcome,
    Configs,
    CreateTopic,
    DeleteTopic,
    GroupCommand,
    GroupEvent,
    GroupResult,
    GrowTopic,
    KnownProducer,
    StreamBatch,
    StreamRefusal,
    StreamSection,
    TopicCommand,
    TopicReply,
    TopicSpec,
    TransactionCommand,
    TransactionResult,
    decode_outcomes,
    encode_appends,
)
from quantum.broker.streams.answers import decode_reply
from quantum.broker.streams.hosted_partition import HostedPartition
from quantum.broker.streams.section import (
    GROUPS,
    TOPICS,
    TRANSACTIONS,
    encode_stream_command,
    encode_trims,
)
from quantum.broker.streams.section_state import GROUP_KEY, TRANSACTION_KEY
from quantum.broker.streams.topic_configs import speak_of_compaction
from quantum.broker.streams.topics import CATALOGUE_PRG, TOPICS_MAX, file_id_of
from quantum.mesh.asks import Asks
from quantum.mesh.topic_reads import ReadDone, StreamFilesPort, TimeDone, TopicReads
from quantum.mesh.topic_views import LeaderView, PartitionView, TopicKind, TopicView
from quantum.partition.gate import ClientOperation
from quantum.partition.leader import PartitionLeader
from quantum.partition.ports import Completion
from quantum.partition.stream_side import StreamSide, section_of

TopicDone: TypeAlias = Callable[[TopicReply | None], None]
AppendDone: TypeAlias = Callable[[list[AppendOutcome] | None], None]
CoordinateDone: TypeAlias = Callable[[GroupResult | TransactionResult | None], None]
Cancel: TypeAlias = Callable[[], None]

ANSWER_MS_MAX: Final = 15_000
"""After so long whoever asked is told that nobody knows: another partition may have no leader."""
CAPTURE_NUMBERS: Final = 1 << 39
"""What is added to a capture's number: no topic has such a one."""


class TopicsTenant(Protocol):
    """What topics ask of their tenant."""

    name: str
    prgs: list[PartitionLeader]
    asks: Asks

    @property
    def tick_ms(self) -> int: ...
    def now_ms(self) -> int: ...
    def knows_topics(self, prg: PartitionLeader) -> bool: ...
    def knows_compaction(self, prg: PartitionLeader) -> bool: ...
    def stream_files(self) -> StreamFilesPort | None: ...


class TenantTopics:
    """One tenant's topics, producers, groups and transactions, as this node can serve them."""

    def __init__(self, tenant: TopicsTenant) -> None:
        self._tenant = tenant
        self.sides: list[StreamSide] = []
        """The leader's side of each PRG's streams, by number."""
        self._reads = TopicReads(tenant.stream_files)
        self._waiting: dict[tuple[int, int], dict[int, Callable[[], None]]] = {}
        """Who wants to hear of a partition: by PRG and file, then by number."""
        self._open: dict[int, tuple[int, Completion]] = {}
        """Who waits for an answer, and until when."""
        self._number = 0
        self._was_ready = False
        self._views: dict[int, tuple[TopicSpec, TopicView]] = {}
        """The view of each topic, good for as long as its spec is the same object."""
        self._group_events: list[Callable[[int, GroupEvent], None]] = []

    def host_partition(self, prg: PartitionLeader) -> None:
        """Take part in a partition of the tenant from now on."""
        side = StreamSide(prg, lambda: self._tenant.knows_topics(prg), self._tell_events)
        prg.register(side)
        prg.askers[STREAM_FAMILY] = side.order
        self.sides.append(side)

    # What there is.

    def is_ready(self) -> bool:
        """Say whether this node knows the catalogue: right after its start it has read no log yet.

        Until then a topic that is not found may be there: nobody must be told otherwise.
        """
        leader = self._leader(CATALOGUE_PRG)
        if leader is None or leader.leader_node is None:
            return False
        replica = leader.group.replica
        is_ready = leader.leading or (
            not replica.leads and replica.applied_index >= replica.group.core.commit_index
        )
        self._was_ready = self._was_ready or is_ready
        return is_ready

    def was_ready(self) -> bool:
        """Say whether this node knew the catalogue once: a busy follower lags most of the time."""
        return self._was_ready or self.is_ready()

    def topics(self) -> Iterator[TopicView]:
        """Walk the catalogue, captures included, as this node's replica of PRG 0 knows it."""
        if not self._tenant.prgs:
            return
        catalogue = self.coordinator(CATALOGUE_PRG).topics
        for spec in catalogue:
            yield self._view(spec)
        for stream in self._tenant.prgs[CATALOGUE_PRG].broker.state.streams:
            if catalogue.named(stream.spec.name.decode()) is None:
                yield self._capture(stream)

    def topic(self, name: str) -> TopicView | None:
        """Return a topic by its name; one that was made as a topic before a capture."""
        spec = self.coordinator(CATALOGUE_PRG).topics.named(name)
        if spec is not None:
            return self._view(spec)
        streams = self._tenant.prgs[CATALOGUE_PRG].broker.state.streams
        stream = streams.named(name.encode())
        return None if stream is None else self._capture(stream)

    def topic_by_id(self, uuid: bytes) -> TopicView | None:
        """Return a topic by its UUID."""
        spec = self.coordinator(CATALOGUE_PRG).topics.by_uuid(uuid)
        if spec is not None:
            return self._view(spec)
        streams = self._tenant.prgs[CATALOGUE_PRG].broker.state.streams
        return next((self._capture(each) for each in streams if _uuid_of(each) == uuid), None)

    def _view(self, spec: TopicSpec) -> TopicView:
        kept = self._views.get(spec.number)
        if kept is not None and kept[0] is spec:
            return kept[1]
        place = self._tenant.prgs[CATALOGUE_PRG].broker.settings.topic_partition
        prgs = tuple(spec.place(each, place) for each in range(spec.partitions))
        facts = (spec.number, spec.name, spec.uuid, TopicKind.TOPIC, prgs)
        view = TopicView(*facts, dict(spec.configs), spec.created_ms)
        if len(self._views) >= TOPICS_MAX:
            self._views.clear()  # those of topics that are gone
        self._views[spec.number] = (spec, view)
        return view

    def _capture(self, stream: Stream) -> TopicView:
        spec = stream.spec
        facts = (CAPTURE_NUMBERS + spec.number, spec.name.decode(), _uuid_of(stream))
        prgs = tuple(range(len(self._tenant.prgs)))
        configs = {
            "retention.ms": str(spec.retention_ms or -1),
            "retention.bytes": str(spec.retention_bytes or -1),
        }
        return TopicView(*facts, TopicKind.CAPTURE, prgs, configs, spec.created_ms)

    def leader(self, prg: int) -> LeaderView:
        """Say who leads a PRG."""
        leader = self._leader(prg)
        if leader is None:
            return LeaderView(None, -1, is_here=False)
        if leader.leading:
            closed = leader.closed.get(ClientOperation.PUBLISH, "")
            return LeaderView(leader.leader_node, leader.term, is_here=True, closed=closed)
        term = int(leader.group.replica.group.core.hard.term)
        return LeaderView(leader.leader_node, term, is_here=False)

    def _leader(self, prg: int) -> PartitionLeader | None:
        prgs = self._tenant.prgs
        return prgs[prg] if 0 <= prg < len(prgs) else None

    def _hosted(self, topic: TopicView, p: int) -> HostedPartition | None:
        leader = self._leader(topic.prgs[p]) if 0 <= p < topic.partitions else None
        if leader is None:
            return None
        return section_of(leader.broker).partitions.get((topic.number, p))

    def _captured(self, topic: TopicView, p: int) -> Stream | None:
        leader = self._leader(p) if topic.kind is TopicKind.CAPTURE else None
        if leader is None:
            return None
        return leader.broker.state.streams.get(topic.number - CAPTURE_NUMBERS)

    def partition(self, topic: TopicView, p: int) -> PartitionView | None:
        """Show a partition as the replica here has it; None where there is none."""
        stream = self._captured(topic, p)
        if stream is not None:
            epoch = self.leader(p).epoch
            ends = (stream.start_offset, stream.next_offset, stream.next_offset)
            return PartitionView(*ends, epoch, -1, -1)
        hosted = self._hosted(topic, p)
        if hosted is None:
            return None
        log = hosted.log
        times = (hosted.max_timestamp_ms, hosted.max_timestamp_offset)
        ends = (log.start_offset, log.end_offset, log.last_stable_offset)
        return PartitionView(*ends, self.leader(topic.prgs[p]).epoch, *times)

    def aborted(self, topic: TopicView, p: int, start: int, end: int) -> list[AbortedRange]:
        """List what a reader of [start, end) with read_committed must skip."""
        hosted = self._hosted(topic, p)
        return [] if hosted is None else hosted.log.aborted_between(start, end)

    def is_open(self, topic: TopicView, p: int, producer_id: int, epoch: int) -> bool:
        """Say whether a transaction of this epoch may write here: nobody has to be asked."""
        hosted = self._hosted(topic, p)
        return hosted is not None and hosted.log.open_epoch(producer_id) == epoch

    def producers(self, topic: TopicView, p: int) -> list[tuple[int, KnownProducer, int | None]]:
        """List the producers that a partition remembers, each with the first offset of its open
        transaction (DescribeProducers)."""
        hosted = self._hosted(topic, p)
        if hosted is None:
            return []
        begun = {producer: first for producer, _, first in hosted.log.open_transactions()}
        return [(each, known, begun.get(each)) for each, known in hosted.log.producers()]

    def epoch_end(self, topic: TopicView, p: int, epoch: int) -> tuple[int, int]:
        """Return the newest leader epoch up to this one, and where it ended; -1, -1: unknown."""
        hosted = self._hosted(topic, p)
        return (-1, -1) if hosted is None else hosted.epoch_end(epoch)

    def file_id(self, topic: TopicView, p: int) -> int:
        """Name a partition among the files of its PRG."""
        stream = self._captured(topic, p)
        return file_id_of(topic.number, p) if stream is None else stream.file_id

    def size_bytes(self, topic: TopicView, p: int) -> int:
        """Return what this node's files keep of a partition, without what is still in memory."""
        leader = self._leader(topic.prgs[p]) if 0 <= p < topic.partitions else None
        streams = None if leader is None else leader.group.replica.streams
        files = None if streams is None else streams.store.partitions.get(self.file_id(topic, p))
        return 0 if files is None else files.size_bytes

    # Orders, from any node; answered once every PRG has taken them.

    def create_topic(
        self, name: str, partitions: int, configs: Configs, uuid: bytes, done: TopicDone
    ) -> None:
        """Begin a topic; `uuid` is 16 bytes that the caller drew, the same when it asks again."""
        streams = self._tenant.prgs[CATALOGUE_PRG].broker.state.streams
        if streams.named(name.encode()) is not None:
            done(TopicReply(0, StreamRefusal.TOPIC_EXISTS, "there is a capture of this name"))
            return
        if self._takes_configs(configs, done):
            self._order(CreateTopic(0, name, uuid, partitions, configs), done)

    def delete_topic(self, name: str, done: TopicDone) -> None:
        """End a topic, with all that it holds."""
        self._order(DeleteTopic(0, name), done)

    def grow_topic(self, name: str, partitions: int, done: TopicDone) -> None:
        """Give a topic so many partitions."""
        self._order(GrowTopic(0, name, partitions), done)

    def alter_topic(self, name: str, configs: Configs, done: TopicDone) -> None:
        """Put these configs in the place of all that the topic had."""
        if self._takes_configs(configs, done):
            self._order(AlterTopic(0, name, configs), done)

    def _takes_configs(self, configs: Configs, done: TopicDone) -> bool:
        """Say whether every replica judges configs alike; where not, `done` was told why."""
        knows = self._tenant.knows_compaction
        if not speak_of_compaction(configs) or all(map(knows, self._tenant.prgs)):
            return True
        words = "not every node knows compaction: upgrade them first"
        done(TopicReply(0, StreamRefusal.BAD_CONFIG, words))
        return False

    def _order(self, command: TopicCommand, done: TopicDone) -> None:
        def answered(answer: Any) -> None:
            if isinstance(answer, StreamRefusal):
                answer = TopicReply(0, answer, answer.value)
            done(answer if isinstance(answer, TopicReply) else None)

        data = encode_stream_command(self._tenant.now_ms(), TOPICS, command)
        self._ask(CATALOGUE_PRG, data, _answering(answered))

    def delete_records(
        self, topic: TopicView, p: int, offset: int, done: Callable[[AppendOutcome | None], None]
    ) -> None:
        """Let a partition start later; -1 is its end. `start_offset` of the outcome is new."""
        if topic.kind is TopicKind.CAPTURE or not 0 <= p < topic.partitions:
            done(AppendOutcome(-1, -1, -1, StreamRefusal.TOPIC_UNKNOWN))
            return

        def replied(reply: bytes | None) -> None:
            done(next(decode_outcomes(reply), None) if reply else None)

        command = encode_trims(self._tenant.now_ms(), [(topic.number, p, offset)])
        self._ask(topic.prgs[p], command, replied)

    def _ask(self, prg: int, command: bytes, completion: Completion) -> None:
        """Let the leader of a PRG log a command; answer once, and never later than the bound."""
        self._number += 1
        number = self._number
        self._open[number] = (self._tenant.tick_ms + ANSWER_MS_MAX, completion)
        self._tenant.asks.ask(prg, command, lambda reply: self._answer(number, reply))

    def _answer(self, number: int, reply: bytes | None) -> None:
        _, completion = self._open.pop(number, (0, None))
        if completion is not None:
            completion(reply)

    # Batches.

    def append(self, prg: int, batches: Sequence[StreamBatch], done: AppendDone) -> None:
        """Log batches with what else this turn brings for a PRG that this node leads."""
        if 0 <= prg < len(self.sides):
            self.sides[prg].append(batches, done)
        else:
            done(None)

    def append_anywhere(self, prg: int, batch: StreamBatch, done: AppendDone) -> None:
        """Log one batch at the leader of its PRG, wherever that is.

        It has a producer and a sequence, so that it counts once however often it is asked for.
        """
        leader = self.leader(prg)
        if leader.is_here:
            self.append(prg, [batch], done)
            return

        def replied(reply: bytes | None) -> None:
            outcomes = list(decode_outcomes(reply)) if reply else []
            done(outcomes if len(outcomes) == 1 else None)

        self._ask(prg, encode_appends(self._tenant.now_ms(), leader.epoch, [batch]), replied)

    def read(self, topic: TopicView, p: int, offset: int, bytes_max: int, done: ReadDone) -> None:
        """Read from an offset: at once where it is in memory, else off the loop."""
        leader = self._leader(topic.prgs[p]) if 0 <= p < topic.partitions else None
        look = (lambda: self.partition(topic, p)) if leader is not None else (lambda: None)
        self._reads.read(leader, self.file_id(topic, p), offset, bytes_max, look=look, done=done)

    def find_time(self, topic: TopicView, p: int, time_ms: int, done: TimeDone) -> None:
        """Find the first batch whose newest time is this or later."""
        leader = self._leader(topic.prgs[p]) if 0 <= p < topic.partitions else None
        self._reads.find_time(leader, self.file_id(topic, p), time_ms, done)

    def on_news(self, topic: TopicView, p: int, call: Callable[[], None]) -> Cancel:
        """Call once, when a partition grows, ends or has another leader."""
        key = (topic.prgs[p], self.file_id(topic, p))
        self._number += 1
        number = self._number
        self._waiting.setdefault(key, {})[number] = call

        def cancel() -> None:
            waiting = self._waiting.get(key)
            if waiting is not None and waiting.pop(number, None) is not None and not waiting:
                del self._waiting[key]

        return cancel

    def stream_news(self, prg: int, partitions: set[int]) -> None:
        """Something happened to partitions of streams in a PRG."""
        if self._waiting:
            for file_id in partitions:
                for call in self._waiting.pop((prg, file_id), {}).values():
                    call()

    def leader_changed(self, prg: int) -> None:
        """Another node leads a PRG, or none: whoever waits here looks again."""
        for key in [each for each in self._waiting if each[0] == prg]:
            for call in self._waiting.pop(key, {}).values():
                call()

    # Coordinators.

    def group(self, group_id: str) -> int:
        """Return the PRG that coordinates a group."""
        return self._place(GROUP_KEY + group_id.encode())

    def transaction(self, transactional_id: str) -> int:
        """Return the PRG that coordinates a transactional id."""
        return self._place(TRANSACTION_KEY + transactional_id.encode())

    def _place(self, key: bytes) -> int:
        settings = self._tenant.prgs[CATALOGUE_PRG].broker.settings
        return settings.topic_partition(key, settings.prg_count)

    def producer_prg(self) -> int:
        """Return a PRG that gives ids to producers without transactions; one led here, if any."""
        here = (each.number for each in self._tenant.prgs if each.leading)
        return next(here, CATALOGUE_PRG)

    def coordinate(
        self, prg: int, command: GroupCommand | TransactionCommand, done: CoordinateDone
    ) -> None:
        """Let the leader of a PRG, here or elsewhere, log a command; its `now_ms` is replaced.

        Of a result only `answer` is filled here: events come by `on_group_event`. A partition or
        group that joins a transaction knows it when this answers.
        """
        if isinstance(command, GroupCommand):
            kind, result = GROUPS, GroupResult
            member_id = getattr(command, "member_id", "")
            if member_id:
                self.heard(command.group, member_id)  # type: ignore[union-attr]  # it has both
        else:
            kind, result = TRANSACTIONS, TransactionResult  # type: ignore[assignment]

        def replied(reply: bytes | None) -> None:
            decoded = decode_reply(reply) if reply else None
            done(None if decoded is None else result(decoded[1]))

        self._ask(prg, encode_stream_command(self._tenant.now_ms(), kind, command), replied)

    def coordinator(self, prg: int) -> StreamSection:
        """Return the replica's own `groups` and `transactions`: to be read, not to be changed."""
        return section_of(self._tenant.prgs[prg].broker)

    def heard(self, group_id: str, member_id: str) -> None:
        """A member of a group that is led here gave a sign of life (Heartbeat, KIP-848's too)."""
        prg = self.group(group_id)
        if prg < len(self.sides):
            self.sides[prg].sessions.heard(group_id, member_id)

    def on_group_event(self, callback: Callable[[int, GroupEvent], None]) -> None:
        """Tell of each event of the groups of a PRG that is led here: its number, and the event."""
        self._group_events.append(callback)

    def _tell_events(self, prg: int, events: tuple[GroupEvent, ...]) -> None:
        for event in events:
            for callback in self._group_events:
                callback(prg, event)

    # Time.

    def on_tick(self, tick_ms: int) -> None:
        """Let due things happen; who has waited for too long is told that nobody knows."""
        for side in self.sides:
            side.on_tick(tick_ms)
        for number in [each for each, (due, _) in self._open.items() if due <= tick_ms]:
            self._answer(number, None)


def _answering(done: Callable[[Any], None]) -> Completion:
    def replied(reply: bytes | None) -> None:
        decoded = decode_reply(reply) if reply else None
        done(None if decoded is None else decoded[1])

    return replied


def _uuid_of(stream: Stream) -> bytes:
    """A capture has no UUID of its own: the same comes out on every node."""
    spec = stream.spec
    return xxh3_128_digest(b"capture" + spec.number.to_bytes(8, "big") + spec.name)
