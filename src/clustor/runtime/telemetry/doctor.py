"""What a node says of itself to who examines it from outside: `/doctor`, facts without verdicts."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cryptography import x509

from clustor.control import FeatureGate, LagAlert, scan
from clustor.runtime.admin.status import mode_of
from clustor.runtime.control.reports import build_version
from clustor.runtime.group import HostedGroup
from clustor.runtime.telemetry.metrics import reading_of
from clustor.wall_clock import wall_clock_ms

if TYPE_CHECKING:
    from clustor.runtime.node import Node


def doctor_facts(node: Node) -> dict[str, Any]:
    """Gather the facts; whoever asks compares nodes and judges."""
    duties = node.duties
    alarm = duties.clock.alarm if duties is not None else None
    return {
        "node_id": int(node.node_id),
        "version": build_version(),
        "mode": mode_of(node),
        "wall_ms": wall_clock_ms(),
        "clock_alarm": "" if alarm is None else str(alarm),
        "disk": _disk(node),
        "certificates": _certificates(node.pki_directory),
        "listeners": _listeners(node),
        "groups": [_group(node, each) for each in node.groups.values()],
        "gates": _gates(node),
        "overrides": _overrides(node),
        "lag_alerts": _lag_alerts(node),
    }


def _disk(node: Node) -> dict[str, Any]:
    room = node.read_room(node.data_root)
    return {
        "level": str(node.disk_room.level),
        "bytes": room[0] if room is not None else None,
        "free_bytes": room[1] if room is not None else None,
        "writer": node.disk.mode.name,
    }


def _certificates(directory: Path) -> list[dict[str, Any]]:
    """Return when each certificate of the node's directory ends; no key is read."""
    found: list[dict[str, Any]] = []
    for path in sorted(directory.glob("*.pem")):
        try:
            certificates = x509.load_pem_x509_certificates(path.read_bytes())
        except (OSError, ValueError):
            continue  # a key, or a list of revoked ones
        found += [
            {"file": path.name, "ends_ms": int(1000 * each.not_valid_after_utc.timestamp())}
            for each in certificates
        ]
    return found


def _listeners(node: Node) -> list[dict[str, Any]]:
    admin = ("admin", str(node.settings.entry.admin), node.cluster.admin_tls)
    rows = [admin, *((kind, at, kind == "mqtts") for kind, at in node.listeners().items())]
    return [
        {"kind": kind, "address": at, "tls": tls, "loopback": _is_loopback(at)}
        for kind, at, tls in rows
    ]


def _is_loopback(address: str) -> bool:
    host = address.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _group(node: Node, group: HostedGroup) -> dict[str, Any]:
    replica = group.replica
    clock = replica.snapshots.clock
    core = replica.group.core
    newest = replica.catalog.newest
    lags = group.admission.lags() if replica.leads else {}
    return {
        "partition_id": int(group.partition_id),
        "leads": replica.leads,
        "has_leader": core.leader_id is not None,
        "failed": replica.failed or "",
        "fence": replica.group.leadership.fenced,
        "lag_bytes_max": max((each.lag_bytes for each in lags.values()), default=0),
        "lag_class": str(group.admission.verdict.lag_class),
        "entries_since_snapshot": replica.applied_index
        - (newest.record.base_index if newest is not None else 0),
        "snapshot_age_ms": reading_of(group).snapshot_age_ms,  # 0: it misses nothing
        "snapshot_bound_ms": None if clock is None else clock.profile.full_bound_ms,
        "scrub_age_days": node.scrub_age_days(group.partition_id),  # None: not watched now
        "strict_fallback": str(replica.group.fallback.state),
    }


def _gates(node: Node) -> dict[str, str]:
    if node.control is None:
        return {}
    return {each.name: each.state.value for each in scan(node.control.cache, FeatureGate)}


def _overrides(node: Node) -> list[dict[str, Any]]:
    active = node.duties.overrides.active if node.duties is not None else {}
    return [
        {"override_id": name, "scope": each.scope.value, "ends_ms": each.expires_at}
        for name, each in sorted(active.items())
    ]


def _lag_alerts(node: Node) -> list[dict[str, Any]]:
    if node.control is None:
        return []
    return [
        {"partition_id": each.partition_id, "followers": list(each.followers)}
        for each in scan(node.control.cache, LagAlert)
    ]
