"""A real node under mutated conversations on all its ports: it lives, and others do not notice.

The seed is printed, and `FUZZ_SEED` says which: every input is drawn from the seed and its
own number. What the node contained is a failure too: an input that nobody foresaw was found.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

import pytest

from clustor.runtime.development import node_directory
from clustor.runtime.pki.identity import (
    AUTHORITY_FILE,
    CERTIFICATE_FILE,
    KEY_FILE,
    PKI_DIRECTORY,
    NodeId,
    cluster_id,
    issue_node,
    load_authority,
    utc_now,
)
from quantum.edge.tls_development import issue_client
from tests.interop.broker_process import BrokerProcess
from tests.interop.fuzz_inputs import KINDS, Targets, mutate, plan
from tests.interop.machine import slowness
from tests.interop.test_half_open import Port, rss_bytes
from tests.interop.test_no_input_kills import contained_total, listening
from tests.interop.witness import Idle, Witness, bound_seconds, publish
from tests.quantum.serving.client import connect

SEED = int(os.environ.get("FUZZ_SEED", "20"))
GROWTH_BYTES_MAX = 96 << 20
QUARTER_BYTES_MAX = 32 << 20
NOBODY = NodeId(9)
"""A node whose certificate is good, and which is a member of nothing."""


def targets_of(broker: BrokerProcess) -> Targets:
    client = issue_client(broker.data, "fuzz", utc_now())
    pki = broker.data / PKI_DIRECTORY
    stranger = node_directory(broker.data, NodeId(1)).parent / "stranger"
    issue_node(load_authority(pki, cluster_id("dev")), NOBODY, stranger, utc_now())
    known = {broker.admin.port, broker.mqtt, broker.mqtts, broker.ws, broker.kafka, broker.amqp}
    (peer,) = listening(broker.pid) - known
    return Targets(
        broker.mqtt,
        broker.ws,
        broker.mqtts,
        broker.admin.port,
        peer,
        (str(client.certificate), str(client.key), str(client.authority)),
        (
            str(stranger / CERTIFICATE_FILE),
            str(stranger / KEY_FILE),
            str(node_directory(broker.data, NodeId(1)) / PKI_DIRECTORY / AUTHORITY_FILE),
        ),
    )


def fuzz(
    broker: BrokerProcess,
    scratch: Path,
    *,
    seed: int,
    count: int,
    processes: int,
    first: int = 0,
    growth_bytes_max: int = GROWTH_BYTES_MAX,
) -> None:
    """Let processes say inputs while the witness publishes; then judge."""
    print(f"seed {seed}: FUZZ_SEED={seed} repeats this, from input {first} on")
    file = scratch / "targets.json"
    file.write_text(json.dumps(asdict(targets_of(broker))), encoding="utf-8")
    pid, good = broker.pid, connect(Port(broker.mqtt))
    for _ in range(50):
        publish(good)
    before, idle, witness = rss_bytes(pid), Idle(scratch), Witness(good)
    witness.start()
    began, each = time.monotonic(), count // processes
    command = [sys.executable, "-m", "tests.interop.fuzz_inputs", str(file), str(seed)]
    running = [
        subprocess.Popen([*command, str(first + n * each), str(each)], stdout=subprocess.PIPE)
        for n in range(processes)
    ]
    slow = slowness()  # while all of it runs: so many times longer takes what the node computes
    said = [json.loads(one.communicate(timeout=7200)[0] or "{}") for one in running]
    took = time.monotonic() - began
    witness.stopping.set()
    witness.join(180)
    grown, idle_seconds = rss_bytes(pid) - before, idle.worst_seconds()
    total = sum(sum(one.values()) for one in said)
    print(f"{total} inputs in {took:.1f} s, {witness.published} publishes")
    print(
        f"worst wait {witness.worst_seconds:.3f} s, an idle process {idle_seconds:.3f} s,"
        f" {slow:.1f} times slower"
    )
    print(f"{grown / (1 << 20):.1f} MiB more")
    assert total == each * processes
    assert broker.pid == pid and not witness.is_alive(), broker.last_words()
    assert not good.publish(b"after", b"all", 1).is_failure, broker.last_words()
    good.cut()
    assert contained_total(broker) == 0, broker.last_words()
    assert grown < growth_bytes_max
    assert witness.worst_seconds < bound_seconds(idle_seconds, slow)


def test_five_thousand_inputs_to_every_listener(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "var") as broker:
        fuzz(broker, tmp_path, seed=SEED, count=5_000, processes=1)


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_two_hundred_thousand_inputs_to_every_listener(tmp_path: Path) -> None:
    seed = int(os.environ.get("FUZZ_SEED") or int.from_bytes(os.urandom(4), "little"))
    with BrokerProcess(tmp_path / "var") as broker:
        # The first quarter fills what is bounded: as many who are late as two processes can send
        # (TLS keeps some 100 KiB for each), the log's window, the trail. Then only what was stored
        # grows: keys and events of the store that inputs have written.
        for quarter in range(4):
            scratch = tmp_path / f"{quarter}"
            scratch.mkdir()
            fuzz(
                broker,
                scratch,
                seed=seed,
                count=50_000,
                processes=2,
                first=50_000 * quarter,
                growth_bytes_max=QUARTER_BYTES_MAX if quarter else GROWTH_BYTES_MAX,
            )


@pytest.mark.parametrize("kind", KINDS)
def test_an_input_is_its_seed_and_its_number(kind: str) -> None:
    number = 8 * 1000 + KINDS.index(kind)
    first, again = plan(1, number), plan(1, number)
    assert first.kind == kind
    assert first.ending == again.ending and first.pauses == again.pauses
    if not kind.endswith("raw"):  # a TLS greeting has randomness of its own
        assert first == again
    assert any(plan(1, n).pieces != plan(2, n).pieces for n in range(80) if n % 8 != 3)


def test_mutations_change_most_and_leave_some() -> None:
    pieces = [b"first", b"second", b"third"]
    same = sum(mutate(random.Random(seed), pieces) == pieces for seed in range(1000))
    assert 50 < same < 400
