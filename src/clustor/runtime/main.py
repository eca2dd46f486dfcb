"""The process of one node: `python -m clustor.runtime.main --cluster FILE --node N --data DIR`.

Exit codes: 0 stopped as asked, 2 wrong flags, 3 the data directory is another's or cannot be
read, 4 keys, 5 a port is taken, 6 a certificate, 7 the self-test, 8 a replica that must not start,
9 the disk is too full, 70 an error of our own.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import faulthandler
import gc
import logging
import os
import resource
import signal
import sys
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

import uvloop

from clustor.log.config import LogConfig
from clustor.log.errors import KeyUnavailable, LogError
from clustor.log.types import PartitionId
from clustor.raft.errors import DataLost
from clustor.replica import ReplicaError
from clustor.runtime.admin.commands import AdminCommands
from clustor.runtime.admin.ports import CertificateGuard
from clustor.runtime.admin.server import AdminServer
from clustor.runtime.admin.status import status_of
from clustor.runtime.admin.trust import AdminTrust
from clustor.runtime.audit.control_calls import ControlFollower
from clustor.runtime.audit.log import AuditLog, open_desk
from clustor.runtime.audit.writer import AUDIT_DIRECTORY
from clustor.runtime.cluster_file import ClusterFile, read_cluster_file
from clustor.runtime.containment import contained, on_loop_error
from clustor.runtime.control.duties import NodeDuties
from clustor.runtime.control.pages import ControlPages
from clustor.runtime.control.placement_requests import GroupOrders
from clustor.runtime.control.service import ControlService
from clustor.runtime.data_directory import (
    STATE_DIRECTORY,
    DataDirectory,
    SecretPlaces,
    open_data_directory,
)
from clustor.runtime.disk import Disk, DiskError, describe_loss, open_disk
from clustor.runtime.disk.checks import check_disk
from clustor.runtime.disk.memory import keep_freed_memory
from clustor.runtime.disk.start_room import require_room
from clustor.runtime.errors import (
    CertificateUnusable,
    DataDirectoryInUse,
    DataDirectoryRefused,
    HardeningRefused,
    NodeError,
    NoRoom,
    PeerRefused,
    PlaintextRefused,
    PortTaken,
    ReleaseUnverified,
    SelfTestFailed,
)
from clustor.runtime.hardening import Hardening, harden, require
from clustor.runtime.keys.epochs_in_use import epochs_in_use, mac_epochs_in_use
from clustor.runtime.keys.rotation import KeyKeeper, keep_keys
from clustor.runtime.keys.signers import SignerKeeper, read_trusted
from clustor.runtime.keys.store import load_keyring
from clustor.runtime.kv.service import KvService
from clustor.runtime.node import Node
from clustor.runtime.node_settings import NodeSettings
from clustor.runtime.peers.address import Address
from clustor.runtime.pki.certificate_watch import NodeTrust, RepeatedCall
from clustor.runtime.pki.identity import NodeId, own_identity
from clustor.runtime.release import check_release
from clustor.runtime.repair.repair_mode import repair_status
from clustor.runtime.repair.scrub import Scrubber
from clustor.runtime.repair.service import RepairService
from clustor.runtime.telemetry.journal import FORMATS, set_up_logging
from clustor.runtime.telemetry.loop_watch import StackWatch
from clustor.runtime.telemetry.metrics import Gate, gate_families
from clustor.runtime.telemetry.node import NodeTelemetry
from clustor.runtime.telemetry.pages import RepairPages
from clustor.runtime.ticks import TICK_SECONDS
from clustor.security import KeyUse
from clustor.selftest import run_selftest, selftest_digest
from clustor.wall_clock import wall_clock_ms

EXIT_CODES: Final[tuple[tuple[type[Exception], int], ...]] = (
    (DataDirectoryRefused, 3),
    (DataDirectoryInUse, 3),
    (KeyUnavailable, 4),
    (PortTaken, 5),
    (CertificateUnusable, 6),
    (PeerRefused, 6),
    (SelfTestFailed, 7),
    (ReleaseUnverified, 7),
    (HardeningRefused, 2),
    (PlaintextRefused, 2),
    (ReplicaError, 8),
    (DataLost, 8),
    (LogError, 8),
    (DiskError, 8),
    (NoRoom, 9),
    (NodeError, 1),
)

Extend: TypeAlias = Callable[[Node, AdminServer, Path], Awaitable[Callable[[], None]]]
"""Add services to a node before it starts; what is returned closes them before it stops."""


class ListenPlaces(NamedTuple):
    """Where a node listens, where that differs from where others are told to go."""

    peer: Address
    admin: Address


journal = logging.getLogger("clustor.node")


def main(extend: Extend | None = None) -> None:
    """Run a node until it is told to stop; `extend` adds services to the KV store's."""
    if not __debug__:
        raise SystemExit("node: refusing to run under -O: the assertions are part of the safety")
    arguments = _arguments()
    text = f"%(asctime)s node {arguments.node} %(message)s"
    set_up_logging(arguments.node, arguments.log_format, text=text)
    try:
        _run(arguments, extend)
    except tuple(kind for kind, _ in EXIT_CODES) as error:
        sys.stderr.write(f"node {arguments.node}: {error}\n")
        code = next(code for kind, code in EXIT_CODES if isinstance(error, kind))
        raise SystemExit(code) from None


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="clustor-node", description="Run one node.")
    parser.add_argument("--cluster", type=Path, required=True, help="the cluster's description")
    parser.add_argument("--node", type=int, required=True, help="which of its nodes this is")
    parser.add_argument("--data", type=Path, required=True, help="the node's data directory")
    parser.add_argument("--log-format", choices=FORMATS, help="how the journal is written")
    parser.add_argument("--repair", action="store_true", help="open read-only, serve status only")
    return parser.parse_args()


