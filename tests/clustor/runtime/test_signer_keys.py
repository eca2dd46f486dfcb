"""A node's signing keys: registered before they sign, destroyed after their day."""

from __future__ import annotations

from pathlib import Path

import pytest
from cryptography.exceptions import InvalidSignature

from clustor.control import KeyPurpose, Refused, SigningKey, find, scan
from clustor.log.errors import KeyUnavailable
from clustor.runtime.keys import signers as signer_keys
from clustor.runtime.keys.signers import SignerKeeper, keep_trusted, read_trusted, snapshot_keys
from clustor.runtime.keys.snapshot_key import SIGNER_FILE, create_signer, public_hex
from clustor.security import KeyState, KeyUse, zeroization_digest
from clustor.security.key_registry import DAY_MS
from clustor.security.signer_rotation import READ_BY_ALL_MS
from tests.clustor.control.plane import OPERATOR, Plane

NODE = 1
SNAPSHOT, PROOF = KeyUse.SNAPSHOT_MANIFEST, KeyUse.CONTROL_PLANE_PROOF
PERIOD_MS = 90 * DAY_MS


class Crash(Exception):
    """The process ends here."""


class World:
    """One node, a control plane that does not crash, and a clock."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.directory = directory
        self.plane = Plane()
        self.now_ms = self.plane.now_ms
        self.writes = 0
        self.crash_at: tuple[int, str] | None = None
        create_signer(directory)
        monkeypatch.setattr(signer_keys, "write_durably", self._crashing(Path.write_bytes))
        monkeypatch.setattr(signer_keys, "overwrite", self._crashing(signer_keys.overwrite))
        self.restart()

    def _crashing(self, act: object) -> object:
        def wrapped(*arguments: object) -> None:
            self.writes += 1
            if self.crash_at == (self.writes, "before"):
                raise Crash
            act(*arguments)  # type: ignore[operator]
            if self.crash_at == (self.writes, "after"):
                raise Crash

        return wrapped

    def has_crashed(self) -> bool:
        return self.crash_at is None

    def restart(self) -> None:
        self.keeper = SignerKeeper(self.directory, NODE, now_ms=lambda: self.now_ms)

    def run(self, turns: int, step_ms: int = 1_000) -> None:
        for _ in range(turns):
            try:
                for call in self.keeper.look(self.plane.machine.kv):
                    answer = self.plane.call(call, by=OPERATOR)
                    assert not isinstance(answer, Refused), answer
            except Crash:
                self.crash_at = None
                self.restart()
            self.check()
            self.pass_time(step_ms)

    def pass_time(self, step_ms: int) -> None:
        self.now_ms += step_ms
        self.plane.now_ms = self.now_ms

    def check(self) -> None:
        """What is signed now is believed by whoever reads the control plane's registry."""
        for use in (SNAPSHOT, PROOF):
            registered = [each.public_key for each in scan(self.plane.machine.kv, SigningKey, use)]
            signer = self.keeper.signers[use]
            signature = signer.sign(b"content")
            raw = signer.public_key().public_bytes_raw()
            epoch = self.epoch(use)
            assert epoch == 1 or raw in registered, "it signs, and nobody knows it"
            signer.public_key().verify(signature, b"content")

    def epoch(self, use: KeyUse) -> int:
        active = self.keeper.registry().active(use)
        assert active is not None
        return active.epoch

    def state(self, use: KeyUse, epoch: int) -> KeyState:
        entry = self.keeper.registry().find(use, epoch)
        assert entry is not None
        return entry.state


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    made = World(tmp_path, monkeypatch)
    made.run(5)
    return made


def test_a_new_node_registers_the_key_that_it_has(world: World) -> None:
    held = find(world.plane.machine.kv, SigningKey, SNAPSHOT.value, "node-1")
    assert held is not None
    assert held.public_key.hex() == public_hex(world.keeper.signers[SNAPSHOT])
    assert snapshot_keys(world.plane.machine.kv) == [held.public_key.hex()]


