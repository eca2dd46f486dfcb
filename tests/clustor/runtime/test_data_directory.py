"""A data directory belongs to one node and is open once."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from clustor.log.types import PartitionId
from clustor.runtime.cluster_file import read_cluster_file
from clustor.runtime.data_directory import (
    LOCK_FILE,
    REJOIN_FILE,
    holder_of,
    open_data_directory,
    permit_rejoin,
    withdraw_rejoin,
)
from clustor.runtime.development import (
    forget_node,
    node_directory,
    prepare_cluster,
    prepare_node,
)
from clustor.runtime.errors import DataDirectoryInUse, DataDirectoryRefused
from clustor.runtime.pki.identity import ClusterId, NodeId, own_identity, utc_now

DEV = ClusterId("dev")


def test_a_new_directory_becomes_the_nodes_own_and_stays_it(tmp_path: Path) -> None:
    first = open_data_directory(tmp_path / "data", DEV, NodeId(1))
    assert first.state(PartitionId(7)).is_dir()
    first.close()
    open_data_directory(tmp_path / "data", DEV, NodeId(1)).close()


@pytest.mark.parametrize(("cluster", "node"), [("dev", 2), ("prod", 1)])
def test_a_foreign_directory_is_refused(tmp_path: Path, cluster: str, node: int) -> None:
    open_data_directory(tmp_path, DEV, NodeId(1)).close()
    with pytest.raises(DataDirectoryRefused) as refused:
        open_data_directory(tmp_path, ClusterId(cluster), NodeId(node))
    assert refused.value.facts["owner"] == "dev/1"


def test_a_directory_is_open_once(tmp_path: Path) -> None:
    first = open_data_directory(tmp_path, DEV, NodeId(1))
    with pytest.raises(DataDirectoryInUse):
        open_data_directory(tmp_path, DEV, NodeId(1))
    first.close()


def test_replicas_without_an_owner_are_refused(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    with pytest.raises(DataDirectoryRefused):
        open_data_directory(tmp_path, DEV, NodeId(1))


def test_an_owner_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "node.json").write_text("{")
    with pytest.raises(DataDirectoryRefused):
        open_data_directory(tmp_path, DEV, NodeId(1))


def prepare(root: Path, nodes: int = 3, groups: int = 1) -> None:
    prepare_cluster(root, DEV, nodes=nodes, base_port=7000, groups=groups, now=utc_now())


def test_a_cluster_is_prepared_once_and_taken_up_again(tmp_path: Path) -> None:
    root = tmp_path / "cluster"
    prepare(root)
    pki = node_directory(root, NodeId(2)) / "pki"
    assert own_identity(pki).node_id == 2
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    prepare(root)
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before
    secrets = [path for path in before if path.suffix == ".key" or path.name == "keyring.json"]
    assert secrets
    assert {stat.S_IMODE(path.stat().st_mode) for path in secrets} == {0o600}


def test_clusters_of_one_name_are_told_apart_by_their_birth(tmp_path: Path) -> None:
    prepare(tmp_path / "one")
    prepare(tmp_path / "other")
    births = {
        read_cluster_file(tmp_path / name / "cluster.json").birth for name in ("one", "other")
    }
    assert len(births) == 2
    prepare(tmp_path / "one")
    assert read_cluster_file(tmp_path / "one" / "cluster.json").birth in births


def test_an_interrupted_preparation_is_finished(tmp_path: Path) -> None:
    root = tmp_path / "cluster"
    prepare(root)
    (root / "cluster.json").unlink()
    ring = (root / "node-1" / "keys" / "keyring.json").read_bytes()
    prepare(root)
    assert (root / "node-1" / "keys" / "keyring.json").read_bytes() == ring


@pytest.mark.parametrize(("nodes", "groups"), [(5, 1), (3, 2)])
def test_a_cluster_of_another_shape_is_refused(tmp_path: Path, nodes: int, groups: int) -> None:
    prepare(tmp_path / "cluster")
    with pytest.raises(DataDirectoryRefused):
        prepare(tmp_path / "cluster", nodes, groups)


def test_a_directory_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    with pytest.raises(DataDirectoryRefused):
        prepare(tmp_path)


def test_a_node_joins_and_leaves_the_list_and_its_number_is_not_given_again(
    tmp_path: Path,
) -> None:
    root = tmp_path / "cluster"
    prepare(root)
    added = prepare_node(root, utc_now())
    assert (added.node_id, added.peer_port, added.admin_port) == (4, 7040, 7041)
    assert own_identity(node_directory(root, NodeId(4)) / "pki").node_id == 4
    ring = (root / "node-1" / "keys" / "keyring.json").read_bytes()
    assert (root / "node-4" / "keys" / "keyring.json").read_bytes() == ring
    assert read_cluster_file(root / "cluster.json").founders == {1, 2, 3}
    forget_node(root, NodeId(4))
    cluster = read_cluster_file(root / "cluster.json")
    assert [entry.node_id for entry in cluster.nodes] == [1, 2, 3]
    assert added.signing_key in cluster.signing_keys, "its snapshots are still believed"
    assert prepare_node(root, utc_now()).node_id == 5
    with pytest.raises(DataDirectoryRefused):
        forget_node(root, NodeId(4))


def test_the_command_that_made_a_cluster_takes_it_up_after_its_nodes_changed(
    tmp_path: Path,
) -> None:
    root = tmp_path / "cluster"
    prepare(root)
    prepare_node(root, utc_now())
    forget_node(root, NodeId(1))
    prepare_node(root, utc_now())
    prepare_cluster(root, DEV, nodes=3, base_port=9000, groups=1, now=utc_now())
    cluster = read_cluster_file(root / "cluster.json")
    assert [entry.peer_port for entry in cluster.nodes] == [9020, 9030, 9040, 9050]
    assert cluster.founders == {2, 3}
    with pytest.raises(DataDirectoryRefused):
        prepare(root, 5)


def test_a_permission_to_start_empty_holds_for_one_start(tmp_path: Path) -> None:
    data = open_data_directory(tmp_path, DEV, NodeId(1))
    assert data.take_rejoin() == {}
    permit_rejoin(tmp_path, {1: 4, 7: 2})
    assert data.take_rejoin() == {1: 4, 7: 2}
    assert data.take_rejoin() == {}
    permit_rejoin(tmp_path, {1: 5})
    withdraw_rejoin(tmp_path)
    withdraw_rejoin(tmp_path)
    assert data.take_rejoin() == {}
    (tmp_path / REJOIN_FILE).write_text("{")
    with pytest.raises(DataDirectoryRefused):
        data.take_rejoin()
    data.close()


def test_who_has_a_directory_open_is_known_while_he_has_it(tmp_path: Path) -> None:
    lock = tmp_path / "node" / LOCK_FILE
    assert holder_of(lock) is None
    opened = open_data_directory(tmp_path / "node", DEV, NodeId(1))
    assert holder_of(lock) == os.getpid()
    with pytest.raises(DataDirectoryInUse, match=f"process={os.getpid()}"):
        open_data_directory(tmp_path / "node", DEV, NodeId(1))
    opened.close()
    assert holder_of(lock) is None  # whatever is written in it
