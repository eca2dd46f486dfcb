"""A table and its log: `_quantum_log/<version>.json`, one file for each version, created once.

A commit is one `create`. Before it there are only files that no version names; after it they are
rows of the table for every reader, however abruptly the writer ends. What follows (second names
for plain readers) is done again by whoever comes next.
"""

from __future__ import annotations

import re
import secrets
from typing import Final

import msgspec

from quantum.lake.table.commits import (
    TableState,
    decode_commit,
    digest_of,
    encode_commit,
    fold,
    plan_commit,
)
from quantum.lake.table.coverage import Coverages
from quantum.lake.table.errors import (
    CommitUnknown,
    Contended,
    NoTable,
    TableDamaged,
    TableError,
    TableExists,
)
from quantum.lake.table.store import TableStore
from quantum.lake.table.types import (
    NO_VERSION,
    Commit,
    DataFile,
    FileKind,
    OffsetRange,
    StreamName,
    TableOperation,
    Version,
    VersionProposal,
)

LOG_DIRECTORY: Final = "_quantum_log"
CHECKPOINT_EVERY: Final = 64
ATTEMPTS_MAX: Final = 64
_COMMIT_NAME: Final = re.compile(rf"^{LOG_DIRECTORY}/(\d{{20}})\.json$")
_CHECKPOINT_NAME: Final = re.compile(rf"^{LOG_DIRECTORY}/(\d{{20}})\.checkpoint\.json$")


