"""Import an artifact: nothing of it becomes the fold before all of it is verified."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

from blake3 import blake3

from slipstream.artifact.files import fold_path, new_stage, publish
from slipstream.artifact.manifest import (
    DATA_NAME,
    MANIFEST_NAME,
    ArtifactFile,
    ExportManifest,
)
from slipstream.errors import ArtifactInvalid, ArtifactMissing, DestinationExists, SnapshotError
from slipstream.folds.store import SnapshotStore

_CHUNK: Final = 1024 * 1024


def read_manifest(artifact: Path) -> ExportManifest:
    """Read the manifest of an artifact directory."""
    try:
        return ExportManifest.decode((artifact / MANIFEST_NAME).read_bytes())
    except FileNotFoundError as error:
        raise ArtifactMissing("no artifact here", path=str(artifact)) from error


def import_artifact(
    artifact: Path | str, destination: Path | str, backend: type[SnapshotStore]
) -> ExportManifest:
    """Make a fold of an artifact at `destination`, which must not exist yet.

    Copies the files beside the destination, checks each digest on the way, opens the copy, and
    requires the manifest's cursor of it; then one rename makes it the fold. Raises
    `ArtifactInvalid` and leaves nothing behind otherwise.
    """
    artifact, destination = Path(artifact), Path(destination)
    if destination.exists():
        raise DestinationExists("there is a fold already", path=str(destination))
    manifest = read_manifest(artifact)
    check_backend(manifest, backend)
    stage = new_stage(destination)
    try:
        for file in manifest.files:
            _copy_verified(artifact / DATA_NAME, stage, file)
        staged = fold_path(backend, stage)
        _check_cursor(staged, manifest, backend)
        publish(staged, destination)
    finally:
        shutil.rmtree(stage, ignore_errors=True)
    return manifest


def check_backend(manifest: ExportManifest, backend: type[SnapshotStore]) -> None:
    """Refuse an artifact of another engine or of another generation of its format."""
    stated = (manifest.backend, manifest.format_generation)
    if stated != (backend.backend, backend.format_generation):
        raise ArtifactInvalid(
            "the artifact is of another backend or format",
            artifact=f"{stated[0]}/{stated[1]}",
            wanted=f"{backend.backend}/{backend.format_generation}",
        )


def _copy_verified(source: Path, target: Path, file: ArtifactFile) -> None:
    hasher = blake3()
    size = 0
    try:
        (target / file.path).parent.mkdir(parents=True, exist_ok=True)
        with (source / file.path).open("rb") as read, (target / file.path).open("xb") as write:
            while chunk := read.read(_CHUNK):
                hasher.update(chunk)
                size += len(chunk)
                write.write(chunk)
    except FileNotFoundError as error:
        raise ArtifactInvalid("a file of the artifact is missing", path=file.path) from error
    if size != file.size or hasher.hexdigest() != file.blake3:
        raise ArtifactInvalid("a file of the artifact is not what was exported", path=file.path)


def _check_cursor(staged: Path, manifest: ExportManifest, backend: type[SnapshotStore]) -> None:
    if not staged.exists():
        raise ArtifactInvalid("the artifact holds no fold")
    try:
        with backend.load(staged) as fold:
            recovered = fold.cursor
    except SnapshotError as error:
        raise ArtifactInvalid("the artifact does not open", cause=str(error)) from error
    if recovered != manifest.cursor:
        raise ArtifactInvalid("the artifact does not come up at its cursor")
