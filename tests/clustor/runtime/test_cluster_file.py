"""What a cluster's file says about the numbers of its groups."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from clustor.raft.profiles import CONSISTENCY_PROFILE
from clustor.runtime.cluster_file import ClusterFile, encode_cluster_file, read_cluster_file
from clustor.runtime.errors import DataDirectoryRefused

PLAIN = ClusterFile("dev", 1, ())


def test_a_cluster_that_says_nothing_has_the_specifications_numbers() -> None:
    assert PLAIN.profile == CONSISTENCY_PROFILE


def test_a_patient_cluster_waits_longer_and_nothing_else_changes() -> None:
    patient = msgspec.structs.replace(PLAIN, patience=20).profile
    assert patient.election_timeout_ms == (3_000, 6_000)
    assert patient.wan_election_timeout_ms == (6_000, 12_000)
    assert patient.device.latency_max_ms == 2_000.0
    for name in ("heartbeat_ms", "lease", "replication", "control_plane", "membership"):
        assert getattr(patient, name) == getattr(CONSISTENCY_PROFILE, name)


def test_a_cluster_is_never_less_patient_than_the_specification(tmp_path: Path) -> None:
    path = tmp_path / "cluster.json"
    path.write_bytes(encode_cluster_file(msgspec.structs.replace(PLAIN, patience=0)))
    with pytest.raises(DataDirectoryRefused):
        read_cluster_file(path)


def test_snapshots_come_as_often_as_the_product_says_or_an_operator_promises() -> None:
    cadence = PLAIN.cadence
    assert cadence is not None
    assert (cadence.full_emit_period_ms_target, cadence.delta_emit_period_ms_target) == (
        300_000,
        60_000,
    )
    assert (cadence.full_bound_ms, cadence.delta_bound_ms) == (600_000, 120_000)
    promised = msgspec.structs.replace(PLAIN, snapshot_full_ms_max=400_000).cadence
    assert promised is not None and promised.full_bound_ms == 400_000
    assert msgspec.structs.replace(PLAIN, snapshot_full_ms=0).cadence is None


@pytest.mark.parametrize("name", ["snapshot_full_ms", "snapshot_delta_ms", "snapshot_full_ms_max"])
def test_a_period_beyond_the_hard_bound_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / "cluster.json"
    written = msgspec.json.decode(encode_cluster_file(PLAIN)) | {name: 700_000}
    path.write_bytes(msgspec.json.encode(written))
    with pytest.raises(DataDirectoryRefused, match="within 10 min"):
        read_cluster_file(path)