class Checkpoint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The sum of a log up to a version: read instead of it, never believed before it."""

    version: int
    head: str
    schema_version: int
    ranges: dict[StreamName, OffsetRange]
    digests: dict[StreamName, str]
    files: list[DataFile]
    views: Coverages = {}


def commit_name(version: int) -> str:
    return f"{LOG_DIRECTORY}/{version:020d}.json"


def checkpoint_name(version: int) -> str:
    return f"{LOG_DIRECTORY}/{version:020d}.checkpoint.json"


class Table:
    """One table, as far as this reader or writer has read its log."""

    def __init__(self, store: TableStore) -> None:
        self.store = store
        self.writer = secrets.token_hex(8)
        self.state = TableState()
        self._shown = NO_VERSION
        """Up to this version plain readers see what they should."""
        self._places: dict[str, str] = {}
        """Where plain readers find each file that this one has read of."""

    @classmethod
    def open(cls, store: TableStore) -> Table:
        """Raises NoTable where there is none, TableDamaged where its log cannot be believed."""
        table = cls(store)
        if not table.refresh().exists:
            raise NoTable("there is no table here", at=store.uri(""))
        return table

    @classmethod
    def create(cls, store: TableStore, *, schema_version: int, at_ms: int) -> Table:
        """Make an empty table. Raises TableExists."""
        table = cls(store)
        if table.refresh().exists:
            raise TableExists("there is a table already", at=store.uri(""))
        table.commit(VersionProposal(TableOperation.CREATE, schema_version, base=-1), at_ms=at_ms)
        return table

    @classmethod
    def open_or_create(cls, store: TableStore, *, schema_version: int, at_ms: int) -> Table:
        """Open a table, and make it first if nobody did."""
        table = cls(store)
        if not table.refresh().exists:
            try:
                return cls.create(store, schema_version=schema_version, at_ms=at_ms)
            except TableError:  # another writer did, at this very moment
                return cls.open(store)
        return table

    def refresh(self) -> TableState:
        """Read what was committed since, and return what the table is now."""
        if not self.state.exists:
            self.state = self._from_checkpoint()
            self._shown = self.state.version
            self._places = {file.path: file.place for file in self.state.files.values()}
        while (data := self._bytes_of(self.state.version + 1)) is not None:
            commit = decode_commit(data)
            self.state = fold(self.state, commit, data)
            self._places |= {file.path: file.place for file in commit.add}
        return self.state

    def at_version(self, version: int) -> TableState:
        """Return what the table was. Raises NoTable for a version that is not there."""
        state = TableState()
        while state.version < version:
            data = self._bytes_of(state.version + 1)
            if data is None:
                raise NoTable("there is no such version", version=version, newest=state.version)
            state = fold(state, decode_commit(data), data)
        return state

    def history(self) -> list[Commit]:
        """Read every commit, the first one first."""
        found: list[Commit] = []
        while (data := self._bytes_of(len(found))) is not None:
            found.append(decode_commit(data))
        return found

    def rows_files(self) -> set[str]:
        """Name every file of rows that any version had."""
        added = (file for commit in self.history() for file in commit.add)
        return {file.path for file in added if file.kind == FileKind.ROWS}

    def commit(self, proposal: VersionProposal, *, at_ms: int) -> Commit:
        """Make what is proposed the next version, or raise and change nothing.

        Raises RangeTaken and FileGone where another writer did the work already. After
        CommitUnknown the commit may have happened: whoever goes on reads the log first.
        """
        for _ in range(ATTEMPTS_MAX):
            state = self.refresh()
            commit = plan_commit(state, proposal, writer=self.writer, at_ms=at_ms)
            if self._create(commit):
                self.show()
                self._checkpoint()
                return commit
        raise Contended("other writers were always quicker", attempts=ATTEMPTS_MAX)

    def _create(self, commit: Commit) -> bool:
        data = encode_commit(commit)
        try:
            return self.store.create(commit_name(commit.version), data)
        except (OSError, TableError) as error:
            try:
                there = self._bytes_of(commit.version)
            except (OSError, TableError):
                there = None
            if there == data:  # it happened, and only the answer was lost
                return True
            raise CommitUnknown(
                "the commit was not answered", version=commit.version, cause=error
            ) from error

    def show(self) -> None:
        """Let plain readers see this version: what is new, and not what was replaced.

        Done after every commit, from the last checkpoint on. So a writer that died before it is
        made up for by the next one, and before the next checkpoint. It looks again at the end:
        what another writer replaced and hid meanwhile was perhaps shown here after that.
        """
        while self._shown < self.refresh().version:
            for version in range(self._shown + 1, self.state.version + 1):
                self._show_version(self._commit_of(version))
            self._shown = self.state.version

    def _show_version(self, commit: Commit) -> None:
        for file in commit.add:
            if file.place and file.path in self.state.files:
                self.store.show(file.path, file.place)
        for path in commit.remove:
            if self._places[path]:
                self.store.hide(path, self._places[path])

    def _commit_of(self, version: int) -> Commit:
        data = self._bytes_of(version)
        if data is None:
            raise TableDamaged("a commit is missing", version=version)
        return decode_commit(data)

    def _bytes_of(self, version: int) -> bytes | None:
        try:
            return self.store.read(commit_name(version))
        except FileNotFoundError:
            return None

    def _checkpoint(self) -> None:
        state = self.state
        if state.version % CHECKPOINT_EVERY or not state.version:
            return
        checkpoint = Checkpoint(
            state.version,
            state.head,
            state.schema_version,
            state.ranges,
            state.digests,
            list(state.files.values()),
            state.views,
        )
        self.store.create(checkpoint_name(state.version), msgspec.json.encode(checkpoint))

    def _from_checkpoint(self) -> TableState:
        """Begin with the newest checkpoint that its commit confirms, or with nothing."""
        found = [_CHECKPOINT_NAME.match(each.name) for each in self.store.names(LOG_DIRECTORY)]
        for version in sorted((int(each[1]) for each in found if each), reverse=True):
            state = self._checkpointed(version)
            if state is not None:
                return state
        self._check_no_hole()
        return TableState()

    def _checkpointed(self, version: int) -> TableState | None:
        data = self._bytes_of(version)
        try:
            read = self.store.read(checkpoint_name(version))
            checkpoint = msgspec.json.decode(read, type=Checkpoint)
        except (FileNotFoundError, msgspec.MsgspecError):
            return None
        if data is None or digest_of(data) != checkpoint.head or checkpoint.version != version:
            return None
        return TableState(
            Version(checkpoint.version),
            checkpoint.head,
            checkpoint.schema_version,
            checkpoint.ranges,
            checkpoint.digests,
            {file.path: file for file in checkpoint.files},
            checkpoint.views,
        )

    def _check_no_hole(self) -> None:
        """A log whose first commits are gone must not look like no table at all."""
        found = [_COMMIT_NAME.match(each.name) for each in self.store.names(LOG_DIRECTORY)]
        versions = {int(each[1]) for each in found if each}
        missing = set(range(max(versions, default=-1) + 1)) - versions
        if missing:
            raise TableDamaged("commits are missing", first=min(missing), newest=max(versions))
