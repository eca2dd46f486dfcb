"""A due data key reaches every node before any encrypts with it, whatever crashes where."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from clustor.control import Command, DekGrant, DekReady, Zeroization, find, scan
from clustor.control.key_epochs import KeyEpochs
from clustor.log.errors import KeyUnavailable
from clustor.log.keyfile import wrap_key
from clustor.log.types import DekEpoch, LogId, MacEpoch, PartitionId
from clustor.runtime.keys import grants as rotation_grants
from clustor.runtime.keys import rotation as rotation_keys
from clustor.runtime.keys.grants import KeyGrants
from clustor.runtime.keys.rotation import KeyKeeper, rotate_everywhere
from clustor.runtime.keys.store import (
    KEK_FILE,
    KEYRING_FILE,
    STAGED_FILE,
    create_keyring,
    load_keyring,
    read_staged,
)
from clustor.security import KeyState, KeyUse, RotationRefused, zeroization_digest
from clustor.security.key_registry import DECRYPT_ONLY_MS, DEK_PERIOD_MS
from tests.clustor.control.plane import OPERATOR, Plane, node_identity

NODES = (1, 2, 3)
FIRST_MS = 1_000_000


class Crash(Exception):
    """The process ends here."""


class Writes:
    """Writes files without waiting for a disk; one of the writes may end the process."""

    def __init__(self) -> None:
        self.count = 0
        self.crash_at: tuple[int, str] | None = None

    def __call__(self, path: Path, data: bytes, _mode: int = 0o600) -> None:
        self.count += 1
        if self.crash_at == (self.count, "before"):
            raise Crash
        path.write_bytes(data)
        if self.crash_at == (self.count, "after"):
            raise Crash


class StoreNode:
    """One node's keys: what its two loops do, and what a restart reads."""

    def __init__(self, directory: Path, node_id: int, now_ms: Callable[[], int]) -> None:
        self.directory = directory
        self.node_id = node_id
        self._now_ms = now_ms
        self.restart()

    def restart(self) -> None:
        self.ring = load_keyring(self.directory)
        self.keeper = KeyKeeper(
            self.directory,
            self.ring,
            dict,
            macs_in_use=dict,
            granted=True,
            now_ms=self._now_ms,
        )
        self.grants = KeyGrants(self.directory, self.ring, self.node_id, DEK_PERIOD_MS)

    def turn(self, plane: Plane, *, leads: bool) -> None:
        self.keeper.look()
        self.grants.learn(plane.machine.kv)
        for report in self.grants.reports(plane.machine.kv):
            plane.done(report, by=node_identity(self.node_id))
        due = self.grants.due(plane.machine.kv, self._now_ms()) if leads else None
        if due is not None:
            plane.done(due, by=OPERATOR)


class KeyWorld:
    """Three stores with one ring, a control plane that does not crash, and a clock."""

    def __init__(self, root: Path, writes: Writes) -> None:
        self.writes = writes
        self.now_ms = FIRST_MS
        self.plane = Plane()
        self.plane.add_nodes(len(NODES))
        create_keyring(root)
        self.nodes = []
        for node_id in NODES:
            directory = root / f"node-{node_id}"
            directory.mkdir()
            for name in (KEK_FILE, KEYRING_FILE):
                shutil.copy(root / "keys" / name, directory / name)
            self.nodes.append(StoreNode(directory, node_id, lambda: self.now_ms))

    def run(self, turns: int, *, step_ms: int = 1_000) -> None:
        for turn in range(turns):
            for node in self.nodes:
                try:
                    node.turn(self.plane, leads=node.node_id == NODES[turn % len(NODES)])
                except Crash:
                    self.writes.crash_at = None
                    node.restart()
                self.check()
            self.now_ms += step_ms
            self.plane.now_ms = self.now_ms

    def check(self) -> None:
        """What any node encrypts with, every node can decrypt: now, and after a crash."""
        used = {node.ring.dek_epoch for node in self.nodes}
        for node in self.nodes:
            again = load_keyring(node.directory)
            for epoch in used:
                sealed = again.snapshot_key(epoch, PartitionId(1))
                assert node.ring.snapshot_key(epoch, PartitionId(1)) == sealed
        keys = {
            node.ring.snapshot_key(epoch, PartitionId(1)) for node in self.nodes for epoch in used
        }
        assert len(keys) == len(used), "one epoch has two keys"

    def mac_epochs(self) -> list[int]:
        """What seals segments, in memory; on disk it must be the same key."""
        sealed = [(PartitionId(1), LogId(bytes(16)))] * len(self.nodes)
        for node, place in zip(self.nodes, sealed, strict=True):
            again = load_keyring(node.directory)
            epoch = node.ring.mac_epoch
            assert again.mac_key(epoch, *place) == node.ring.mac_key(epoch, *place)
        keys = {node.ring.mac_key(node.ring.mac_epoch, *sealed[0]) for node in self.nodes}
        assert len(keys) == len({node.ring.mac_epoch for node in self.nodes})
        return [int(node.ring.mac_epoch) for node in self.nodes]

    def epochs(self) -> list[int]:
        return [int(node.ring.dek_epoch) for node in self.nodes]


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> Writes:
    made = Writes()
    for module in (rotation_grants, rotation_keys):
        monkeypatch.setattr(module, "write_durably", made)
    monkeypatch.setattr(rotation_keys, "sync_directory", lambda _path: None)
    return made


