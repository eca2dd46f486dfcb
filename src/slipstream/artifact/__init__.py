"""Folds that travel: export, verify, import, publish."""

from slipstream.artifact.export import export_to
from slipstream.artifact.importing import import_artifact
from slipstream.artifact.lease import ExportLease, LeaseGuard, LeaseRecord
from slipstream.artifact.manifest import ArtifactFile, ExportManifest, ExportRequest

__all__ = [
    "ArtifactFile",
    "ExportLease",
    "ExportManifest",
    "ExportRequest",
    "LeaseGuard",
    "LeaseRecord",
    "export_to",
    "import_artifact",
]
