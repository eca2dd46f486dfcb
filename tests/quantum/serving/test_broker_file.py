"""`broker.json`: where a cluster archives to is written down, and nothing else changes with it."""

from __future__ import annotations

from pathlib import Path

import msgspec

from quantum.tenants.broker_file import (
    BROKER_FILE,
    ArchiveEntry,
    BackupsEntry,
    TenantEntry,
    prepare_broker,
    read_broker_file,
    set_archive,
)

DEV = TenantEntry("dev", 2)


def test_an_archive_is_remembered_changed_and_forgotten(tmp_path: Path) -> None:
    prepare_broker(tmp_path, DEV)
    assert set_archive(tmp_path, None).archive is None
    assert set_archive(tmp_path, "file:///a").archive == ArchiveEntry("file:///a")
    assert prepare_broker(tmp_path, DEV).archive == ArchiveEntry("file:///a")
    assert set_archive(tmp_path, "file:///b").archive == ArchiveEntry("file:///b")
    assert read_broker_file(tmp_path).tenants == (DEV,)
    assert set_archive(tmp_path, None).archive is None
    assert read_broker_file(tmp_path).archive is None


def test_the_numbers_beside_an_archive_stay(tmp_path: Path) -> None:
    prepare_broker(tmp_path, DEV)
    tuned = ArchiveEntry("file:///a", flush_seconds=1, hold_bytes_max=1 << 20)
    described = msgspec.structs.replace(read_broker_file(tmp_path), archive=tuned)
    (tmp_path / BROKER_FILE).write_bytes(msgspec.json.encode(described))
    assert set_archive(tmp_path, "file:///a").archive == tuned
    assert read_broker_file(tmp_path).archive == tuned


def test_who_asks_for_no_backups_writes_what_the_release_before_reads(tmp_path: Path) -> None:
    prepare_broker(tmp_path, DEV)
    set_archive(tmp_path, "file:///a")
    assert b"backups" not in (tmp_path / BROKER_FILE).read_bytes()
    asked = msgspec.structs.replace(read_broker_file(tmp_path), backups=BackupsEntry(60))
    (tmp_path / BROKER_FILE).write_bytes(msgspec.json.encode(asked))
    set_archive(tmp_path, "file:///b")
    assert read_broker_file(tmp_path).backups == BackupsEntry(60)