def due_world(root: Path, writes: Writes) -> KeyWorld:
    world = KeyWorld(root, writes)
    world.run(2)  # the registries are made
    writes.count = 0
    world.now_ms += DEK_PERIOD_MS
    world.plane.now_ms = world.now_ms
    return world


def test_nothing_happens_before_the_week_is_over(tmp_path: Path, writes: Writes) -> None:
    world = KeyWorld(tmp_path, writes)
    world.run(3)
    world.now_ms = FIRST_MS + DEK_PERIOD_MS - 60_000
    world.run(3)
    assert world.epochs() == [1, 1, 1]
    assert find(world.plane.machine.kv, KeyEpochs, "newest") is None


def test_a_due_key_is_granted_learned_and_activated_on_all_nodes(
    tmp_path: Path, writes: Writes
) -> None:
    world = due_world(tmp_path, writes)
    world.run(30)
    assert world.epochs() == [2, 2, 2]
    held = find(world.plane.machine.kv, KeyEpochs, "newest")
    assert held is not None and held.parts() == (1, 2, 2)
    world.run(5, step_ms=DEK_PERIOD_MS // 4)
    world.run(30)
    assert world.epochs() == [3, 3, 3]


def writes_of_a_rotation() -> range:
    return range(1, 22)


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("number", writes_of_a_rotation())
def test_a_crash_at_any_write_changes_nothing_in_the_end(
    tmp_path: Path, writes: Writes, number: int, moment: str
) -> None:
    world = due_world(tmp_path, writes)
    writes.crash_at = (number, moment)
    world.run(40)
    assert world.epochs() == [2, 2, 2]
    assert world.mac_epochs() == [2, 2, 2]
    assert writes.crash_at is None or number > writes.count


def test_every_write_of_a_rotation_was_crashed(tmp_path: Path, writes: Writes) -> None:
    due_world(tmp_path, writes).run(40)
    assert writes.count == writes_of_a_rotation()[-1]


def test_while_a_node_is_away_the_key_waits(tmp_path: Path, writes: Writes) -> None:
    world = due_world(tmp_path, writes)
    away = world.nodes.pop()
    world.run(30)
    (grant,) = scan(world.plane.machine.kv, DekGrant)
    assert grant.activates_at is None
    assert world.epochs() == [1, 1]
    assert [each.node_id for each in scan(world.plane.machine.kv, DekReady)] == [1, 2]
    world.nodes.append(away)
    world.run(30)
    assert world.epochs() == [2, 2, 2]


def test_an_old_key_is_zeroized_after_48_hours_and_forgotten(
    tmp_path: Path, writes: Writes
) -> None:
    world = due_world(tmp_path, writes)
    world.run(30)
    world.now_ms += DECRYPT_ONLY_MS
    world.plane.now_ms = world.now_ms
    world.run(5)
    zeroized = scan(world.plane.machine.kv, Zeroization)
    assert sorted((each.node_id, each.dek_epoch) for each in zeroized) == [(1, 1), (2, 1), (3, 1)]
    for node in world.nodes:
        assert node.ring.dek_epochs() == (DekEpoch(2),)
        assert node.ring.mac_epochs() == (MacEpoch(2),)
        for use in (KeyUse.DEK, KeyUse.MAC):
            old = node.keeper.registry().find(use, 1)
            assert old is not None and old.state is KeyState.ZEROIZED
            assert old.zeroization_digest == zeroization_digest(1)
    assert [each.epoch for each in scan(world.plane.machine.kv, DekGrant)] == [2]
    world.now_ms += DEK_PERIOD_MS
    world.plane.now_ms = world.now_ms
    world.run(30)
    world.now_ms += DECRYPT_ONLY_MS
    world.plane.now_ms = world.now_ms
    world.run(6)
    assert [each.epoch for each in scan(world.plane.machine.kv, DekGrant)] == [3]


def test_a_mac_key_that_a_segment_needs_is_held(tmp_path: Path, writes: Writes) -> None:
    world = due_world(tmp_path, writes)
    node = world.nodes[0]
    node.keeper = KeyKeeper(
        node.directory,
        node.ring,
        dict,
        macs_in_use=lambda: {1: ("1/wal/segment-1.log",)},
        granted=True,
        now_ms=lambda: world.now_ms,
    )
    world.run(30)
    world.now_ms += DECRYPT_ONLY_MS
    world.plane.now_ms = world.now_ms
    world.run(5)
    assert node.ring.mac_epochs() == (MacEpoch(1), MacEpoch(2))
    assert world.nodes[1].ring.mac_epochs() == (MacEpoch(2),)


def test_a_grant_under_another_kek_is_not_learned(tmp_path: Path, writes: Writes) -> None:
    world = due_world(tmp_path, writes)
    node = world.nodes[0]
    due = node.grants.due(world.plane.machine.kv, world.now_ms)
    assert isinstance(due, Command)
    world.plane.done(due, by=OPERATOR)
    (node.directory / KEK_FILE).write_text("ab" * 32 + "\n")
    with pytest.raises(KeyUnavailable, match="another KEK"):
        node.grants.learn(world.plane.machine.kv)
    assert not (node.directory / STAGED_FILE).exists()


def test_an_operators_rotation_never_takes_the_place_of_a_granted_key(
    tmp_path: Path, writes: Writes
) -> None:
    world = due_world(tmp_path, writes)
    world.run(1)
    directory = world.nodes[1].directory
    granted = read_staged(directory)
    assert granted is not None
    with pytest.raises(RotationRefused, match="another key is on its way"):
        rotate_everywhere(tmp_path / "keys", [node.directory for node in world.nodes], dict)
    assert read_staged(directory) == granted
    world.run(30)
    assert world.epochs() == [2, 2, 2]


def test_an_operators_rotation_goes_on_from_what_was_granted(
    tmp_path: Path, writes: Writes
) -> None:
    world = due_world(tmp_path, writes)
    world.run(30)
    root = tmp_path / "keys"
    assert int(load_keyring(root).dek_epoch) == 1
    epoch, _ = rotate_everywhere(root, [node.directory for node in world.nodes], dict)
    assert epoch == 3
    staged = {node.directory: read_staged(node.directory) for node in world.nodes}
    assert {each.epoch for each in staged.values() if each is not None} == {3}
    assert int(load_keyring(root).dek_epoch) == 3


def test_a_node_with_another_key_of_that_epoch_does_not_say_that_it_is_ready(
    tmp_path: Path, writes: Writes
) -> None:
    world = due_world(tmp_path, writes)
    node = world.nodes[0]
    node.keeper.stage(b"x" * 32, activates_at_ms=world.now_ms)
    other = world.nodes[1].grants.due(world.plane.machine.kv, world.now_ms)
    assert isinstance(other, Command)
    world.plane.done(other, by=OPERATOR)
    node.keeper.look()
    node.grants.learn(world.plane.machine.kv)
    assert node.grants.reports(world.plane.machine.kv) == []
    assert wrap_key(bytes(32), 2, b"x" * 32).epoch == 2
