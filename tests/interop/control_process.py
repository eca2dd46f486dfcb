"""Calls to the control plane of a real cluster, as an operator's client makes them."""

from __future__ import annotations

import http.client
import itertools
import json
import time
from pathlib import Path
from typing import Any

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from clustor.control import (
    Command,
    Feature,
    FeatureRow,
    GateState,
    KeyPurpose,
    PublishFeatureManifest,
    RegisterKey,
    SetFeatureGate,
)
from clustor.control.features import ManifestContent
from clustor.control.objects import canonical
from clustor.control.signing import sign
from clustor.runtime.cluster_file import CLUSTER_FILE, encode_cluster_file
from clustor.runtime.control.features import DIGESTS, PREDICATES
from clustor.runtime.control.records import CONTROL_PARTITION
from clustor.runtime.development import prepare_cluster
from clustor.runtime.peers.transport import Address
from clustor.runtime.pki.identity import cluster_id, utc_now
from quantum.cli.admin_client import AdminUnreachable, post
from tests.interop.cluster_process import DEADLINE_SECONDS, ClusterProcess


def prepared(data: Path, nodes: int = 3, **settings: object) -> None:
    """Make a cluster with other numbers than the specification's."""
    cluster = prepare_cluster(
        data, cluster_id("dev"), nodes=nodes, base_port=7_000, groups=1, now=utc_now()
    )
    changed = msgspec.structs.replace(cluster, **settings)
    (data / CLUSTER_FILE).write_bytes(encode_cluster_file(changed))


def call_once(
    address: Address, command: Command, request_id: str, seconds_max: float = 5.0
) -> tuple[int, dict[str, Any]]:
    """Post a call to one node; raises AdminUnreachable where it does not answer."""
    body = json.dumps({"request_id": request_id, "seconds_max": seconds_max})
    body = body[:-1] + f', "command": {canonical(command).decode()}}}'
    connection = http.client.HTTPConnection(address.host, address.port, timeout=seconds_max + 5)
    try:
        connection.request("POST", "/control/call", body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise AdminUnreachable(str(error)) from error
    finally:
        connection.close()


def insist(cluster: ClusterProcess, command: Command, request_id: str) -> dict[str, Any]:
    """Call until a node answers, under one request id: it is done once."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    turn, problem = 0, ""
    while time.monotonic() < deadline:
        turn += 1
        try:
            code, answer = call_once(cluster.admin(turn % cluster.nodes + 1), command, request_id)
        except AdminUnreachable as error:
            problem = str(error)
        else:
            if code == 200:
                return answer
            problem = str(answer)
        time.sleep(0.02)
    raise AssertionError(f"{request_id} was never answered: {problem}\n{cluster.last_words()}")


def open_gates(
    cluster: ClusterProcess, *features: Feature, key: Ed25519PrivateKey | None = None
) -> None:
    """Open gates of features, as an operator with a release key does; once for a cluster."""
    signer = key or Ed25519PrivateKey.generate()
    public = signer.public_key().public_bytes_raw()
    name = f"release-{public.hex()[:8]}"
    register = RegisterKey(purpose=KeyPurpose.CP_RELEASE, key_id=name, public_key=public)
    assert insist(cluster, register, f"register-{name}")["outcome"] == "Done"
    rows = tuple(FeatureRow(name=each, predicate=PREDICATES[each]) for each in features)
    signature = sign(signer, name, KeyPurpose.CP_RELEASE, ManifestContent(version=1, rows=rows))
    manifest = PublishFeatureManifest(version=1, rows=rows, signature=signature)
    assert insist(cluster, manifest, f"manifest-{name}")["outcome"] == "Done"
    for each in features:
        set_gate(cluster, each, GateState.ENABLED)


_tries = itertools.count()


def set_gate(cluster: ClusterProcess, feature: Feature, state: GateState) -> None:
    """Open or shut a gate; not before every node has reported what its build can do."""
    command = SetFeatureGate(name=feature, state=state, predicate_digest=DIGESTS[feature])

    def is_done() -> bool:
        answer = insist(cluster, command, f"{feature}-{state}-{next(_tries)}")
        assert answer["outcome"] == "Done" or answer["code"] == "NotSupported", answer
        return bool(answer["outcome"] == "Done")

    cluster.until(is_done, f"{feature} is {state}")


def control(cluster: ClusterProcess, node: int) -> dict[str, Any] | None:
    """Return what a node says about the control plane, or None while it says nothing."""
    status = cluster.status(node)
    return None if status is None else status["control"]


def everybody(cluster: ClusterProcess) -> list[dict[str, Any]]:
    """Return the control plane as each node that answers sees it."""
    found = [control(cluster, node) for node in range(1, cluster.nodes + 1)]
    return [each for each in found if each is not None]


def groups_of_leaders(cluster: ClusterProcess) -> list[dict[str, Any]]:
    """Return every group, the control plane's too, as its leader sees it."""
    statuses = [cluster.status(node) for node in range(1, cluster.nodes + 1)]
    return [
        group
        for status in statuses
        if status is not None
        for group in (*status["groups"], status["control"]["group"])
        if group["role"] == "Leader"
    ]


def all_healthy(cluster: ClusterProcess, groups: int) -> bool:
    """Say whether every group has a leader whose proof is published, and every copy is fresh."""
    led = groups_of_leaders(cluster)
    fresh = [each["cache_state"] == "Fresh" for each in everybody(cluster)]
    healthy = [group["strict_fallback_state"] == "Healthy" for group in led]
    return len(led) == groups and all(healthy) and fresh == [True] * cluster.nodes


def pause(cluster: ClusterProcess, node: int, *, paused: bool) -> None:
    """Let a node's replica of the control plane hang, or go on."""
    path = f"/groups/{CONTROL_PARTITION}/pause"
    answers: list[tuple[int, dict[str, Any]]] = []

    def answered() -> bool:
        answers.append(post(cluster.admin(node), path, {"paused": paused}))
        return True

    cluster.until(answered, f"node {node} answers")
    code, answer = answers[-1]
    assert code == 200, answer