def _run(arguments: argparse.Namespace, extend: Extend | None) -> None:
    faulthandler.register(signal.SIGUSR1)  # `kill -USR1` shows where a node is
    check_self()
    keep_freed_memory()
    raise_file_limit()
    cluster = read_cluster_file(arguments.cluster)
    node_id = NodeId(arguments.node)
    data = open_for_start(cluster, node_id, arguments.data)
    if arguments.repair:
        uvloop.run(_serve_repair(cluster, node_id, data))
    else:
        uvloop.run(serve_node(cluster, node_id, data, arguments.cluster, extend))


def open_for_start(
    cluster: ClusterFile, node_id: NodeId, root: Path, secrets: SecretPlaces | None = None
) -> DataDirectory:
    """Open a node's data directory when there is room for it, and its certificate is its own."""
    cluster.node(node_id)
    data = open_data_directory(root, cluster.id, node_id, secrets)
    require_room(
        data.root,
        groups=cluster.groups + bool(cluster.control_founders),
        numbers=cluster.flow.disk,
        segment_bytes=cluster.segment_bytes,
    )
    identity = own_identity(data.pki)
    if (identity.cluster_id, identity.node_id) != (cluster.id, node_id):
        raise CertificateUnusable(
            "our own certificate is another node's", certificate=identity.node_id, node=node_id
        )
    return data


def _harden(cluster: ClusterFile, data: DataDirectory, release: str | None) -> None:
    """Go on with no more rights than a broker needs; raises where the cluster requires it."""
    standings = harden(data.root, (data.keys, data.pki))
    if cluster.hardening is Hardening.REQUIRE:
        if release is None:
            raise ReleaseUnverified("the cluster requires a signed release", directory=data.pki)
        require(standings)
    for each in standings:
        if not each.in_force:
            journal.warning("not hardened (%s): %s", each.measure.value, each.problem)
    journal.info("hardened: %s", ", ".join(e.measure.value for e in standings if e.in_force))


def raise_file_limit() -> None:
    """Let this process open as many files as it may: groups and connections take some each."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):  # then the soft limit stays
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def check_self() -> None:
    """Run the specification's vectors, or raise SelfTestFailed."""
    failed = [check.name for check in run_selftest() if not check.passed]
    if failed:
        raise SelfTestFailed("the self-test failed", vectors=", ".join(failed))


