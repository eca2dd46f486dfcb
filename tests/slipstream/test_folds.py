"""Every fold backend keeps the same contract."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from slipstream.errors import FoldInUse, SnapshotError
from slipstream.folds import SnapshotStore, fold_backend, stale_keys
from slipstream.types import NO_CURSOR, KvUpdate, UpdateKind, VersionToken, WatchCursor
from tests.slipstream.fold_cases import FOLDS, at, contents, delete, put

pytestmark = pytest.mark.parametrize("backend", FOLDS.values(), ids=FOLDS.keys())

Backend = type[SnapshotStore]


def test_an_absent_fold_loads_empty_without_a_cursor(backend: Backend, tmp_path: Path) -> None:
    with backend.load(tmp_path / "fold") as fold:
        assert fold.cursor == NO_CURSOR
        assert fold.range() == []
        assert fold.get("a") is None


def test_data_and_cursor_survive_a_reopen_together(backend: Backend, tmp_path: Path) -> None:
    with backend.load(tmp_path / "fold") as fold:
        fold.apply([put("a", b"1", 1), put("b", b"2", 2)], at(2))
        fold.apply([delete("a", 3), put("c", b"", 4)], at(4))
    with backend.load(tmp_path / "fold") as fold:
        assert fold.cursor == at(4)
        assert contents(fold) == {"b": b"2", "c": b""}


def test_the_last_update_of_a_key_in_a_batch_wins(backend: Backend, tmp_path: Path) -> None:
    with backend.load(tmp_path / "fold") as fold:
        fold.apply([put("a", b"1", 1), delete("a", 2), put("a", b"3", 3), put("b", b"", 4)], at(4))
        fold.apply([put("b", b"x", 5), delete("b", 6)], at(6))
        assert contents(fold) == {"a": b"3"}


def test_a_batch_may_be_empty_and_still_move_the_cursor(backend: Backend, tmp_path: Path) -> None:
    with backend.load(tmp_path / "fold") as fold:
        fold.apply([], at(9))
    with backend.load(tmp_path / "fold") as fold:
        assert fold.cursor == at(9)


@pytest.mark.parametrize("raw", [b"", b"12345678", b"1234567890"], ids=["unknown", "u64", "stamp"])
def test_versions_of_every_width_come_back(backend: Backend, tmp_path: Path, raw: bytes) -> None:
    with backend.load(tmp_path / "fold") as fold:
        fold.apply([KvUpdate(UpdateKind.PUT, "k", b"v", VersionToken(raw))], at(1))
    with backend.load(tmp_path / "fold") as fold:
        entry = fold.get("k")
        assert entry is not None
        assert entry.version == VersionToken(raw)


def test_a_bound_cursor_comes_back_whole(backend: Backend, tmp_path: Path) -> None:
    cursor = WatchCursor(b"1234567890", b"ABCDEFGH", b"abcdefgh", 77)
    with backend.load(tmp_path / "fold") as fold:
        fold.apply([], cursor)
    with backend.load(tmp_path / "fold") as fold:
        assert fold.cursor == cursor


def test_ranges_are_ordered_by_bytes_and_end_with_their_prefix(
    backend: Backend, tmp_path: Path
) -> None:
    keys = ["a.b", "a", "a.ä", "a.z", "b", "ab", "a\U0010ffff"]
    with backend.load(tmp_path / "fold") as fold:
        fold.apply([put(key, key.encode(), n + 1) for n, key in enumerate(keys)], at(9))
        for prefix in ["", "a", "a.", "b", "zz"]:
            wanted = sorted((k for k in keys if k.startswith(prefix)), key=str.encode)
            assert [entry.key for entry in fold.range(prefix)] == wanted
            assert list(fold.keys(prefix)) == wanted


def test_iteration_streams_past_any_page(backend: Backend, tmp_path: Path) -> None:
    keys = [f"k.{n:05}" for n in range(2_500)]
    with backend.load(tmp_path / "fold") as fold:
        fold.apply([put(key, b"v", n + 1) for n, key in enumerate(keys)], at(len(keys)))
        assert [entry.key for entry in fold.iterate("k.")] == keys
        assert next(iter(fold.iterate("k.02"))).key == "k.02000"


def test_stale_keys_are_those_that_the_bucket_lost(backend: Backend, tmp_path: Path) -> None:
    with backend.load(tmp_path / "fold") as fold:
        fold.apply([put("a", b"1", 1), put("b", b"1", 2), put("c", b"1", 3)], at(3))
        assert list(stale_keys(fold.keys(), {"b"})) == ["a", "c"]


@pytest.mark.parametrize("seed", range(5))
def test_a_fold_equals_a_naive_twin_through_reopens(
    backend: Backend, tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    twin: dict[str, bytes] = {}
    revision = 0
    for _ in range(4):
        with backend.load(tmp_path / "fold") as fold:
            assert contents(fold) == twin
            for _ in range(10):
                batch = []
                for _ in range(rng.randrange(30)):
                    revision += 1
                    key = f"k.{rng.randrange(40)}"
                    if rng.random() < 0.3:
                        batch.append(delete(key, revision))
                        twin.pop(key, None)
                    else:
                        twin[key] = rng.randbytes(rng.randrange(20))
                        batch.append(put(key, twin[key], revision))
                fold.apply(batch, at(revision))
            assert contents(fold) == twin
            assert fold.cursor == at(revision)


def test_what_another_program_left_there_is_refused(backend: Backend, tmp_path: Path) -> None:
    (tmp_path / "fold").write_bytes(b"certainly not a fold of any kind" * 200)
    with pytest.raises(SnapshotError):
        backend.load(tmp_path / "fold")


def test_a_copy_opens_at_the_same_cursor_with_the_same_data(
    backend: Backend, tmp_path: Path
) -> None:
    with backend.load(tmp_path / "fold") as fold:
        fold.apply([put(f"k.{n}", b"v", n + 1) for n in range(100)], at(100))
        fold.apply([delete("k.5", 101)], at(101))
        (tmp_path / "copy").mkdir()
        fold.write_copy(tmp_path / "copy")
        fold.apply([put("later", b"x", 102)], at(102))
        wanted = {key: value for key, value in contents(fold).items() if key != "later"}
    member = backend.artifact_member
    with backend.load(tmp_path / "copy" / member if member else tmp_path / "copy") as copy:
        assert copy.cursor == at(101)
        assert contents(copy) == wanted


def test_a_closed_fold_refuses_instead_of_forgetting(backend: Backend, tmp_path: Path) -> None:
    fold = backend.load(tmp_path / "fold")
    fold.close()
    fold.close()
    with pytest.raises(SnapshotError):
        fold.apply([put("a", b"1", 1)], at(1))


def test_a_fold_has_one_owner_until_it_is_closed(backend: Backend, tmp_path: Path) -> None:
    with backend.load(tmp_path / "fold") as fold:
        fold.apply([put("a", b"1", 1)], at(1))
        with pytest.raises(FoldInUse):
            backend.load(tmp_path / "fold")
        fold.apply([put("b", b"1", 2)], at(2))
    with backend.load(tmp_path / "fold") as fold:
        assert contents(fold) == {"a": b"1", "b": b"1"}
    assert not list(tmp_path.glob(".*"))


def test_a_fold_is_found_by_name(backend: Backend, tmp_path: Path) -> None:
    names = {"append-log": "log"}
    assert fold_backend(names.get(backend.backend, backend.backend)) is backend
