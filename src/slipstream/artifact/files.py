"""Stage beside, sync, rename: how artifacts and imported folds come into being."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from slipstream.folds.append_log import sync_directory
from slipstream.folds.store import SnapshotStore


def new_stage(destination: Path) -> Path:
    """Make a hidden directory beside the destination: the same filesystem, so a rename works."""
    destination.parent.mkdir(parents=True, exist_ok=True)
    stage = destination.with_name(f".{destination.name}.stage-{secrets.token_hex(4)}")
    stage.mkdir()
    return stage


def fold_path(backend: type[SnapshotStore], data: Path) -> Path:
    """Give the path by which the backend opens a payload."""
    member = backend.artifact_member
    return data if member is None else data / member


def sync_tree(root: Path) -> None:
    """Make every file and name under `root` durable."""
    if root.is_file():
        _sync_file(root)
        return
    for path in root.rglob("*"):
        if path.is_file():
            _sync_file(path)
        elif path.is_dir():
            sync_directory(path)
    sync_directory(root)


def publish(staged: Path, destination: Path) -> None:
    """Make a staged file or directory durable and give it its name."""
    sync_tree(staged)
    staged.rename(destination)
    sync_directory(destination.parent)


def _sync_file(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
