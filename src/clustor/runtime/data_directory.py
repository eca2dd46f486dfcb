"""A node's data directory: whose it is, who has it open, and where things are in it.

keys/               the key ring, its KEK, its registry, and the keys that sign snapshots and audit
security/audit/     the audit log and its anchor
pki/                the node's certificate, its key, and the authority it trusts
node.json           which node of which cluster this is
identity/<group>/   who each replica is; meant for another disk than its state
state/<group>/      each replica's log, hard state and snapshots
quarantine/<group>.json  a replica that is not believed, and how far its repair is
rejoin.json         an operator's word that lost replicas may start empty; taken once
"""

from __future__ import annotations

import fcntl
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from clustor.log.types import PartitionId
from clustor.raft.errors import DataLost
from clustor.raft.types import RoutingEpoch
from clustor.runtime.errors import DataDirectoryInUse, DataDirectoryRefused
from clustor.runtime.keys.kek_source import ReadKek, kek_in_file
from clustor.runtime.keys.store import KEK_FILE, KEYS_DIRECTORY
from clustor.runtime.pki.identity import PKI_DIRECTORY, ClusterId, NodeId

NODE_FILE: Final = "node.json"
LOCK_FILE: Final = "node.lock"
REJOIN_FILE: Final = "rejoin.json"
IDENTITY_DIRECTORY: Final = "identity"
STATE_DIRECTORY: Final = "state"


class NodeFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whose directory this is. Written once."""

    cluster_id: str
    node_id: int
    format_version: int = 1


class RejoinFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """For each group its newest routing epoch, asked for after the data was lost."""

    epochs: dict[int, int]


@dataclass(frozen=True, slots=True)
class SecretPlaces:
    """Where a node's keys and certificates are: in production not beside its data."""

    keys: Path
    pki: Path
    read_kek: ReadKek


def beside_data(root: Path) -> SecretPlaces:
    """Return where development keeps them: below the data, with the key that opens them."""
    keys = root / KEYS_DIRECTORY
    return SecretPlaces(keys, root / PKI_DIRECTORY, kek_in_file(keys / KEK_FILE))


class DataDirectory:
    """An open data directory; nobody else opens it before `close` or the end of the process."""

    def __init__(self, root: Path, lock: int, secrets: SecretPlaces | None = None) -> None:
        self.root = root
        self._lock = lock
        self._secrets = secrets or beside_data(root)

    @property
    def keys(self) -> Path:
        return self._secrets.keys

    @property
    def pki(self) -> Path:
        return self._secrets.pki

    @property
    def read_kek(self) -> ReadKek:
        """Returns the key that opens the ring; raises KeyUnavailable."""
        return self._secrets.read_kek

    def identity(self, partition: PartitionId) -> Path:
        """Return the directory of a replica's identity, made where it is missing."""
        return _made(self.root / IDENTITY_DIRECTORY / str(partition))

    def state(self, partition: PartitionId) -> Path:
        """Return the directory of a replica's state, made where it is missing."""
        return _made(self.root / STATE_DIRECTORY / str(partition))

    def take_rejoin(self) -> dict[PartitionId, RoutingEpoch]:
        """Take the permission to start empty, if there is one. It does not outlive this start:

        data that is lost later needs a newer epoch, or an old change could count as the new one.
        """
        path = self.root / REJOIN_FILE
        try:
            found = msgspec.json.decode(path.read_bytes(), type=RejoinFile)
        except FileNotFoundError:
            return {}
        except msgspec.MsgspecError as error:
            raise DataDirectoryRefused("cannot read rejoin.json", cause=error) from error
        path.unlink()
        sync_directory(self.root)
        return {PartitionId(group): RoutingEpoch(epoch) for group, epoch in found.epochs.items()}

    @property
    def is_unused(self) -> bool:
        """Whether no replica was ever made here."""
        return not _names(self.root / IDENTITY_DIRECTORY)

    def require_state(self) -> None:
        """Raise DataLost where replicas were and not one of them has left anything.

        That is a disk that was lost or not mounted, and no damage of one partition: to begin
        anew there is an operator's decision (`rejoin.json`).
        """
        known = _names(self.root / IDENTITY_DIRECTORY)
        if known and not _names(self.root / STATE_DIRECTORY):
            raise DataLost("the disk is empty where data was", groups=len(known))

    def close(self) -> None:
        """Let others open it."""
        os.close(self._lock)


