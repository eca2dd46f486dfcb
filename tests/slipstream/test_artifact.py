"""Artifacts: what is exported is what is imported, or nothing is."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from slipstream.artifact import ExportManifest, export_to, import_artifact
from slipstream.artifact.manifest import DATA_NAME, MANIFEST_NAME, ArtifactFile
from slipstream.errors import ArtifactInvalid, ArtifactMissing, DestinationExists
from slipstream.folds import SnapshotStore
from slipstream.types import WatchCursor
from tests.slipstream.fold_cases import FOLDS, at, contents, delete, put

Backend = type[SnapshotStore]
every_backend = pytest.mark.parametrize("backend", FOLDS.values(), ids=FOLDS.keys())


def exported(backend: Backend, tmp_path: Path) -> ExportManifest:
    with backend.load(tmp_path / "fold") as fold:
        fold.apply([put(f"k.{n}", b"v" * n, n + 1) for n in range(300)], at(300))
        fold.apply([delete("k.7", 301)], WatchCursor(at(301).position, b"A" * 8, b"B" * 8, 5))
        return export_to(fold, tmp_path / "artifact")


@every_backend
def test_an_export_imports_to_the_same_fold_and_leaves_no_litter(
    backend: Backend, tmp_path: Path
) -> None:
    manifest = exported(backend, tmp_path)
    assert manifest.rank == 301
    assert manifest.backend == backend.backend
    imported = import_artifact(tmp_path / "artifact", tmp_path / "second", backend)
    assert imported == manifest
    with backend.load(tmp_path / "fold") as fold, backend.load(tmp_path / "second") as second:
        assert second.cursor == fold.cursor == manifest.cursor
        assert contents(second) == contents(fold)
        second.apply([put("more", b"1", 302)], at(302))
        assert fold.get("more") is None
    assert not list(tmp_path.glob(".*"))


@every_backend
def test_an_empty_fold_travels_too(backend: Backend, tmp_path: Path) -> None:
    with backend.load(tmp_path / "fold") as fold:
        assert export_to(fold, tmp_path / "artifact").rank == 0
    import_artifact(tmp_path / "artifact", tmp_path / "second", backend)
    with backend.load(tmp_path / "second") as second:
        assert contents(second) == {}


def flip_data(artifact: Path) -> None:
    largest = max((artifact / DATA_NAME).rglob("*"), key=lambda path: path.stat().st_size)
    data = bytearray(largest.read_bytes())
    data[len(data) // 2] ^= 1
    largest.unlink()  # An export may share its files with the fold.
    largest.write_bytes(data)


def cut_data(artifact: Path) -> None:
    largest = max((artifact / DATA_NAME).rglob("*"), key=lambda path: path.stat().st_size)
    data = largest.read_bytes()
    largest.unlink()
    largest.write_bytes(data[:-1])


def drop_data(artifact: Path) -> None:
    max((artifact / DATA_NAME).rglob("*"), key=lambda path: path.stat().st_size).unlink()


def rewrite_manifest(change: Callable[[dict[str, object]], None]) -> Callable[[Path], None]:
    def rewrite(artifact: Path) -> None:
        manifest = json.loads((artifact / MANIFEST_NAME).read_bytes())
        change(manifest)
        raw = json.dumps(manifest, separators=(",", ":")).encode()
        (artifact / MANIFEST_NAME).write_bytes(raw)

    return rewrite


def scribble(artifact: Path) -> None:
    (artifact / MANIFEST_NAME).write_bytes(b"{")


def no_files(manifest: dict[str, object]) -> None:
    manifest["files"] = []


def escape(manifest: dict[str, object]) -> None:
    files = manifest["files"]
    assert isinstance(files, list)
    files[0]["path"] = "../escape"


DAMAGE: dict[str, Callable[[Path], None]] = {
    "a flipped byte": flip_data,
    "a missing byte": cut_data,
    "a missing file": drop_data,
    "another cursor": rewrite_manifest(
        lambda manifest: manifest.update(cursor_hex=at(999).encode().hex())
    ),
    "another backend": rewrite_manifest(lambda manifest: manifest.update(backend="fjall")),
    "another format": rewrite_manifest(lambda manifest: manifest.update(format_generation=9)),
    "another schema": rewrite_manifest(lambda manifest: manifest.update(schema_version=9)),
    "a path outside": rewrite_manifest(escape),
    "no files": rewrite_manifest(no_files),
    "no cursor": rewrite_manifest(lambda manifest: manifest.update(cursor_hex="zz")),
    "more members": rewrite_manifest(lambda manifest: manifest.update(extra=1)),
    "no manifest": scribble,
}


@every_backend
@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_a_bad_artifact_never_becomes_a_fold(
    backend: Backend, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    exported(backend, tmp_path)
    damage(tmp_path / "artifact")
    with pytest.raises(ArtifactInvalid):
        import_artifact(tmp_path / "artifact", tmp_path / "second", backend)
    assert not (tmp_path / "second").exists()
    assert not list(tmp_path.glob(".*"))


def test_nothing_is_written_over_and_nothing_is_imported_from_nowhere(tmp_path: Path) -> None:
    backend = FOLDS["append-log"]
    exported(backend, tmp_path)
    with backend.load(tmp_path / "fold") as fold, pytest.raises(DestinationExists):
        export_to(fold, tmp_path / "artifact")
    with pytest.raises(DestinationExists):
        import_artifact(tmp_path / "artifact", tmp_path / "fold", backend)
    with pytest.raises(ArtifactMissing):
        import_artifact(tmp_path / "nowhere", tmp_path / "second", backend)


def test_an_artifact_of_another_engine_is_refused_before_it_is_opened(tmp_path: Path) -> None:
    exported(FOLDS["append-log"], tmp_path)
    with pytest.raises(ArtifactInvalid) as caught:
        import_artifact(tmp_path / "artifact", tmp_path / "second", FOLDS["sqlite"])
    assert caught.value.facts == {"artifact": "append-log/1", "wanted": "sqlite/1"}


@every_backend
def test_a_copy_that_lost_its_tail_is_not_exported(
    backend: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with backend.load(tmp_path / "fold") as fold:
        fold.apply([put("a", b"1", 1)], at(1))
        (tmp_path / "old").mkdir()
        fold.write_copy(tmp_path / "old")
        fold.apply([put("b", b"1", 2)], at(2))

        def stale_copy(_: SnapshotStore, directory: Path) -> None:
            for file in (tmp_path / "old").iterdir():
                file.rename(directory / file.name)

        monkeypatch.setattr(backend, "write_copy", stale_copy)
        with pytest.raises(ArtifactInvalid, match="cursor"):
            export_to(fold, tmp_path / "artifact")
    assert not (tmp_path / "artifact").exists()
    assert not list(tmp_path.glob(".*"))


def test_a_manifest_has_one_encoding_and_its_address_is_its_content() -> None:
    files = (ArtifactFile("a", 1, "0" * 64),)
    manifest = ExportManifest(1, "sqlite", 1, at(7).encode().hex(), files)
    assert ExportManifest.decode(manifest.encode()) == manifest
    assert len(manifest.address) == 16
    with pytest.raises(ArtifactInvalid, match="one encoding"):
        ExportManifest.decode(manifest.encode().replace(b",", b", "))
