"""The control plane at its published size: 10,000 tenants and 2,000 groups (quantumqtt §8.2.1).

    python -m bench.control [--tenants 10000] [--groups 2000] [--watchers 20] [--changes 1000]

One process, one replica, no disk: what is measured is the machine and a node's copy of it. The
aim is below 2 s each for a start (restore), the cluster's state as a document, and the fan-out
of changes to all watchers.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from rich.console import Console
from rich.table import Table

from clustor.control import (
    AccessRole,
    Answer,
    Binding,
    CacheCursor,
    Caller,
    ClockReading,
    Command,
    ControlCache,
    ControlMachine,
    CreateTenant,
    Done,
    DraftReading,
    InitializeCluster,
    IssueBreakGlass,
    KeyPurpose,
    Members,
    OverrideContent,
    OverrideScope,
    PlacePartition,
    ProofTuple,
    PublishProofs,
    RecordOverride,
    RegisterKey,
    RegisterNode,
    UpdateTenant,
    WriterMode,
    canonical,
    cluster_state,
    decode_answer,
    decode_image,
    encode_call,
    encode_image,
    sign,
    sign_proofs,
)
from clustor.control.draft import scan_records
from clustor.control.tenants import TenantTier
from clustor.kv import Events, StoreId
from clustor.log.types import PartitionId
from clustor.raft.profiles import ControlPlaneNumbers
from clustor.runtime.admin.http import Request
from quantum.admin import ApiServer

NODES = 12
AIM_SECONDS = 2.0
KEY = Ed25519PrivateKey.from_private_bytes(b"k" * 32)
Result = TypeVar("Result")


@dataclass
class Measured:
    what: str
    seconds: float
    cpu_seconds: float
    note: str
    is_aimed_at: bool


class Loader:
    """Calls, stamped and numbered, straight into a machine."""

    def __init__(self) -> None:
        self.machine = ControlMachine(StoreId(b"bench"))
        self.now_ms = 1_000_000
        self._requests = 0

    def call(self, command: Command, by: str = "operator", token: str | None = None) -> None:
        self._requests += 1
        self.now_ms += 6  # below 200 calls in a second
        caller = Caller(identity=by, break_glass=token)
        call = encode_call(caller, f"r{self._requests}", self.now_ms, command)
        index = self.machine.applied_index + 1
        answer = decode_answer(self.machine.apply_batch(index, [call])[0])
        assert isinstance(answer, Done), answer

    def found(self) -> None:
        """Make the cluster, its nodes, and the override that 10,000 tenants need."""
        public = KEY.public_key().public_bytes_raw()
        keys = tuple(
            RegisterKey(purpose=purpose, key_id="k", public_key=public)
            for purpose in (KeyPurpose.CONTROL_PLANE_PROOF, KeyPurpose.CP_RELEASE)
        )
        operator = Binding(identity="operator", role=AccessRole.OPERATOR)
        self.call(InitializeCluster(cluster_id="bench", bindings=(operator,), keys=keys))
        for node in range(1, NODES + 1):
            self.call(
                RegisterNode(
                    node_id=node,
                    identity=f"node{node}",
                    zone=f"z{node % 3}",
                    address=f"node{node}:7000",
                    capacity=10_000,
                )
            )
        self._override()

    def _override(self) -> None:
        scope = OverrideScope.CAPACITY
        self.call(
            IssueBreakGlass(
                token_id="t", scope=scope, actor_id="on-call", ticket_url="x", ttl_ms=300_000
            )
        )
        content = OverrideContent(
            override_id="more",
            scope=scope,
            partitions=(),
            ticket_url="x",
            justification="a bench",
            expires_at=2**50,
        )
        signature = sign(KEY, "k", KeyPurpose.CP_RELEASE, content)
        override = RecordOverride(**msgspec.structs.asdict(content), signature=signature)
        self.call(override, by="on-call", token="t")

    def tenants(self, count: int) -> None:
        for number in range(count):
            name = f"tenant{number}"
            self.call(CreateTenant(tenant_id=name, sni=f"{name}.example.com", override_ref="more"))

    def groups(self, count: int, tenants: int) -> None:
        for number in range(1, count + 1):
            voters = tuple((number + step) % NODES + 1 for step in range(3))
            self.call(
                PlacePartition(
                    partition_id=number,
                    tenant_id=f"tenant{number % tenants}",
                    members=Members(voters=voters),
                    load=10,
                    expected_routing_epoch=0,
                    override_ref="more",
                )
            )

    def proofs(self, count: int) -> None:
        """Publish as each node does: everything that it leads, in one call."""
        for node in range(1, NODES + 1):
            led = [n for n in range(1, count + 1) if n % NODES + 1 == node]
            wishes = [_proof(number, self.now_ms) for number in led]
            if wishes:
                command = PublishProofs(node_id=node, proofs=sign_proofs(KEY, "k", wishes))
                self.call(command, by=f"node{node}")

    def touch(self, count: int) -> None:
        for number in range(count):
            self.call(
                UpdateTenant(
                    tenant_id=f"tenant{number}",
                    tier=TenantTier.PRODUCTION,
                    group_fsync_allowed=False,
                    dr_shipping=bool(number % 2),
                    suspended=False,
                )
            )


def _proof(partition_id: int, at: int) -> ProofTuple:
    return ProofTuple(
        partition_id=partition_id,
        last_durable_term=1,
        last_durable_index=100,
        segment_seq=1,
        io_writer_mode=WriterMode.FIXED_URING,
        durability_mode_epoch=0,
        updated_at=at,
    )


class Bench:
    """Measure one thing after another on the same machine."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self.results: list[Measured] = []

    def _measure(
        self, what: str, action: Callable[[], Result], note: str = "", *, aim: bool = False
    ) -> Result:
        started, cpu_started = time.perf_counter(), time.process_time()
        result = action()
        seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu_started
        self.results.append(Measured(what, seconds, cpu_seconds, note, aim))
        return result

    def run(self) -> None:
        options, loader = self._options, Loader()
        loader.found()
        tenants, groups = options.tenants, options.groups
        self._measure(f"create {tenants:,} tenants", lambda: loader.tenants(tenants))
        self._measure(f"place {groups:,} groups", lambda: loader.groups(groups, tenants))
        self._measure(f"publish {groups:,} proofs", lambda: loader.proofs(groups), "verified")
        machine = loader.machine
        document = self._measure(
            "cluster state", lambda: canonical(cluster_state(machine.kv)), aim=True
        )
        self.results[-1].note = f"{len(document) / 1e6:.1f} MB of JSON"
        page = self._measure(
            "GET /v1/cluster/state", lambda: asyncio.run(_page(machine, loader.now_ms)), aim=True
        )
        self.results[-1].note = f"{page / 1e6:.1f} MB of JSON, wide integers as strings"
        snapshot = self._measure("snapshot", lambda: list(machine.snapshot()), aim=True)
        self.results[-1].note = f"{sum(map(len, snapshot)) / 1e6:.1f} MB"
        fresh = ControlMachine(StoreId(b"bench"))
        self._measure("restore (start)", lambda: fresh.restore(snapshot), aim=True)
        assert fresh.digest() == machine.digest()
        self._watch(loader)

    def _watch(self, loader: Loader) -> None:
        options, now = self._options, ClockReading(0, loader.now_ms)
        caches = [ControlCache(ControlPlaneNumbers()) for _ in range(options.watchers)]
        kv = loader.machine.kv

        def list_into(cache: ControlCache) -> None:
            cursor = CacheCursor(kv.store_id, kv.revision)
            cache.listed(cursor, scan_records(kv, b""), asked=now, confirmed=True)

        self._measure("a node lists everything", lambda: list_into(caches[0]), aim=True)
        for cache in caches[1:]:
            list_into(cache)
        encoded = self._measure("its image", lambda: encode_image(caches[0].image()), aim=True)
        self.results[-1].note = f"{len(encoded) / 1e6:.1f} MB"
        self._measure(
            "start from the image",
            lambda: ControlCache.from_image(ControlPlaneNumbers(), decode_image(encoded), now),
            aim=True,
        )
        loader.touch(options.changes)
        what = f"fan {options.changes:,} changes out to {options.watchers} nodes"
        self._measure(what, lambda: _poll_all(caches, loader, now), aim=True)
        self._measure(
            f"words for {options.groups:,} groups",
            lambda: [caches[0].word_for(PartitionId(n + 1), now) for n in range(options.groups)],
            "each proof verified once",
            aim=True,
        )
        self._measure(
            "the same again",
            lambda: [caches[0].word_for(PartitionId(n + 1), now) for n in range(options.groups)],
            aim=True,
        )


