"""Words of the control plane that nodes obey: bundles, moves that would not survive, alerts,
overrides that end by themselves, gates. One cluster for all; each test leaves it as it found it."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from functools import partial
from hashlib import sha256
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from typer.testing import CliRunner

from clustor.control import (
    ArmBarrier,
    Command,
    DefineActivate,
    DrainNode,
    Feature,
    GateState,
    IssueBreakGlass,
    KeyPurpose,
    Members,
    OverrideScope,
    PlacePartition,
    PublishBundle,
    RecordOverride,
    RegisterKey,
    SetFeatureGate,
)
from clustor.control.objects import canonical
from clustor.control.overrides import OverrideContent
from clustor.control.signing import sign
from clustor.flow import LagNumbers
from clustor.runtime.admission import FlowNumbers
from clustor.runtime.cluster_file import CLUSTER_FILE, encode_cluster_file, read_cluster_file
from clustor.runtime.control.cache_file import COPY_FILE
from clustor.runtime.control.records import CONTROL_PARTITION, operator_of
from clustor.runtime.development import node_directory
from clustor.runtime.kv.client import KvClient, KvRejected
from clustor.runtime.pki.identity import NodeId, cluster_id
from quantum.cli import audit
from quantum.cli.admin_client import AdminUnreachable, exchange, fetch, post
from tests.interop.cluster_process import DEADLINE_SECONDS, PATIENT, ClusterProcess
from tests.interop.control_process import all_healthy, insist, open_gates, prepared
from tests.interop.test_placed_moves import arrived, hang, place

NODES = (1, 2, 3, 4)
GROUP = 1
SMALL = json.dumps({"machine": "kv", "value_bytes_max": 1_000}).encode()
PLAIN = json.dumps({"machine": "kv"}).encode()
STEP_DOWN_MS = 2_000
"""How long a lag is structural before its leader steps down, unless it is told to stay."""
FLOW = FlowNumbers(
    lag=LagNumbers(
        slack_bytes=64 << 10,
        transient_bytes_max=512 << 10,
        structural_bytes=512 << 10,
        structural_stepdown_ms=STEP_DOWN_MS,
    ),
    strict_only_ms_max=1_000,
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcess]:
    data = tmp_path_factory.mktemp("words") / "var"
    prepared(data, nodes=len(NODES), fault_injection=True, patience=PATIENT, flow=FLOW)
    with ClusterProcess(data, nodes=len(NODES)) as running:
        running.until(lambda: all_healthy(running, groups=2), "everything is led and proven")
        yield running


def done(cluster: ClusterProcess, command: Command, name: str) -> dict[str, Any]:
    answer = insist(cluster, command, name)
    assert answer["outcome"] == "Done", answer
    return answer


def page(cluster: ClusterProcess, path: str, node: int = 1) -> dict[str, Any]:
    found: list[dict[str, Any]] = []

    def answered() -> bool:
        code, body = fetch(cluster.admin(node), path)
        found[:] = [body] if code in (200, 503) else []
        return bool(found)

    cluster.until(answered, f"node {node} shows {path}")
    return found[0]


# Bundles (clustor §9.7).


def publish(cluster: ClusterProcess, bundle: str, definition: bytes) -> None:
    digest = sha256(definition).digest()
    words = PublishBundle(bundle_id=bundle, version=1, sha256=digest, definition_blob=definition)
    done(cluster, words, f"publish-{bundle}")


def arm(cluster: ClusterProcess, barrier: str, bundle: str) -> None:
    armed = ArmBarrier(
        barrier_id=barrier,
        bundle_id=bundle,
        readiness_threshold=1_000_000,
        warmup_deadline_ms=600_000,
        readiness_window_ms=600_000,
        partitions=(GROUP,),
    )
    done(cluster, armed, f"arm-{barrier}")


def activate(cluster: ClusterProcess, barrier: str) -> None:
    """Activate a barrier as soon as the control plane lets it: every replica is warm then."""
    tries = 0

    def let() -> bool:
        nonlocal tries
        tries += 1
        answer = insist(cluster, DefineActivate(barrier_id=barrier), f"{barrier}-{tries}")
        assert answer["outcome"] == "Done" or answer["code"] == "NotReady", answer
        return bool(answer["outcome"] == "Done")

    cluster.until(let, "all replicas are warm")


async def refuses(cluster: ClusterProcess, value: bytes) -> bool:
    async with KvClient(cluster.admins(), timeout_seconds=DEADLINE_SECONDS) as client:
        try:
            await client.put(b"words", value)
        except KvRejected as error:
            return "VALUE_TOO_LARGE" in str(error)
    return False


async def test_a_bundle_is_staged_tried_beside_and_in_force_once_every_replica_is_warm(
    cluster: ClusterProcess,
) -> None:
    large = bytes(2_000)
    assert not await refuses(cluster, large)  # and so what is there does not fit the definition
    publish(cluster, "small", SMALL)
    arm(cluster, "early", "small")

    def is_staged(node: int) -> bool:
        home = node_directory(cluster.data, NodeId(node))
        path = home / "state" / str(GROUP) / "definitions" / "small.blob"
        return path.exists() and path.read_bytes() == SMALL

    def ratio() -> float | None:
        found: float | None = page(cluster, "/readyz")["warmup_ready_ratio"]
        return found

    cluster.until(lambda: all(map(is_staged, NODES)), "every node has staged it")
    cluster.until(lambda: ratio() == 0.0, "shadows are reported")
    answer = insist(cluster, DefineActivate(barrier_id="early"), "too-early")
    assert (answer["outcome"], answer["code"]) == ("Refused", "NotReady"), answer
    assert not await refuses(cluster, large), "a trial changes nothing"
    async with KvClient(cluster.admins(), timeout_seconds=DEADLINE_SECONDS) as client:
        await client.delete(b"words")
    deleted = partial(cluster.caught_up, partition=GROUP)
    cluster.until(lambda: all(map(deleted, NODES)), "every replica has deleted it")
    arm(cluster, "in-time", "small")  # a new trial finds nothing that does not fit
    cluster.until(lambda: ratio() == 1.0, "every replica is warm")
    activate(cluster, "in-time")
    while not await refuses(cluster, large):
        pass

    def are_alike() -> bool:
        return len({cluster.wait_for_group(node)["state_digest"] for node in NODES}) == 1

    cluster.until(are_alike, "all replicas have switched alike")


async def test_a_definition_outlives_the_process_and_is_taken_back_by_another(
    cluster: ClusterProcess,
) -> None:
    leader = cluster.wait_for_leader()
    before = cluster.started(leader)
    cluster.kill(leader)
    cluster.until(lambda: cluster.started(leader) > before, "it is started again")
    assert await refuses(cluster, bytes(2_000)), "it is in the log, and in snapshots"
    publish(cluster, "plain", PLAIN)
    arm(cluster, "back", "plain")
    activate(cluster, "back")
    while await refuses(cluster, bytes(2_000)):
        pass
    cluster.until(lambda: all_healthy(cluster, groups=2), "everything is led and proven")


# Moves, lag and Strict (clustor §§6.3, 9.9, 10.6).


def leading(cluster: ClusterProcess) -> dict[str, Any]:
    """Return the group as its leader sees it, or nothing while it has none."""
    node = cluster.leader()
    return {} if node is None else cluster.group(node) or {}


def led(cluster: ClusterProcess) -> dict[str, Any]:
    """Return the group as its leader sees it, once there is one that says so."""
    found: list[dict[str, Any]] = []

    def said() -> bool:
        found.append(leading(cluster))
        return bool(found[-1])

    cluster.until(said, "its leader answers")
    return found[-1]


def drain(cluster: ClusterProcess, node: int, name: str, *, draining: bool) -> None:
    done(cluster, DrainNode(node_id=node, draining=draining), f"{name}-{node}-{draining}")


def test_a_move_is_rolled_back_when_too_few_of_its_new_voters_are_well(
    cluster: ClusterProcess,
) -> None:
    place(cluster, "three", 1, 2, 3)
    cluster.until(lambda: arrived(cluster, [1, 2, 3]), "three voters, recorded")
    hang(cluster, 4, GROUP, paused=True)  # so that its catch-up does not end
    place(cluster, "to-four", 1, 2, 4)
    cluster.until(lambda: 4 in leading(cluster).get("learners", ()), "node 4 is to catch up")
    drain(cluster, 4, "well", draining=True)  # two of three are well: that is a quorum
    cluster.until(lambda: page(cluster, "/v1/nodes/4")["state"] == "Draining", "all know it")
    assert led(cluster)["learners"] == [4], "the move goes on"
    drain(cluster, 2, "well", draining=True)
    cluster.until(lambda: arrived(cluster, [1, 2, 3]), "it went back, and that is recorded")
    assert page(cluster, f"/v1/groups/{GROUP}")["placement"]["rolled_back"] is True

    def told() -> bool:
        return any("its move is taken back: too few" in line for line in journals(cluster))

    cluster.until(told, "the journal says why")
    for node in (2, 4):
        drain(cluster, node, "well", draining=False)
    hang(cluster, 4, GROUP, paused=False)


def journals(cluster: ClusterProcess) -> list[str]:
    """Return every line that the nodes have written."""
    return [
        line
        for log in sorted(cluster.data.glob("node-*.log"))
        for line in log.read_text(errors="replace").splitlines()
    ]


async def fall_behind(cluster: ClusterProcess, leader: int, behind: int) -> None:
    """Let a follower hang until its leader calls its lag structural."""
    hang(cluster, behind, GROUP, paused=True)
    async with KvClient([cluster.admin(leader)], timeout_seconds=DEADLINE_SECONDS) as client:
        for _ in range(10):
            await client.put(b"large", bytes(64 << 10))
    cluster.until(
        lambda: (leading(cluster).get("flow") or {}).get("lag_class") == "Structural",
        "the lag is structural",
    )


async def test_the_control_plane_hears_of_a_structural_lag_and_of_its_end(
    cluster: ClusterProcess,
) -> None:
    cluster.until(lambda: all_healthy(cluster, groups=2), "everything is led and proven")
    leader = cluster.wait_for_leader()
    behind = next(node for node in (1, 2, 3) if node != leader)
    await fall_behind(cluster, leader, behind)

    def alerts() -> list[list[int]]:
        rows = page(cluster, "/v1/lag-alerts")["items"]
        return [[int(row["partition_id"]), *map(int, row["followers"])] for row in rows]

    cluster.until(lambda: alerts() == [[GROUP, behind]], "its leader has raised an alert")
    hang(cluster, behind, GROUP, paused=False)
    cluster.until(lambda: alerts() == [], "and took it back")


async def test_a_leader_long_in_forced_strict_gives_half_its_credits(
    cluster: ClusterProcess,
) -> None:
    """Its term has no proof, for the control plane is away."""
    for node in NODES:
        hang(cluster, node, CONTROL_PARTITION, paused=True)
    before = cluster.wait_for_leader()
    target = next(node for node in (1, 2, 3) if node != before)

    def handed_over() -> bool:
        with contextlib.suppress(AdminUnreachable):
            post(cluster.admin(cluster.wait_for_leader()), "/groups/1/leader", {"node_id": target})
        return cluster.leader() == target

    cluster.until(handed_over, "another leads")
    async with KvClient(cluster.admins(), timeout_seconds=DEADLINE_SECONDS) as client:
        while (leading(cluster).get("flow") or {}).get("credit_share") != 0.5:
            await client.put(b"strict", b"")
        for node in NODES:
            hang(cluster, node, CONTROL_PARTITION, paused=False)
        while (leading(cluster).get("flow") or {}).get("credit_share") != 1.0:
            await client.put(b"strict", b"")
    cluster.until(lambda: all_healthy(cluster, groups=2), "everything is led and proven")


OFFICE = Ed25519PrivateKey.generate()

# Gates (clustor §14.2).


def test_a_gate_that_is_shut_is_obeyed_and_one_that_nothing_is_behind_cannot_be_opened(
    cluster: ClusterProcess,
) -> None:
    cluster.until(lambda: all_healthy(cluster, groups=2), "everything is led and proven")
    observe(cluster, 4)

    def waits() -> bool:
        return any("the gate ObserverAdmission is shut" in line for line in journals(cluster))

    cluster.until(waits, "its leader says what it waits for")
    assert not observers(cluster)
    open_gates(cluster, Feature.OBSERVER_ADMISSION, key=OFFICE)
    cluster.until(lambda: observers(cluster) == [4], "node 4 observes")
    shut = SetFeatureGate(
        name=Feature.LEADER_LEASES, state=GateState.ENABLED, predicate_digest=bytes(32)
    )
    answer = insist(cluster, shut, "leases")
    assert answer["outcome"] == "Refused", answer

    def all_know() -> bool:
        """Each node tells of its own copy of the control plane."""
        gates = [page(cluster, "/doctor", node)["gates"] for node in NODES]
        return all(each == {"ObserverAdmission": "Enabled"} for each in gates)

    cluster.until(all_know, "every node knows which gate is open, and that no other is")


def observers(cluster: ClusterProcess) -> list[int]:
    members = leading(cluster).get("members", ())
    return [each["replica_id"] for each in members if each["kind"] == "observer"]


def observe(cluster: ClusterProcess, node: int) -> None:
    held = page(cluster, f"/v1/groups/{GROUP}")["placement"]
    voters = tuple(map(int, held["members"]["voters"]))
    assert node not in voters
    move = PlacePartition(
        partition_id=GROUP,
        members=Members(voters=voters, observers=(node,)),
        load=int(held["load"]),
        expected_routing_epoch=int(held["routing_epoch"]),
    )
    done(cluster, move, "observe")


# Overrides and waivers (clustor §§12.1, 12.3).

OPERATOR = operator_of(cluster_id("dev")).identity


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def signed(name: str, scope: OverrideScope, expires_at: int) -> RecordOverride:
    content = OverrideContent(
        override_id=name,
        scope=scope,
        partitions=(),
        ticket_url="https://tickets/7",
        justification="a drill",
        expires_at=expires_at,
    )
    signature = sign(OFFICE, "office", KeyPurpose.CP_RELEASE, content)
    return RecordOverride(**msgspec.structs.asdict(content), signature=signature)


def register_office(cluster: ClusterProcess) -> None:
    raw = OFFICE.public_key().public_bytes_raw()
    key = RegisterKey(purpose=KeyPurpose.CP_RELEASE, key_id="office", public_key=raw)
    done(cluster, key, "office")  # under one request id: it is done once


def record(cluster: ClusterProcess, override: RecordOverride) -> None:
    """Enter an override under a token of its scope, as an emergency would."""
    name = override.override_id
    token = IssueBreakGlass(
        token_id=f"t-{name}",
        scope=override.scope,
        actor_id=OPERATOR,
        ticket_url="https://tickets/7",
        ttl_ms=300_000,
    )
    done(cluster, token, f"token-{name}")
    command = json.loads(canonical(override))
    body = {"request_id": f"r-{name}", "break_glass": f"t-{name}", "command": command}

    def is_done() -> bool:
        code, answer = post(cluster.admin(1), "/control/call", body)
        assert code in (200, 503), answer
        is_late = now_ms() > override.expires_at  # by a busy machine: whoever waits for it says so
        assert code == 503 or answer["outcome"] == "Done" or is_late, answer
        return code == 200

    cluster.until(is_done, f"{name} is entered")


def audited(cluster: ClusterProcess, node: int, what: str) -> set[str]:
    """Return the outcomes of what a node's audit log tells of."""
    directory = str(node_directory(cluster.data, NodeId(node)))
    shown = CliRunner().invoke(audit.app, ["show", directory, "--what", what, "--json"])
    lines = [each for each in shown.stdout.splitlines() if each.startswith("{")]
    return {json.loads(each)["outcome"] for each in lines}


