"""Folds that travel: export, verify, import, publish."""

from slipstream.artifact.export import export_to
from slipstream.artifact.importing import import_artifact
from slipstream.artifact.lease import ExportLease, LeaseGuard, LeaseRecord
from slipstream.artifact.manifest import ArtifactFile, ExportManifest, ExportRequest
from slipstream.artifact.outcomes import ArtifactTransport, PublishedArtifact, PublishOutcome
from slipstream.artifact.rounds import ExportRound, RoundOutcome, import_remote, run_export_round

__all__ = [
    "ArtifactFile",
    "ArtifactTransport",
    "ExportLease",
    "ExportManifest",
    "ExportRequest",
    "ExportRound",
    "LeaseGuard",
    "LeaseRecord",
    "PublishOutcome",
    "PublishedArtifact",
    "RoundOutcome",
    "export_to",
    "import_artifact",
    "import_remote",
    "run_export_round",
]
