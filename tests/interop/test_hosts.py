"""Three hosts with addresses of their own: bootstrap, serve over TLS, lose, replace, grow, shrink.

No loopback between them: every host is a network namespace, runs what `quantum cluster init` wrote
for it, and reaches the others over a bridge.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.interop.host_processes import HostProcesses
from tests.interop.namespaces import Network, why_impossible

IMPOSSIBLE = why_impossible()
pytestmark = pytest.mark.skipif(IMPOSSIBLE is not None, reason=str(IMPOSSIBLE))


MINUTES_MAX = 10
"""From a wheel that is there to three hosts that serve; the book promises it."""


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostProcesses]:
    root: Path = tmp_path_factory.mktemp("hosts")
    with Network(5) as network, disk_of_their_own(root):
        yield from serving(network, root)


@contextmanager
def disk_of_their_own(root: Path) -> Iterator[None]:
    """Give hosts room in memory: no voter is placed on a disk of which 70 % are taken (§9.9)."""
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8g", "quantum-hosts", str(root)], check=True
    )
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(root)], check=True)


def serving(network: Network, root: Path) -> Iterator[HostProcesses]:
    """Start three hosts, and let them serve until the tests are over."""
    began = time.monotonic()
    with HostProcesses(root, network, 3) as running:
        running.until(lambda: running.all_led(3), "all groups are led by three voters")
        assert running.publish(1, "first", ["by the book"]), running.last_words()
        seconds = time.monotonic() - began
        print(f"three hosts served after {seconds:.0f} s")
        assert seconds < 60 * MINUTES_MAX
        yield running


def test_clients_are_served_over_tls_by_every_host(hosts: HostProcesses) -> None:
    hosts.subscribe(1, "serve/#")
    for host in (1, 2, 3):
        assert hosts.publish(host, "serve/it", [f"by {host}"]), hosts.last_words()
    assert sorted(hosts.read(2, "serve/#", 3)) == ["by 1", "by 2", "by 3"]


def test_nothing_is_spoken_in_plaintext_and_nobody_is_let_in_unnamed(hosts: HostProcesses) -> None:
    address = hosts.network.address(1)
    plain = hosts.ask("pub", "a", "b", "--host", address, "--port", "8883")
    assert plain.returncode != 0
    unnamed = hosts.ask("cluster", "status", "--admin", f"{address}:9080")
    assert unnamed.returncode == 9, unnamed.stderr
    assert "wants TLS" in unnamed.stderr
    outside = ("--ca", hosts.client[1], "--cert", hosts.client[3], "--cert-key", hosts.client[5])
    client = hosts.ask("cluster", "status", "--admin", f"{address}:9080", *outside)
    assert client.returncode == 9, "a client of the broker is nobody to its operators"


def test_they_serve_over_a_network_with_latency_and_loss(hosts: HostProcesses) -> None:
    why = hosts.network.worsen("delay", "15ms", "5ms", "loss", "1%")
    if why is not None:
        pytest.skip(f"this machine has no netem: {why}")
    try:
        hosts.subscribe(2, "far/#")
        said = [f"message {number}" for number in range(50)]
        hosts.until(lambda: hosts.publish(1, "far/a", said), "all are acknowledged")
        assert set(hosts.read(3, "far/#", len(said))) >= set(said)
    finally:
        hosts.network.mend()


def test_a_host_is_lost_and_replaced_and_nothing_acknowledged_is(hosts: HostProcesses) -> None:
    hosts.subscribe(1, "loss/#")
    said = [f"before {number}" for number in range(20)]
    assert hosts.publish(3, "loss/a", said)
    hosts.kill(3)
    hosts.until(lambda: hosts.publish(1, "loss/a", ["meanwhile"]), "two hosts go on")
    hosts.join(4)
    hosts.run("cluster", "remove-node", "3", "--data", str(hosts.office))
    hosts.until(lambda: hosts.all_led(3), "three voters again")
    assert hosts.publish(4, "loss/a", ["after"])
    got = hosts.read(4, "loss/#", len(said) + 2)
    assert {*said, "meanwhile", "after"} <= set(got)


def test_the_cluster_grows_to_five_and_shrinks_to_three(hosts: HostProcesses) -> None:
    hosts.subscribe(1, "grow/#")
    hosts.give_back(3)
    third, fifth = hosts.join(3), hosts.join(5)
    assert fifth == third + 1 and third > 3, "a host that comes back empty is a new node"
    hosts.until(lambda: hosts.all_led(5), "five voters")
    said = [f"by {host}" for host in (1, 2, 4, 3, 5)]
    for host, line in zip((1, 2, 4, 3, 5), said, strict=True):
        assert hosts.publish(host, "grow/a", [line]), hosts.last_words()
    for node, host in ((fifth, 5), (third, 3)):
        hosts.run("cluster", "remove-node", str(node), "--data", str(hosts.office))
        assert hosts.stop(host) == 0
    hosts.until(lambda: hosts.all_led(3), "three voters")
    assert sorted(hosts.read(4, "grow/#", 5)) == sorted(said)


def test_a_host_that_was_down_learns_of_those_that_came_and_went(hosts: HostProcesses) -> None:
    listed = hosts.listed(2)
    assert hosts.stop(2) == 0
    hosts.give_back(5)
    number = hosts.join_by_token(5)
    assert "ca.key" not in {each.name for each in hosts.folder(5).rglob("*")}
    assert hosts.listed(2) == listed, "it was not told"
    hosts.start(2)
    hosts.until(lambda: number in hosts.listed(2), "the list is handed on")
    hosts.until(lambda: hosts.all_led(4), "four voters")


def test_new_certificates_are_served_without_a_restart(hosts: HostProcesses) -> None:
    before = hosts.server_serial(1)
    hosts.renew_server(1)
    hosts.until(lambda: hosts.server_serial(1) != before, "the new certificate is shown")
    assert hosts.publish(1, "renewed", ["still here"])
