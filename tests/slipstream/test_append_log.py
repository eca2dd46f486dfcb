"""The append log, byte by byte: golden files, torn tails, damage, and a writer that gives up."""

from __future__ import annotations

import errno
import os
import struct
import zlib
from pathlib import Path

import pytest

from slipstream.errors import Corrupted, InvalidFormat, Misuse, SnapshotIo
from slipstream.folds import AppendLogSnapshot, SnapshotWriter, WriterState
from slipstream.folds.log_format import encode_update, replay_log
from slipstream.types import KvUpdate, UpdateKind, VersionToken, WatchCursor
from tests.slipstream.fold_cases import at, contents, delete, put

HEADER = b"PGSS" + struct.pack("<H", 1)


def record(kind: int, payload: bytes) -> bytes:
    """A record as the specification draws it, written without the code under test."""
    body = bytes([kind]) + payload
    return struct.pack("<I", zlib.crc32(body)) + body


def golden_put(key: bytes, value: bytes, version: bytes) -> bytes:
    sized = struct.pack("<H", len(key)) + key + struct.pack("<I", len(value)) + value
    return record(1, sized + bytes([len(version)]) + version)


def golden_delete(key: bytes, version: bytes) -> bytes:
    return record(2, struct.pack("<H", len(key)) + key + bytes([len(version)]) + version)


def golden_cursor(cursor: bytes) -> bytes:
    return record(3, bytes([len(cursor)]) + cursor)


def u64(number: int) -> bytes:
    return struct.pack(">Q", number)


GOLDEN = (
    HEADER
    + golden_put(b"a", b"one", u64(1))
    + golden_put(b"b", b"", b"0123456789")
    + golden_delete(b"a", u64(3))
    + golden_put("ä".encode(), b"x" * 70_000, b"")
    + golden_cursor(u64(4))
)
GOLDEN_UPDATES = [
    put("a", b"one", 1),
    KvUpdate(UpdateKind.PUT, "b", b"", VersionToken(b"0123456789")),
    delete("a", 3),
    KvUpdate(UpdateKind.PUT, "ä", b"x" * 70_000),
]


def test_the_file_is_the_one_that_the_format_says(tmp_path: Path) -> None:
    with AppendLogSnapshot.load(tmp_path / "log") as fold:
        fold.apply(GOLDEN_UPDATES, at(4))
    assert (tmp_path / "log").read_bytes() == GOLDEN