class _OpenedNode(NamedTuple):
    """A node with its disk, its keys and its audit log; nothing runs yet."""

    node: Node
    disk: Disk
    signers: SignerKeeper
    audit: AuditLog
    settings: NodeSettings


def _open_node(
    cluster: ClusterFile, node_id: NodeId, data: DataDirectory, listen: ListenPlaces | None
) -> _OpenedNode:
    _harden(cluster, data, check_release(data.pki))
    signers = SignerKeeper(data.keys, node_id)
    settings = NodeSettings(
        cluster,
        node_id,
        load_keyring(data.keys, read_kek=data.read_kek),
        signers.signers[KeyUse.SNAPSHOT_MANIFEST],
        profile=cluster.profile,
        log_config=LogConfig(segment_bytes=cluster.segment_bytes),
        flow=cluster.flow,
        cadence=cluster.cadence,
        registered_keys=read_trusted(data.keys),
        peer_listen=listen.peer if listen is not None else None,
    )
    checked = check_disk(data, cluster)
    disk = open_disk(data.root)
    loss = describe_loss(disk)
    if loss is not None:
        journal.warning("%s", loss)
    node = Node(settings, data, disk)
    node.disk_checked = checked
    audit = node.audit = signers.audit = open_desk(data, active_partitions=cluster.groups)
    node.transport.on_refused = audit.peer_refused
    contained.tell = audit.error_contained
    audit.node_did("NodeStarted", node_id)
    return _OpenedNode(node, disk, signers, audit, settings)


def _watch_keys(cluster: ClusterFile, data: DataDirectory, opened: _OpenedNode) -> RepeatedCall:
    state = data.root / STATE_DIRECTORY
    keeper = KeyKeeper(
        data.keys,
        opened.settings.keys,
        lambda: epochs_in_use(state),
        macs_in_use=lambda: mac_epochs_in_use(state),
        audit=opened.audit,
        granted=bool(cluster.control_founders),
        read_kek=data.read_kek,
    )
    return RepeatedCall(lambda: keep_keys(keeper))


def _attach_control(
    cluster: ClusterFile,
    data: DataDirectory,
    opened: _OpenedNode,
    kv: KvService,
    admin: AdminServer,
) -> RepeatedCall:
    """Let the node take part in the control plane; return what follows its calls."""
    node = opened.node
    control = node.control = ControlService(node, kv, opened.signers)
    admin.calls = ControlPages(control, cluster.id, GroupOrders(node, control))
    calls = ControlFollower(control.state, opened.audit, data.root / AUDIT_DIRECTORY)
    return RepeatedCall(calls.look)


def _attach_telemetry(node: Node, admin: AdminServer) -> NodeTelemetry:
    telemetry = admin.telemetry = node.watch = NodeTelemetry(node)
    gates: dict[str, Gate] = {"admin": admin.gate, "peer": node.transport.gate}
    telemetry.sources.append(lambda: gate_families(gates))
    return telemetry


def _watch_development(node: Node, admin: Address) -> StackWatch:
    """Say that nothing is encrypted here, and watch the loop by its stacks."""
    journal.info("development mode: admin and KV are plaintext on %s", admin)
    return StackWatch(node.loop_watch, TICK_SECONDS)


def _attach_scrubber(node: Node, commands: AdminCommands, telemetry: NodeTelemetry) -> Scrubber:
    scrubber = Scrubber(node, selftest_digest(run_selftest()))
    commands.scrub_now = scrubber.scrub_now
    node.scrub_age_days = scrubber.age_days
    telemetry.sources.append(scrubber.families)
    telemetry.more.append(scrubber.page)
    return scrubber


