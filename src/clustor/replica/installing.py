"""Installation: a peer's snapshot becomes this replica's own, or nothing changes.

    manifest → chunks → restored into a new machine and compared → streams that lack here fetched
             → authorised → the log moves

A delta comes with its chain, down to the full snapshot. What that gives is emitted anew as one
full snapshot of our own, which is then authorised like any other.

From the authorisation on a crash finds the new snapshot; `open` then moves the log itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import assert_never

from clustor.log.errors import LogError
from clustor.log.steps import Plan
from clustor.raft.output import SnapshotInstall
from clustor.raft.types import ReplicaId
from clustor.replica.chain import mark, restore_contents
from clustor.replica.emitting import Authorizing, Emitting, Shelf, state_digest
from clustor.replica.header import SnapshotHeader
from clustor.replica.jobs import LoadChain, Relist
from clustor.replica.machine import StateMachine, StreamMachine
from clustor.replica.stream_fetch import StreamFetch
from clustor.replica.transfer import (
    ChunkSent,
    ChunkWanted,
    ManifestSent,
    ManifestWanted,
    StreamsSent,
    StreamsWanted,
    Transfer,
)
from clustor.snapshot.errors import SnapshotFailure
from clustor.snapshot.importer import (
    ChunkOutcome,
    ImportPhase,
    ImportPolicy,
    QuarantineVerdict,
    RetryChunk,
    SnapshotImport,
    SourceLost,
    StoreChunk,
    begin_chain_import,
    begin_import,
    plan_finish_import,
)
from clustor.snapshot.manifest import Manifest
from clustor.snapshot.types import ChunkId

ANSWER_MS_MAX = 1_000
"""After so long a question or its answer is taken for lost."""

ASKS_MAX = 4


class Installing:
    """One installation. `ended` is called once: with the new machine, or with None."""

    def __init__(
        self,
        shelf: Shelf,
        install: SnapshotInstall,
        plan_log: Callable[[], Plan],
        ended: Callable[[SnapshotInstall, StateMachine | None], None],
    ) -> None:
        self.install = install
        self._shelf = shelf
        self._plan_log = plan_log
        self._ended = ended
        self._import: SnapshotImport | None = None  # whose chunks are asked for now
        self._chain: list[SnapshotImport] = []
        self._machine: StateMachine | None = None
        self._fetch: StreamFetch | None = None
        self._asked: dict[ChunkId, tuple[int, int]] = {}  # when last, and how often
        self._manifest_asked_ms: int | None = None
        self._manifest_asks = 0
        self._now_ms = 0
        self._over = False
        self.wants: list[tuple[ReplicaId, Transfer]] = []

    def begin(self, now_ms: int) -> None:
        self._now_ms = now_ms
        self._ask_manifest()

    def _ask_manifest(self) -> None:
        self._manifest_asked_ms = self._now_ms
        self._manifest_asks += 1
        self.wants.append((self.install.source, ManifestWanted(self.install.base_index)))

    def progress(self) -> tuple[int, int]:
        """Return how many chunks are still missing, and how many there are; 0 while unknown."""
        chunks = sum(len(each.manifest.chunks) for each in self._chain)
        return sum(each.missing for each in self._chain), chunks

    # Inputs.

    def tick(self, now_ms: int) -> None:
        """Ask again for what did not come."""
        self._now_ms = now_ms
        late_ms = now_ms - ANSWER_MS_MAX
        if self._manifest_asked_ms is not None and self._manifest_asked_ms <= late_ms:
            if self._manifest_asks >= ASKS_MAX:
                self._give_up()
                return
            self._ask_manifest()
        late = [(chunk, asks) for chunk, (at, asks) in self._asked.items() if at <= late_ms]
        for chunk_id, asks in late:
            if asks < ASKS_MAX:
                self._ask_chunk(chunk_id, asks)
            else:
                self._lost(chunk_id)
        self._ask_chunks()
        if self._fetch is not None:
            self._fetch.tick(now_ms)

    def advance(self) -> None:
        """Ask for more of the streams, where the disk has taken what came."""
        if self._fetch is not None:
            self._fetch.advance(self._now_ms)

    @property
    def has_question(self) -> bool:
        """Whether something is to be asked of the source."""
        return bool(self.wants) or (self._fetch is not None and self._fetch.has_question)

    def on_streams(self, message: StreamsSent) -> None:
        if self._fetch is not None:
            self._fetch.on_sent(message, self._now_ms)

    def on_manifest(self, message: ManifestSent) -> None:
        install = self.install
        if self._manifest_asked_ms is None or message.base_index != install.base_index:
            return
        self._manifest_asked_ms = None
        try:
            self._chain = self._begin_imports(message)
        except SnapshotFailure:
            self._give_up()
            return
        head = self._chain[-1].manifest
        if (head.base_term, head.base_index) != (install.base_term, install.base_index):
            self._give_up()
            return
        self._import = self._chain[0]
        self._shelf.disk.submit(self._import.plan, self._ask_chunks)

    def _begin_imports(self, message: ManifestSent) -> list[SnapshotImport]:
        settings = self._shelf.settings
        version = settings.version_id
        catalog, keys = self._shelf.catalog, settings.keys
        policy = ImportPolicy(settings.trusted_keys, version, version)
        if message.parents:
            datas = (*message.parents, message.manifest)
            return begin_chain_import(datas, catalog=catalog, keys=keys, policy=policy)
        return [begin_import(message.manifest, catalog=catalog, keys=keys, policy=policy)]

    def on_chunk(self, message: ChunkSent) -> None:
        chunk_id = ChunkId(message.chunk_id)
        if self._import is None or message.manifest_id != self._import.manifest.manifest_id:
            return
        if self._asked.pop(chunk_id, None) is None:
            return
        if not message.sealed:
            self._give_up()  # the source has it no more; what it has now it will offer
            return
        outcome = self._import.on_chunk(
            chunk_id, message.sealed, now_ms=self._now_ms, jitter=self._jitter()
        )
        self._chunk_decided(outcome)

    # Chunks.

    def _ask_chunks(self) -> None:
        if self._import is None or self._over:
            return
        room = self._shelf.settings.chunks_in_flight_max - len(self._asked)
        for chunk in self._import.take_wanted(self._now_ms, max(0, room)):
            self._ask_chunk(chunk.chunk_id, 0)

    def _ask_chunk(self, chunk_id: ChunkId, asks: int) -> None:
        assert self._import is not None
        self._asked[chunk_id] = (self._now_ms, asks + 1)
        wanted = ChunkWanted(self._import.manifest.manifest_id, chunk_id)
        self.wants.append((self.install.source, wanted))

    def _jitter(self) -> float:
        return self._shelf.settings.draw(-100, 100) / 100

    def _lost(self, chunk_id: ChunkId) -> None:
        assert self._import is not None
        self._asked.pop(chunk_id, None)
        if self._import.phase is ImportPhase.STREAMING:
            outcome = self._import.on_chunk_lost(
                chunk_id, now_ms=self._now_ms, jitter=self._jitter()
            )
            self._chunk_decided(outcome)

    def _chunk_decided(self, outcome: ChunkOutcome) -> None:
        match outcome:
            case StoreChunk():
                chunk_id = outcome.chunk_id
                self._shelf.disk.submit(outcome.plan, lambda: self._chunk_stored(chunk_id))
            case RetryChunk():
                pass  # `tick` asks again when its time has come
            case QuarantineVerdict() | SourceLost():
                self._give_up()
            case _:
                assert_never(outcome)

    def _chunk_stored(self, chunk_id: ChunkId) -> None:
        incoming = self._import
        if incoming is None or self._over:
            return
        incoming.on_chunk_stored(chunk_id)
        staged = [each.phase is ImportPhase.STAGED for each in self._chain]
        if all(staged):
            self._load()
            return
        if incoming.phase is ImportPhase.STAGED:
            self._import = self._chain[staged.index(False)]
        self._ask_chunks()

    # The state.

    def _load(self) -> None:
        manifests = tuple(each.manifest for each in self._chain)
        partition = self._chain[0].partition
        load = LoadChain(manifests, self._shelf.settings.keys, partition)
        self._shelf.reader.submit(load, self._loaded, self._failed)

    def _loaded(self, found: object) -> None:
        assert isinstance(found, list)
        head = self._chain[-1]
        machine = self._shelf.settings.new_machine()

        def check(nth: int) -> None:
            link = self._chain[nth]
            link.on_restored(state_digest(machine, link.manifest.snapshot_kind), ())

        try:
            header = restore_contents(machine, found, check)
            assert header is not None
            mark(machine, head.manifest.base_index)
            self._machine = machine
            self._fetch_streams(machine, header)
        except Exception as error:  # noqa: BLE001  # the machine's own errors are its own
            self._failed(error)

    def _fetch_streams(self, machine: StateMachine, header: SnapshotHeader) -> None:
        """Make the files durable that the state speaks of: from here on a start may rely on it."""
        streams = self._shelf.streams
        if streams is None:
            self._restored(machine, header)
            return
        assert isinstance(machine, StreamMachine)
        self._fetch = StreamFetch(
            streams,
            self.install.base_index,
            self._ask_streams,
            lambda: self._restored(machine, header),
            self._give_up,
        )
        self._fetch.begin(machine.stream_extents(), self._now_ms)

    def _ask_streams(self, wanted: StreamsWanted) -> None:
        self.wants.append((self.install.source, wanted))

    def _restored(self, machine: StateMachine, header: SnapshotHeader) -> None:
        self._fetch = None
        if len(self._chain) > 1:
            self._emit_anew(machine, header)
            return
        plan = self._chain[-1].plan_install(self._shelf.catalog)
        self._shelf.disk.submit(plan, self._written)

    def _emit_anew(self, machine: StateMachine, header: SnapshotHeader) -> None:
        """Make a full snapshot of our own out of a peer's chain: ours would not continue it."""

        def ended(manifest: Manifest | None) -> None:
            if manifest is None:
                self._give_up()
            else:
                self._authorized()

        emitting = Emitting(self._shelf, ended)
        emitting.begin(machine, header, self.install.base_term, self._wall_ms())

    def _wall_ms(self) -> int:
        wall_ms = self._shelf.settings.wall_ms
        return self._now_ms if wall_ms is None else wall_ms()

    def _written(self) -> None:
        incoming = self._import
        assert incoming is not None
        authorizing = Authorizing(self._shelf, self._authorized, self._failed)
        authorizing.begin(Relist(incoming.manifest, incoming.generation), self._wall_ms())

    def _authorized(self) -> None:
        try:
            plan = (*self._plan_finish(), *self._plan_log())
        except LogError as error:
            self._failed(error)
            return
        self._shelf.disk.submit(plan, self._installed)

    def _installed(self) -> None:
        self._over = True
        self._ended(self.install, self._machine)

    def _failed(self, error: Exception) -> None:
        del error  # the group tries again, with whatever is newest then
        self._give_up()

    def _give_up(self) -> None:
        if self._over:
            return
        self._over = True
        self._fetch = None
        if self._import is None:
            self._ended(self.install, None)
        else:
            self._shelf.disk.submit(self._plan_finish(), lambda: self._ended(self.install, None))

    def _plan_finish(self) -> Plan:
        """Plan to clear the staging area; a chain was staged without one."""
        return plan_finish_import() if len(self._chain) == 1 else ()