def overrides(cluster: ClusterProcess, node: int) -> list[str]:
    return [each["override_id"] for each in page(cluster, "/doctor", node)["overrides"]]


async def outlasted(cluster: ClusterProcess, leader: int, lasts_ms: int) -> bool:
    """Let a follower fall behind while an override holds; False: the machine took too long.

    How long an override must last for that, the machine decides: whoever was late tries a longer.
    """
    name, term = f"stay-{lasts_ms}", led(cluster)["term"]
    ends_at = now_ms() + lasts_ms
    record(cluster, signed(name, OverrideScope.CREDIT, ends_at))

    def is_obeyed() -> bool:
        return overrides(cluster, leader) == [name] or now_ms() > ends_at

    cluster.until(is_obeyed, "it is obeyed")
    why = page(cluster, f"/groups/{GROUP}/why/not-leader", leader)
    if now_ms() > ends_at:
        return False
    assert f"override {name} (Credit) is obeyed for" in why["sentence"], why
    behind = next(node for node in (1, 2, 3) if node != leader)
    await fall_behind(cluster, leader, behind)
    since = now_ms()
    print(f"\nstructural {ends_at - since} ms before the override ended")
    cluster.until(lambda: leading(cluster).get("term", term) != term, "it steps down at last")
    assert now_ms() >= ends_at, "it was to stay"
    hang(cluster, behind, GROUP, paused=False)
    return since + STEP_DOWN_MS < ends_at