def test_snapshot_keys_are_rotated_every_90_days_and_proof_keys_are_not(world: World) -> None:
    world.pass_time(PERIOD_MS)
    world.run(30)
    assert (world.epoch(SNAPSHOT), world.epoch(PROOF)) == (2, 1)
    assert len(snapshot_keys(world.plane.machine.kv)) == 2
    assert world.keeper.proof_key_id == "node-1"


def test_nothing_is_signed_with_a_key_before_everybody_can_know_it(world: World) -> None:
    world.keeper.wish(PROOF)
    world.run(3)
    assert find(world.plane.machine.kv, SigningKey, PROOF.value, "node-1-2") is not None
    assert world.epoch(PROOF) == 1
    world.run(READ_BY_ALL_MS // 1_000 + 2)
    assert (world.epoch(PROOF), world.keeper.proof_key_id) == (2, "node-1-2")


def test_the_shared_first_key_is_destroyed_when_no_use_signs_with_it(world: World) -> None:
    world.keeper.wish(SNAPSHOT)
    world.run(30)
    first = world.directory / SIGNER_FILE
    world.pass_time(DAY_MS)
    world.run(3)
    assert first.exists()  # the proofs are still signed with it
    world.keeper.wish(PROOF)
    world.run(30)
    world.pass_time(DAY_MS)
    world.run(6)
    assert not first.exists()
    for use in (SNAPSHOT, PROOF):
        entry = world.keeper.registry().find(use, 1)
        assert entry is not None and entry.state is KeyState.ZEROIZED
        assert entry.zeroization_digest == zeroization_digest(1)
        old = find(world.plane.machine.kv, SigningKey, use.value, "node-1")
        assert old is not None and old.retires_at is not None
    world.restart()
    assert world.epoch(PROOF) == 2


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("number", range(1, 14))
def test_a_crash_at_any_write_changes_nothing_in_the_end(
    world: World, number: int, moment: str
) -> None:
    world.keeper.wish(SNAPSHOT)
    world.keeper.wish(PROOF)
    world.writes = 0
    world.crash_at = (number, moment)
    world.run(30)
    world.pass_time(DAY_MS)
    world.run(8)
    assert world.has_crashed(), "the number of writes is another now"
    assert (world.epoch(SNAPSHOT), world.epoch(PROOF)) == (2, 2)
    assert world.state(SNAPSHOT, 1) is world.state(PROOF, 1) is KeyState.ZEROIZED
    assert sorted(path.name for path in world.directory.glob("signer*.key")) == [
        "signer-ControlPlaneProofKey-2.key",
        "signer-SnapshotManifestKey-2.key",
    ]


def test_a_key_in_use_is_not_given_away(world: World) -> None:
    with pytest.raises(KeyUnavailable):
        world.keeper.signers[PROOF].private_bytes_raw()


def test_a_key_that_is_gone_stops_the_start(world: World) -> None:
    (world.directory / SIGNER_FILE).unlink()
    with pytest.raises(KeyUnavailable, match="cannot read"):
        world.restart()


def test_after_a_rotation_the_holder_signs_with_the_new_key(world: World) -> None:
    held = world.keeper.signers[PROOF]
    before = held.public_key()
    world.keeper.wish(PROOF)
    world.run(30)
    with pytest.raises(InvalidSignature):
        before.verify(held.sign(b"content"), b"content")
    assert held is world.keeper.signers[PROOF]


def test_whom_to_believe_outlives_the_process(tmp_path: Path) -> None:
    assert read_trusted(tmp_path) == ()
    keep_trusted(tmp_path, ["ab" * 32])
    assert read_trusted(tmp_path) == ("ab" * 32,)
    assert KeyPurpose(SNAPSHOT.value) is KeyPurpose.SNAPSHOT_MANIFEST