class _Port:
    """A machine as the port of the admin API."""

    def __init__(self, machine: ControlMachine) -> None:
        self._machine = machine

    async def call(self, command: Command, caller: Caller, request_id: str) -> Answer:
        raise NotImplementedError

    async def state(self, linearizable: bool) -> DraftReading:  # noqa: ARG002  # nothing is newer
        return self._machine.kv

    def local_age(self) -> int | None:
        return 0


async def _page(machine: ControlMachine, now_ms: int) -> int:
    api = ApiServer(
        _Port(machine), now_ms=lambda: now_ms, draw_id=lambda: "r", development="operator"
    )
    response = await api.answer(Request("GET", "/v1/cluster/state", {"host": "localhost"}))
    assert response.code == 200, response.content
    assert isinstance(response.content, bytes)
    return len(response.content)


def _poll_all(caches: list[ControlCache], loader: Loader, now: ClockReading) -> None:
    for cache in caches:
        _poll(cache, loader, now)


def _poll(cache: ControlCache, loader: Loader, now: ClockReading) -> None:
    more = True
    while more:
        assert cache.cursor is not None
        found = loader.machine.kv.events_since(cache.cursor.revision, limit=1_000)
        assert isinstance(found, Events)
        kv = loader.machine.kv
        cache.polled(found, store_id=kv.store_id, asked=now, confirmed=True)
        more = found.more


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tenants", type=int, default=10_000)
    parser.add_argument("--groups", type=int, default=2_000)
    parser.add_argument("--watchers", type=int, default=20)
    parser.add_argument("--changes", type=int, default=1_000)
    bench = Bench(parser.parse_args())
    bench.run()
    table = Table(title="control plane")
    for column in ("what", "seconds", "cpu seconds", "aim", ""):
        table.add_column(column, justify="right" if "seconds" in column else "left")
    for each in bench.results:
        aim = ""
        if each.is_aimed_at:
            aim = "met" if each.seconds < AIM_SECONDS else "MISSED"
        table.add_row(each.what, f"{each.seconds:.3f}", f"{each.cpu_seconds:.3f}", aim, each.note)
    Console().print(table)


if __name__ == "__main__":
    main()
