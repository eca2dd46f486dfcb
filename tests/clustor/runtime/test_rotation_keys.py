"""A key store through a rotation, killed at every step: nothing needed is ever unreadable."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from clustor.log.config import LogConfig
from clustor.log.errors import KeyUnavailable
from clustor.log.keys import KeyRing
from clustor.log.reader import LogReader
from clustor.log.types import DekEpoch, Entry, IoWriterMode, LogIndex, PartitionId, Term
from clustor.runtime.development import node_directory, prepare_cluster, prepare_node
from clustor.runtime.disk import DirectoryStorage, open_mode
from clustor.runtime.keys import rotation as rotation_keys
from clustor.runtime.keys.epochs_in_use import epochs_in_use
from clustor.runtime.keys.holds import HOLDS_FILE, hold_keys, release_keys
from clustor.runtime.keys.rotation import REGISTRY_FILE, KeyKeeper, rotate_everywhere
from clustor.runtime.keys.store import (
    KEYRING_FILE,
    KEYS_DIRECTORY,
    STAGED_FILE,
    create_keyring,
    load_keyring,
)
from clustor.runtime.partition_log import open_partition_log
from clustor.runtime.pki.identity import ClusterId, NodeId, utc_now
from clustor.security import (
    DECRYPT_ONLY_MS,
    DEK_PERIOD_MS,
    AuditEvent,
    InUse,
    KeyState,
    KeyUse,
    RegistryUnreadable,
    RotationRefused,
    zeroization_digest,
)
from quantum.cli.keys import app

PARTITION = PartitionId(1)
EPOCHS = range(1, 4)


class PowerCut(BaseException):
    """The process is gone at this point."""


class Clock:
    def __init__(self) -> None:
        self.now_ms = 1_000_000

    def __call__(self) -> int:
        return self.now_ms


class Store:
    """A key store, the node that uses it, and what the node has sealed."""

    def __init__(self, root: Path, clock: Clock) -> None:
        self.keys = root / KEYS_DIRECTORY
        self.clock = clock
        self.in_use: dict[int, tuple[str, ...]] = {}
        self.events: list[AuditEvent] = []
        if not self.keys.exists():
            create_keyring(root)
        self.start()

    def start(self) -> None:
        self.ring = load_keyring(self.keys)
        self.keeper = KeyKeeper(
            self.keys, self.ring, lambda: self.in_use, audit=self, stages=True, now_ms=self.clock
        )

    def note(self, event: AuditEvent) -> bool:
        self.events.append(event)
        return True

    def secrets(self) -> dict[int, bytes]:
        """Return what each epoch that can be opened derives to."""
        found: dict[int, bytes] = {}
        for epoch in EPOCHS:
            try:
                found[epoch] = self.ring.snapshot_key(DekEpoch(epoch), PARTITION)
            except KeyUnavailable:
                continue
        return found

    def states(self) -> dict[int, KeyState]:
        return {each.epoch: each.state for each in self.keeper.registry().of(KeyUse.DEK)}


@contextmanager
def power_cut(
    monkeypatch: pytest.MonkeyPatch, at: int, *, after: bool
) -> Iterator[Callable[[], int]]:
    """Cut the power before or after the step with this number; every durable step counts."""
    count = 0

    def cutting(call: Callable[..., object]) -> Callable[..., object]:
        def wrapped(*arguments: object, **options: object) -> object:
            nonlocal count
            count += 1
            if count == at and not after:
                raise PowerCut
            result = call(*arguments, **options)
            if count == at:
                raise PowerCut
            return result

        return wrapped

    with monkeypatch.context() as patched:
        for name in ("write_durably", "sync_directory"):
            patched.setattr(rotation_keys, name, cutting(getattr(rotation_keys, name)))
        for name in ("stage_dek", "activate_dek", "zeroize_dek"):
            patched.setattr(KeyRing, name, cutting(getattr(KeyRing, name)))
        yield lambda: count


def live(store: Store) -> None:
    """Let a rotation happen: due after a week, active at once, zeroized after 48 hours."""
    for wait in (0, DEK_PERIOD_MS, 1, 1, DECRYPT_ONLY_MS - 2, 1, 1):
        store.clock.now_ms += wait
        store.keeper.look()


def steps_of_a_rotation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    store = Store(tmp_path / "counting", Clock())
    with power_cut(monkeypatch, 0, after=False) as count:
        live(store)
        return count()


def test_a_week_and_two_days_later_the_old_key_is_gone_with_proof(tmp_path: Path) -> None:
    store = Store(tmp_path, Clock())
    live(store)
    assert store.states() == {1: KeyState.ZEROIZED, 2: KeyState.ACTIVE}
    assert list(store.secrets()) == [2] and store.ring.dek_epoch == 2
    assert [event.what for event in store.events] == ["KeyStaged", "KeyActivated", "KeyZeroized"]
    assert store.events[-1].facts == {"zeroization_digest": zeroization_digest(1)}
    assert not (store.keys / STAGED_FILE).exists()
    held = json.loads((store.keys / KEYRING_FILE).read_text())["deks"]
    assert [each["epoch"] for each in held] == [2]


@pytest.mark.parametrize("after", [False, True])
def test_killed_at_every_step_a_rotation_comes_to_the_same_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    steps = steps_of_a_rotation(tmp_path, monkeypatch)
    assert steps >= 10
    for at in range(1, steps + 1):
        clock = Clock()
        store = Store(tmp_path / f"{at}-{after}", clock)
        began_ms = clock.now_ms
        first = store.secrets()[1]
        learned: dict[int, bytes] = {1: first}
        with power_cut(monkeypatch, at, after=after), pytest.raises(PowerCut):
            live(store)
        learned |= store.secrets() if store.ring.dek_epoch == 2 else {}
        sealed_with_two = store.ring.dek_epoch == 2
        store.start()  # what a restart finds
        readable = store.secrets()
        if clock.now_ms <= began_ms + DEK_PERIOD_MS + DECRYPT_ONLY_MS:
            assert readable[1] == first, f"step {at}: an old segment is unreadable too early"
        if sealed_with_two:
            assert readable[2] == learned[2], f"step {at}: what was sealed cannot be opened"
        live(store)
        assert store.ring.dek_epoch >= 2
        states = store.states()
        assert states[1] is KeyState.ZEROIZED
        if sealed_with_two and 2 in store.secrets():
            assert store.secrets()[2] == learned[2]


def test_what_is_in_use_is_kept_until_it_is_not(tmp_path: Path) -> None:
    store = Store(tmp_path, Clock())
    store.in_use = {1: ("1/wal/segment-1",)}
    live(store)
    assert store.states()[1] is KeyState.DECRYPT_ONLY and 1 in store.secrets()
    store.in_use = {}
    store.clock.now_ms += 600_000
    store.keeper.look()
    assert store.states()[1] is KeyState.ZEROIZED and 1 not in store.secrets()


def test_an_archive_holds_every_key_until_it_is_released(tmp_path: Path) -> None:
    store = Store(tmp_path, Clock())
    hold_keys(store.keys, "archive")
    hold_keys(store.keys, "archive")
    live(store)
    assert store.states()[1] is KeyState.DECRYPT_ONLY and 1 in store.secrets()
    assert release_keys(store.keys, "archive") and not release_keys(store.keys, "archive")
    store.clock.now_ms += 600_000
    store.keeper.look()
    assert store.states()[1] is KeyState.ZEROIZED
    (store.keys / HOLDS_FILE).write_text("?")
    with pytest.raises(RegistryUnreadable):
        hold_keys(store.keys, "archive")


def test_doubt_about_what_is_in_use_zeroizes_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path, Clock())

    def doubt() -> InUse:
        raise RotationRefused("a segment's key cannot be told")

    store.keeper._in_use = doubt
    with pytest.raises(RotationRefused):
        live(store)
    assert 1 in store.secrets()


def test_a_node_with_peers_makes_no_key_of_its_own(tmp_path: Path) -> None:
    store = Store(tmp_path, Clock())
    store.keeper._stages = False
    live(store)
    assert store.states() == {1: KeyState.ACTIVE}


def test_an_unreadable_registry_stops_everything(tmp_path: Path) -> None:
    store = Store(tmp_path, Clock())
    store.keeper.look()
    (store.keys / REGISTRY_FILE).write_text("{")
    store.clock.now_ms += 10 * DEK_PERIOD_MS
    with pytest.raises(RegistryUnreadable):
        store.keeper.look()
    assert list(store.secrets()) == [1]


def test_real_segments_of_two_epochs_are_read_and_hold_their_keys(tmp_path: Path) -> None:
    store = Store(tmp_path, Clock())
    state = tmp_path / "state"
    partition = state / "1"
    partition.mkdir(parents=True)
    store.keeper._in_use = lambda: epochs_in_use(state)
    config = LogConfig(segment_bytes=192 << 10, reservation_blocks=16)
    disk = open_mode(IoWriterMode.BLOCKING)
    opened = open_partition_log(disk, partition, store.ring, config, create_as=PARTITION)
    opened.append([Entry(Term(1), LogIndex(1), b"old")])
    live(store)  # the node writes on, while the key changes below it
    opened.append([Entry(Term(1), LogIndex(2), b"new")])
    disk.close()
    assert sorted(epochs_in_use(state)) == [1, 2]
    assert store.states()[1] is KeyState.DECRYPT_ONLY  # held, long after its 48 hours
    storage = DirectoryStorage(partition)
    reader = LogReader.open(storage, load_keyring(store.keys))
    assert [entry.payload for entry in reader.entries(unproven=True)] == [b"old", b"new"]
    storage.close()
    segment = next(partition.glob("wal/segment-*.log"))
    segment.write_bytes(b"garbage" + segment.read_bytes()[7:])
    with pytest.raises(RotationRefused, match="cannot be told"):
        epochs_in_use(state)


def cluster_keys(root: Path) -> list[Path]:
    return [node_directory(root, NodeId(node)) / KEYS_DIRECTORY for node in (1, 2, 3)]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "cluster"
    prepare_cluster(root, ClusterId("dev"), nodes=3, base_port=7000, groups=1, now=utc_now())
    return root


def test_no_node_encrypts_with_a_key_that_another_does_not_know(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed at every step of the command: whoever has a moment to activate, all have the key."""
    stores = cluster_keys(root)
    for at in range(1, 40):
        cut = False
        with power_cut(monkeypatch, at, after=True):
            try:
                rotate_everywhere(root / KEYS_DIRECTORY, stores, dict, after_ms=0)
            except PowerCut:
                cut = True
        known = [_known(store) for store in stores]
        for store in stores:
            KeyKeeper(store, load_keyring(store), dict).look()
        newest = max(load_keyring(store).dek_epoch for store in stores)
        assert all(newest in each for each in known), f"step {at}"
        if not cut:
            break
        rotate_everywhere(root / KEYS_DIRECTORY, stores, dict, after_ms=0)
        for store in stores:
            KeyKeeper(store, load_keyring(store), dict).look()
    assert at > 5
    rings = [load_keyring(store) for store in [root / KEYS_DIRECTORY, *stores]]
    assert len({ring.dek_epoch for ring in rings}) == 1
    newest = rings[0].dek_epoch
    assert len({ring.snapshot_key(newest, PARTITION) for ring in rings}) == 1


