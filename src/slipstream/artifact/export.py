"""Export a fold into a directory that is complete, or not there."""

from __future__ import annotations

import shutil
from pathlib import Path

from slipstream.artifact.files import fold_path, new_stage, publish
from slipstream.artifact.manifest import (
    DATA_NAME,
    MANIFEST_NAME,
    SCHEMA_VERSION,
    ExportManifest,
    describe_files,
)
from slipstream.errors import ArtifactInvalid, DestinationExists
from slipstream.folds.store import SnapshotStore


def export_to(fold: SnapshotStore, directory: Path | str) -> ExportManifest:
    """Write an artifact of the fold, exactly at its cursor, and give its manifest.

    The copy is opened again and must come up at the fold's own cursor: every apply writes its
    cursor together with its data, so a copy that lost a tail cannot. The manifest is written
    last, and a crash leaves nothing but a hidden directory beside the destination.
    """
    directory = Path(directory)
    if directory.exists():
        raise DestinationExists("there is something already", path=str(directory))
    stage = new_stage(directory)
    try:
        data = stage / DATA_NAME
        data.mkdir()
        fold.write_copy(data)
        _verify(fold, data)
        manifest = ExportManifest(
            schema_version=SCHEMA_VERSION,
            backend=fold.backend,
            format_generation=fold.format_generation,
            cursor_hex=fold.cursor.encode().hex(),
            files=describe_files(data),
        )
        (stage / MANIFEST_NAME).write_bytes(manifest.encode())
        publish(stage, directory)
    except BaseException:
        shutil.rmtree(stage, ignore_errors=True)
        raise
    return manifest


def _verify(fold: SnapshotStore, data: Path) -> None:
    with type(fold).load(fold_path(type(fold), data)) as copy:
        if copy.cursor != fold.cursor:
            raise ArtifactInvalid("the copy did not come up at the fold's cursor")