async def serve_node(
    cluster: ClusterFile,
    node_id: NodeId,
    data: DataDirectory,
    file: Path,
    extend: Extend | None = None,
    *,
    stop: asyncio.Event | None = None,
    listen: ListenPlaces | None = None,
    started: Callable[[], None] = lambda: None,
) -> None:
    """Serve until SIGTERM, SIGINT or `stop`, then end in order; `file` describes the cluster.

    Without `listen` it listens where the others are told to go. `started` is told when it does.
    """
    asyncio.get_running_loop().set_exception_handler(_on_loop_error)
    opened = _open_node(cluster, node_id, data, listen)
    node, audit = opened.node, opened.audit
    trust = NodeTrust(node.transport, data.pki, audit, node.now_ms, cluster.ocsp_url)
    watches = [RepeatedCall(trust.look), _watch_keys(cluster, data, opened)]
    kv = KvService(node)
    node.serve(kv)
    commands = AdminCommands(node, lambda: read_cluster_file(file))
    commands.trust = trust
    admin = AdminServer(lambda: status_of(node, os.getpid()), kv, commands)
    door = AdminTrust(data.pki, admin, audit) if cluster.admin_tls else None
    if door is not None:
        watches.append(RepeatedCall(door.look))
    telemetry = _attach_telemetry(node, admin)
    duties = node.duties = NodeDuties(node)
    trust.waivers = lambda: duties.overrides.waivers(wall_clock_ms())
    stop = _stop_by_signal(stop)  # whoever sees it answer may end it: then it ends in order
    at = listen.admin if listen is not None else opened.settings.entry.admin
    context = door.context if door is not None else None
    await admin.listen(at, context, isolated=cluster.fault_injection)
    for number in range(1, cluster.groups + 1):
        kv.host(PartitionId(number))
    if cluster.control_founders:
        watches.append(_attach_control(cluster, data, opened, kv, admin))
    repairs, scrubber = RepairService(node), _attach_scrubber(node, commands, telemetry)
    close = await extend(node, admin, file) if extend is not None else None
    await node.start()
    scrubber.start()
    if node.control is not None:
        node.control.start()
    looking = _watch_development(node, at) if door is None else None
    gc.collect()
    gc.freeze()
    started()
    await stop.wait()
    journal.info("stopping")
    if looking is not None:
        looking.stop()
    if close is not None:
        close()
    scrubber.close()
    repairs.close()
    await _end_node(opened, watches)
    admin.close()
    opened.disk.close()


async def _end_node(opened: _OpenedNode, watches: Iterable[RepeatedCall]) -> None:
    """Stop the groups, then what looked after them; the audit log hears of it last."""
    node = opened.node
    if node.control is not None:
        await node.control.close()
    await node.stop()
    for each in watches:
        each.stop()
    opened.audit.node_did("NodeStopped", opened.settings.node_id)
    await opened.audit.close()


async def _serve_repair(cluster: ClusterFile, node_id: NodeId, data: DataDirectory) -> None:
    asyncio.get_running_loop().set_exception_handler(_on_loop_error)
    keys = load_keyring(data.keys, read_kek=data.read_kek)
    pid = os.getpid()
    status = repair_status(cluster, node_id, data, keys, pid)
    admin = AdminServer(lambda: status, None)
    admin.telemetry, admin.api = RepairPages(int(node_id)), CertificateGuard()
    door = AdminTrust(data.pki, admin, None) if cluster.admin_tls else None
    stop = _stop_by_signal()
    await admin.listen(
        cluster.node(node_id).admin,
        door.context if door is not None else None,
        isolated=cluster.fault_injection,
    )
    watch = RepeatedCall(door.look) if door is not None else None
    journal.info("repair mode: read-only, status on %s", cluster.node(node_id).admin)
    await stop.wait()
    if watch is not None:
        watch.stop()
    admin.close()


def _on_loop_error(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Take what no guard has contained: the last resort (see `containment`)."""
    on_loop_error(context, _die)


def _die(message: str, error: BaseException | None) -> None:
    """End the process at once: nothing less can be ended, and a wrong node may lie.

    What was acknowledged is durable; the next start recovers.
    """
    journal.critical("%s", message, exc_info=error)
    logging.shutdown()
    os._exit(70)


def _stop_by_signal(stop: asyncio.Event | None = None) -> asyncio.Event:
    """Return the event that SIGTERM and SIGINT set from now on."""
    stop = stop or asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop


if __name__ == "__main__":
    main()