def _known(store: Path) -> set[int]:
    ring = load_keyring(store)
    return {*ring.dek_epochs(), *ring.staged_dek_epochs()}


def test_an_epoch_that_another_key_has_is_not_given_again(root: Path) -> None:
    """A node got a key of its own while the cluster's was on its way."""
    stores = cluster_keys(root)
    KeyKeeper(root / KEYS_DIRECTORY, None, dict).stage()
    rotate_everywhere(stores[0], [], dict, after_ms=0)
    before = (stores[0] / KEYRING_FILE).read_bytes()
    with pytest.raises(RotationRefused, match="another key has its epoch"):
        rotate_everywhere(root / KEYS_DIRECTORY, stores, dict)
    assert (stores[0] / KEYRING_FILE).read_bytes() == before


def test_a_node_that_joins_meanwhile_gets_the_new_key_too(root: Path) -> None:
    rotate_everywhere(root / KEYS_DIRECTORY, cluster_keys(root), dict)
    entry = prepare_node(root, utc_now())
    assert 2 in _known(node_directory(root, entry.id) / KEYS_DIRECTORY)


def test_the_command_lists_and_rotates(root: Path) -> None:
    def run(*arguments: object) -> tuple[int, str]:
        result = CliRunner().invoke(app, [str(each) for each in arguments])
        return result.exit_code, result.output

    code, output = run("rotate", "--data", root, "--json")
    assert code == 0 and json.loads(output)["epoch"] == 2
    code, output = run("list", "--data", root, "--json")
    assert code == 0 and set(json.loads(output)) == {"node-1", "node-2", "node-3"}
    for store in cluster_keys(root):
        KeyKeeper(store, load_keyring(store), dict).look()
    code, output = run("list", "--data", root)
    assert code == 0 and output.count("Staged") == 3 and output.count("Active") == 3
    hold_keys(cluster_keys(root)[1], "archive")
    assert "(hold)" in run("list", "--data", root)[1]
    assert run("release", "archive", "--data", root) == (0, "released on 1 nodes\n")
    assert run("release", "archive", "--data", root)[0] == 3
    code, output = run("rotate", "--data", root, "--use", "AuditLogKey")
    assert code == 0 and "stores=4" in output
    assert run("rotate", "--data", root, "--use", "IntegrityMacKey")[0] == 2
    nowhere = ("--admin", "127.0.0.1:1")  # people's keys are registered before they sign
    assert run("rotate", "--data", root, "--use", "CPReleaseKey", *nowhere)[0] == 12
    assert run("list", "--data", root / "nothing")[0] == 3