async def test_an_override_is_obeyed_shown_and_ends_by_itself(cluster: ClusterProcess) -> None:
    """A leader whose follower is structurally behind stays for as long as it lasts."""
    register_office(cluster)
    for lasts_ms in (9_000, 30_000, 100_000, 300_000):
        cluster.until(lambda: all_healthy(cluster, groups=2), "everything is led and proven")
        leader = cluster.wait_for_leader()
        if await outlasted(cluster, leader, lasts_ms):
            break
    else:
        raise AssertionError("the machine is too slow to tell")
    cluster.until(lambda: overrides(cluster, leader) == [], "nobody obeys it any more")
    cluster.until(
        lambda: (
            audited(cluster, leader, "OverrideEnded") == {"Expired"}
            and audited(cluster, leader, "OverrideObeyed") == {"Began"}
        ),
        "the audit log tells of both",
    )


def test_a_node_without_revocation_data_comes_back_by_a_signed_waiver(
    cluster: ClusterProcess,
) -> None:
    """Its responder is gone, so it starts in quarantine: no word of the others can reach it."""
    register_office(cluster)
    file = cluster.data / CLUSTER_FILE
    kept = file.read_bytes()
    changed = msgspec.structs.replace(read_cluster_file(file), ocsp_url="http://127.0.0.1:9/")
    file.write_bytes(encode_cluster_file(changed))
    cluster.until(lambda: knows_office(cluster, 4), "its copy is kept with the key in it")
    before = cluster.started(4)
    cluster.kill(4)
    cluster.until(lambda: cluster.started(4) > before, "it is started again")
    cluster.until(lambda: "Entered" in audited(cluster, 4, "RevocationQuarantine"), "it is alone")
    waiver = signed("believe", OverrideScope.QUARANTINE, now_ms() + 600_000)
    forged = msgspec.structs.replace(waiver, justification="another")
    code, answer = waive(cluster, 4, forged)
    assert code == 403 and "CPReleaseKey" in answer["error"], answer
    code, answer = waive(cluster, 4, waiver)
    assert (code, answer) == (200, {"waived_ms": 300_000})
    cluster.until(lambda: all_healthy(cluster, groups=2), "it is one of them again")
    code, answer = waive(cluster, 4, waiver)
    assert code == 409 and "was used" in answer["error"], answer
    cluster.until(lambda: audited(cluster, 4, "RevocationWaived") == {"Done"}, "it is audited")
    file.write_bytes(kept)


def knows_office(cluster: ClusterProcess, node: int) -> bool:
    """Say whether what a node would start with has the office's key."""
    copy = node_directory(cluster.data, NodeId(node)) / COPY_FILE
    return copy.exists() and b"CPReleaseKey/office" in copy.read_bytes()


def waive(
    cluster: ClusterProcess, node: int, override: RecordOverride
) -> tuple[int, dict[str, Any]]:
    """Bring a waiver to a node, and wait for its answer: one that is said again is used up."""
    answers: list[tuple[int, dict[str, Any]]] = []

    def answered() -> bool:
        code, answer, _ = exchange(
            cluster.admin(node),
            "POST",
            "/revocation/waiver",
            canonical(override),
            headers={"Content-Type": "application/json"},
            seconds=DEADLINE_SECONDS,
        )
        answers.append((code, answer))
        return True

    cluster.until(answered, "it answers")
    return answers[-1]