def test_a_golden_file_is_read_and_then_compacted_in_order_of_keys(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(GOLDEN)
    with AppendLogSnapshot.load(tmp_path / "log") as fold:
        assert contents(fold) == {"b": b"", "ä": b"x" * 70_000}
        assert fold.cursor == at(4)
    compacted = (
        HEADER
        + golden_put(b"b", b"", b"0123456789")
        + golden_put("ä".encode(), b"x" * 70_000, b"")
        + golden_cursor(u64(4))
    )
    assert (tmp_path / "log").read_bytes() == compacted
    before = (tmp_path / "log").stat().st_ino
    AppendLogSnapshot.load(tmp_path / "log").close()
    assert (tmp_path / "log").stat().st_ino == before, "a compact log is not rewritten"


def test_a_purge_is_written_as_a_delete() -> None:
    purge = KvUpdate(UpdateKind.PURGE, "a", b"", VersionToken.from_u64(3))
    assert encode_update(purge) == golden_delete(b"a", u64(3))


def test_a_log_cut_anywhere_keeps_its_whole_records_and_their_cursor(tmp_path: Path) -> None:
    """Every possible torn tail: never an error, never a cursor without its data."""
    first = HEADER + golden_put(b"a", b"1", u64(1)) + golden_cursor(u64(1))
    second = golden_put(b"b", b"2", u64(2)) + golden_delete(b"a", u64(3)) + golden_cursor(u64(3))
    whole = first + second
    for cut in range(len(whole) + 1):
        (tmp_path / "log").write_bytes(whole[:cut])
        with AppendLogSnapshot.load(tmp_path / "log") as fold:
            if cut == len(whole):
                assert (contents(fold), fold.cursor) == ({"b": b"2"}, at(3))
            elif cut >= len(first):
                assert fold.cursor == at(1)
                assert contents(fold)["b" if "a" not in contents(fold) else "a"]
            else:
                assert fold.cursor == WatchCursor()
            # The tail is delivered again, and the fold is as if nothing had happened.
            fold.apply([put("b", b"2", 2), delete("a", 3)], at(3))
            assert contents(fold) == {"b": b"2"}
        with AppendLogSnapshot.load(tmp_path / "log") as fold:
            assert (contents(fold), fold.cursor) == ({"b": b"2"}, at(3))


def test_any_flipped_byte_before_the_last_record_is_damage(tmp_path: Path) -> None:
    body = [
        golden_put(b"key-a", b"value", u64(1)),
        golden_delete(b"key-b", u64(2)),
        golden_cursor(u64(2)),
        golden_put(b"key-c", b"value", u64(3)),
    ]
    last = golden_cursor(u64(3))
    whole = HEADER + b"".join(body) + last
    for position in range(len(HEADER), len(whole) - len(last)):
        broken = bytearray(whole)
        broken[position] ^= 0x40
        (tmp_path / "log").write_bytes(broken)
        with pytest.raises(Corrupted):
            AppendLogSnapshot.load(tmp_path / "log")
        assert (tmp_path / "log").read_bytes() == broken, "evidence is not touched"


def test_a_flipped_byte_in_the_last_record_takes_back_its_cursor(tmp_path: Path) -> None:
    first = HEADER + golden_put(b"a", b"1", u64(1)) + golden_cursor(u64(1))
    whole = first + golden_cursor(u64(2))
    for position in range(len(first), len(whole)):
        broken = bytearray(whole)
        broken[position] ^= 0x40
        (tmp_path / "log").write_bytes(broken)
        try:
            with AppendLogSnapshot.load(tmp_path / "log") as fold:
                assert fold.cursor == at(1)
        except Corrupted:
            # Its length now ends inside the file: that is no torn tail.
            assert position == len(first) + 5


OTHERS = {
    "another magic": (b"XXSS\x01\x00", InvalidFormat),
    "another version": (b"PGSS\x02\x00", InvalidFormat),
    "a short stranger": (b"abc", InvalidFormat),
}


@pytest.mark.parametrize(("data", "error"), OTHERS.values(), ids=OTHERS.keys())
def test_another_kind_of_file_is_refused(
    tmp_path: Path, data: bytes, error: type[Exception]
) -> None:
    (tmp_path / "log").write_bytes(data)
    with pytest.raises(error):
        AppendLogSnapshot.load(tmp_path / "log")


def test_zeroes_that_a_power_loss_left_at_the_end_are_a_torn_tail() -> None:
    first = HEADER + golden_put(b"a", b"1", u64(1)) + golden_cursor(u64(1))
    log = replay_log(first + bytes(4096))
    assert (log.clean_bytes, log.cursor) == (len(first), at(1))


def test_compaction_comes_due_and_keeps_the_log_near_its_fold(tmp_path: Path) -> None:
    with AppendLogSnapshot.load(tmp_path / "log", compact_bytes=10_000) as fold:
        for revision in range(1, 2_000):
            fold.apply([put(f"k.{revision % 10}", b"v" * 50, revision)], at(revision))
            assert (tmp_path / "log").stat().st_size < 25_000
        wanted = contents(fold)
    with AppendLogSnapshot.load(tmp_path / "log") as fold:
        assert (contents(fold), fold.cursor) == (wanted, at(1_999))
    assert not list(tmp_path.glob(".*")), "no temporary file stays"


def test_a_log_without_waste_is_not_rewritten_and_one_with_waste_is(tmp_path: Path) -> None:
    with AppendLogSnapshot.load(tmp_path / "log", compact_bytes=1_000) as fold:
        born = (tmp_path / "log").stat().st_ino
        for start in range(0, 2_000, 100):
            batch = [put(f"k.{n}", b"v", n + 1) for n in range(start, start + 100)]
            fold.apply(batch, at(start + 100))
        assert (tmp_path / "log").stat().st_ino == born
        for start in range(0, 6_000, 100):
            batch = [delete(f"k.{n % 2_000}", n) for n in range(start, start + 100)]
            fold.apply(batch, at(2_000 + start + 100))
        assert (tmp_path / "log").stat().st_size < 5_000
    with AppendLogSnapshot.load(tmp_path / "log") as fold:
        assert (contents(fold), fold.cursor) == ({}, at(8_000))


def test_a_writer_appends_until_compaction_is_due(tmp_path: Path) -> None:
    writer = SnapshotWriter(tmp_path / "log", clean_bytes=0, compact_bytes=100)
    writer.write_update(put("a", b"x", 1))
    assert not writer.checkpoint(at(1))
    writer.write_update(put("a", b"y" * 100, 2))
    assert writer.checkpoint(at(2))
    states = [writer.state]
    log = replay_log((tmp_path / "log").read_bytes())
    writer.compact(log.entries, log.cursor)
    states.append(writer.state)
    assert states == [WriterState.NEEDS_COMPACT, WriterState.APPENDING]
    writer.close()
    assert replay_log((tmp_path / "log").read_bytes()).compact


def test_a_failed_write_leaves_no_trace_and_may_be_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with AppendLogSnapshot.load(tmp_path / "log") as fold:
        fold.apply([put("a", b"1", 1)], at(1))
        before = (tmp_path / "log").read_bytes()
        real_write = os.write

        def disk_full(descriptor: int, data: bytes) -> int:
            real_write(descriptor, data[: len(data) // 2])
            raise OSError(errno.ENOSPC, "no space left")

        monkeypatch.setattr(os, "write", disk_full)
        with pytest.raises(SnapshotIo):
            fold.apply([put("b", b"2", 2)], at(2))
        monkeypatch.setattr(os, "write", real_write)
        assert (tmp_path / "log").read_bytes() == before
        assert (contents(fold), fold.cursor) == ({"a": b"1"}, at(1))
        fold.apply([put("b", b"2", 2)], at(2))
    with AppendLogSnapshot.load(tmp_path / "log") as fold:
        assert (contents(fold), fold.cursor) == ({"a": b"1", "b": b"2"}, at(2))


def test_a_writer_that_cannot_reopen_its_log_is_poisoned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fold = AppendLogSnapshot.load(tmp_path / "log", compact_bytes=1)
    real_open = os.open

    def refuse(path: object, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_APPEND:
            raise OSError(errno.EMFILE, "too many open files")
        return real_open(path, flags, mode)  # type: ignore[arg-type]  # passed on as it came

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(SnapshotIo):
        fold.apply([put("a", b"1", 1)], at(1))
    monkeypatch.setattr(os, "open", real_open)
    assert fold.writer_state is WriterState.POISONED
    with pytest.raises(SnapshotIo, match="poisoned"):
        fold.apply([put("b", b"2", 2)], at(2))
    fold.close()
    with AppendLogSnapshot.load(tmp_path / "log") as again:
        assert (contents(again), again.cursor) == ({"a": b"1"}, at(1))


def test_a_compaction_that_finds_no_room_is_put_off_and_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    with AppendLogSnapshot.load(tmp_path / "log", compact_bytes=1) as fold:
        monkeypatch.setattr(os, "fsync", no_room)
        fold.apply([put("a", b"1", 1)], at(1))
        assert fold.writer_state is WriterState.APPENDING
        monkeypatch.undo()
        fold.apply([put("b", b"2", 2)], at(2))
    with AppendLogSnapshot.load(tmp_path / "log") as fold:
        assert (contents(fold), fold.cursor) == ({"a": b"1", "b": b"2"}, at(2))
    assert not list(tmp_path.glob(".*"))


def test_a_key_beyond_the_format_is_refused(tmp_path: Path) -> None:
    with AppendLogSnapshot.load(tmp_path / "log") as fold:
        with pytest.raises(Misuse):
            fold.apply([put("k" * 65_536, b"", 1)], at(1))
        assert fold.cursor == WatchCursor()