def open_data_directory(
    root: Path, cluster: ClusterId, node: NodeId, secrets: SecretPlaces | None = None
) -> DataDirectory:
    """Open the directory of this node, or raise DataDirectoryRefused or DataDirectoryInUse.

    Without `secrets` keys and certificates are below it: development.
    A directory without `node.json` becomes this node's, unless it already holds replicas.
    """
    try:
        root.mkdir(parents=True, mode=0o700, exist_ok=True)
        lock = os.open(root / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise DataDirectoryRefused(
            "cannot use the data directory", directory=str(root), cause=error.strerror
        ) from error
    try:
        _take_lock(root, lock)
        _check_owner(root, cluster, node)
    except BaseException:
        os.close(lock)
        raise
    return DataDirectory(root, lock, secrets)


def _take_lock(root: Path, lock: int) -> None:
    """Take it, and write down who has it: whoever comes next can say whose it is."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise DataDirectoryInUse(
            "another process has the data directory open",
            directory=str(root),
            process=_pid_in(lock) or "unknown",
        ) from None
    write_pid(lock)


def write_pid(lock: int) -> None:
    """Write into a lock that is ours that this process has it."""
    os.ftruncate(lock, 0)
    os.pwrite(lock, b"%d\n" % os.getpid(), 0)


def holder_of(lock_file: Path) -> int | None:
    """Return the process that holds a lock; None where nobody does. Raises OSError.

    0 stands for a holder that did not say who it is. A number is only believed while the lock is
    held: then it is its holder's, and not that of a stranger who was given it since.
    """
    try:
        lock = os.open(lock_file, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _pid_in(lock)
    finally:
        os.close(lock)
    return None


def _pid_in(lock: int) -> int:
    said = os.pread(lock, 32, 0).strip()
    return int(said) if said.isdigit() else 0


def _check_owner(root: Path, cluster: ClusterId, node: NodeId) -> None:
    path = root / NODE_FILE
    if not path.exists():
        if (root / IDENTITY_DIRECTORY).exists() or (root / STATE_DIRECTORY).exists():
            raise DataDirectoryRefused("replicas without a node.json", directory=str(root))
        write_durably(path, msgspec.json.encode(NodeFile(cluster, node)) + b"\n")
        return
    try:
        owner = msgspec.json.decode(path.read_bytes(), type=NodeFile)
    except (OSError, msgspec.MsgspecError) as error:
        raise DataDirectoryRefused("cannot read node.json", directory=str(root)) from error
    if owner != NodeFile(cluster, node):
        raise DataDirectoryRefused(
            "the data directory belongs to another node",
            directory=str(root),
            owner=f"{owner.cluster_id}/{owner.node_id}",
            node=f"{cluster}/{node}",
        )


def permit_rejoin(root: Path, epochs: dict[int, int]) -> None:
    """Let the replicas of a node that lost their data start empty, once."""
    write_durably(root / REJOIN_FILE, msgspec.json.encode(RejoinFile(epochs)) + b"\n")


def withdraw_rejoin(root: Path) -> None:
    """Take a permission back that was not used: it must not be found by a later loss."""
    (root / REJOIN_FILE).unlink(missing_ok=True)
    sync_directory(root)


def write_durably(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Write a whole file: the old one or the new one after a crash."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """Make the directory's entries durable."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _names(directory: Path) -> list[str]:
    """List the directories that hold something."""
    if not directory.is_dir():
        return []
    return [each.name for each in directory.iterdir() if each.is_dir() and any(each.iterdir())]


def _made(directory: Path) -> Path:
    if not directory.is_dir():
        directory.mkdir(parents=True, mode=0o700, exist_ok=True)
        sync_directory(directory.parent)
        sync_directory(directory.parent.parent)
    return directory


def read_room(directory: Path) -> tuple[int, int] | None:
    """Return the size of a directory's file system, and what of it we may still use."""
    try:
        found = os.statvfs(directory)
    except OSError:
        return None
    return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize
