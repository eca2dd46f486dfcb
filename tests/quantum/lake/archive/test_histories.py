"""Any history of two replicas, archived by either at any time, gives the log that was committed."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from clustor.log.reader import read_entries
from clustor.log.types import Entry
from quantum.archive import open_objects, verify_prg
from quantum.lake.archive import DirectoryKeys, IndexRange
from quantum.lake.opening import open_source
from tests.quantum.lake.archive.boxes import PRG, LogBox, entries, keys_at


class History:
    """Two logs and what was committed, in a plain list."""

    def __init__(self, rng: random.Random, root: Path) -> None:
        self.rng = rng
        keys = keys_at(root)
        self.boxes = [LogBox(root / name, keys, segment_bytes=8_192) for name in ("a", "b")]
        self.objects = open_objects((root / "archive").as_uri())
        self.committed: list[Entry] = []
        self.term = 1

    def write(self) -> None:
        """Append to one log what may never be committed, over what was not."""
        box = self.rng.choice(self.boxes)
        self.term += self.rng.random() < 0.5
        last = box.opened.log.last_index
        first = len(self.committed) + 1
        if last >= first and box.opened.log.last_term == self.term:
            first = last + 1
        count = self.rng.randint(1, 40)
        fresh = entries(first, first + count - 1, self.term, self.rng.randint(0, 200))
        box.append(fresh, commit=False)

    def commit(self) -> None:
        """Commit a part of one log's tail; the other takes it over."""
        box = self.rng.choice(self.boxes)
        first, last = len(self.committed) + 1, box.opened.log.last_index
        if last < first or box.opened.log.last_term != self.term:
            return
        storage, keys = box.opened.storage, box.keys
        through = self.rng.randint(first, last)
        agreed = list(read_entries(storage, keys, box.opened.log.entries, first, through))
        other = self.boxes[1 - self.boxes.index(box)]
        other.append(agreed, commit=False)
        self.committed += agreed
        for each in self.boxes:
            each.committed = len(self.committed)

    def seal(self) -> None:
        self.rng.choice(self.boxes).seal()

    def archive(self) -> None:
        self.rng.choice(self.boxes).archive(self.objects)

    def compact(self) -> None:
        """As far as the archive is: the log waited for it."""
        box = self.rng.choice(self.boxes)
        archived = box.archiver(self.objects).refresh().last
        if archived:
            box.compact(self.rng.randint(1, archived))

    def close(self) -> None:
        for box in self.boxes:
            box.opened.close()


@pytest.mark.parametrize(
    "seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(4, 100))]
)
def test_an_archive_of_any_history_is_what_was_committed(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    history = History(rng, tmp_path)
    steps = [history.write] * 4 + [history.commit] * 4 + [history.seal, history.archive] * 2
    for _ in range(120):
        rng.choice([*steps, history.compact])()
    for box in history.boxes:
        box.seal()
    history.archive()
    source = open_source((tmp_path / "archive").as_uri(), DirectoryKeys(str(tmp_path)))
    last = source.bounds(PRG).last
    assert last > 0
    found = list(source.entries(IndexRange(PRG, 1, last)))
    assert found == history.committed[:last]
    for piece in source.bounds(PRG).pieces:
        part = list(source.entries(IndexRange(PRG, piece.first, piece.last)))
        assert part == history.committed[piece.first - 1 : piece.last]
    assert verify_prg(history.objects, PRG, keys_at(tmp_path)).sound
    history.close()
