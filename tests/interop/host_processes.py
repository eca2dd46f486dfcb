"""Production hosts as network namespaces: each runs `quantum node start` by its own folder."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from clustor.runtime.cluster_file import read_cluster_file
from clustor.runtime.pki.certificate_files import replace_file
from clustor.runtime.pki.identity import host_name, issue_certificate, load_authority, utc_now
from quantum.edge.tls_development import TRUST_DOMAIN, pki_directory
from tests.interop.namespaces import CLIENT, Network, within

DEADLINE_SECONDS = 180.0
STOP_SECONDS = 30.0
QUANTUM = [sys.executable, "-m", "quantum.cli"]
ONE_MACHINE = "hosts of a test, all on one machine"
MQTTS = 8883
ENROLMENT_PORT = 7009


class HostProcesses:
    """The hosts of one cluster, by their numbers; leave the context to end what runs."""

    def __init__(
        self, root: Path, network: Network, hosts: int, build: Mapping[str, str] | None = None
    ) -> None:
        self.root = root
        self.build = build or {}
        self.network = network
        self.folders = root / "prod"
        self.office = self.folders / "operator"
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        listed = ",".join(f"h{host}={network.address(host)}" for host in range(1, hosts + 1))
        self.run("cluster", "init", "--hosts", listed, "--out", str(self.folders), *SMALL)
        self.hosts = list(range(1, hosts + 1))
        issued = self.run("cert", "issue", "meter", "--data", str(self.office), "--json")
        files = json.loads(issued)
        self.client = [
            *("--ca", files["authority"], "--cert", files["certificate"], "--key", files["key"])
        ]

    def __enter__(self) -> Self:
        for host in self.hosts:
            self.start(host)
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        for process in self._running.values():
            process.terminate()
        for process in self._running.values():
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    # Hosts.

    def folder(self, host: int) -> Path:
        return self.folders / f"h{host}"

    def start(self, host: int, build: Mapping[str, str] | None = None) -> None:
        """Run the node of a host, in its namespace, by its folder alone.

        `build` are variables that choose another build than the one that is tested.
        """
        config = self.folder(host) / "quantum.toml"
        command = ["ip", "netns", "exec", self.network.namespace(host), *QUANTUM]
        command += ["node", "start", "--config", str(config)]
        with (self.root / f"host-{host}.log").open("ab") as output:
            self._running[host] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                process_group=0,
                env={**os.environ, **(build or self.build)},
            )

    def kill(self, host: int) -> None:
        """Lose a host as a power cut would take it."""
        process = self._running.pop(host)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()

    def stop(self, host: int) -> int:
        """Ask a host to end, and return its exit code."""
        process = self._running.pop(host)
        process.terminate()
        return process.wait(STOP_SECONDS)

    def join(self, host: int) -> int:
        """Make a new host's folder, run its node, make it a voter everywhere; return its number."""
        place = f"h{host}={self.network.address(host)}"
        given = ("--data", str(self.office), "--out", str(self.folder(host)), "--host-data", "data")
        said = self.run("cluster", "add-host", place, *given)
        self.start(host)
        self.run("cluster", "add-node", "--data", str(self.office))
        return int(said.split()[1])

    def join_by_token(self, host: int) -> int:
        """Let a host get its folder by itself, over the network, by a token; the rest as `join`."""
        known = read_cluster_file(self.office / "cluster.json")
        number = int(known.next_node_id())
        token = self.run("node", "token", "create", str(number), "--data", str(self.office))
        place = f"{self.network.address(CLIENT)}:{ENROLMENT_PORT}"
        within_client = ["ip", "netns", "exec", self.network.namespace(CLIENT), *QUANTUM]
        serve = [*within_client, "node", "serve", "--data", str(self.office), "--listen", place]
        with (self.root / "enrolment.log").open("ab") as output:
            serving = subprocess.Popen(serve, stdout=subprocess.PIPE, stderr=output, text=True)
        try:
            assert serving.stdout is not None and "taking" in serving.stdout.readline()
            there = ["ip", "netns", "exec", self.network.namespace(host), *QUANTUM, "node", "join"]
            there += [f"h{host}={self.network.address(host)}", "--node", str(number)]
            there += ["--token", token.strip(), "--server", place]
            there += ["--out", str(self.folder(host)), "--data", "data"]
            done = subprocess.run(there, capture_output=True, text=True, timeout=DEADLINE_SECONDS)
            assert done.returncode == 0, done.stderr
        finally:
            serving.terminate()
            serving.communicate(timeout=STOP_SECONDS)
        self.start(host)
        self.run("cluster", "add-node", "--data", str(self.office))
        return number

    def give_back(self, host: int) -> None:
        """Empty a host: its folder and its data are gone."""
        shutil.rmtree(self.folder(host), ignore_errors=True)

    def listed(self, host: int) -> list[int]:
        """Return which nodes a host has written down."""
        found = json.loads((self.folder(host) / "data" / "cluster.json").read_bytes())
        return [entry["node_id"] for entry in found["nodes"]]

    def server_serial(self, host: int) -> int:
        """Return the number of the certificate that a host's clients are shown now."""

        def look() -> bytes:
            context = ssl.create_default_context(cafile=self.client[1])
            context.load_cert_chain(self.client[3], self.client[5])
            address = self.network.address(host)
            with (
                socket.create_connection((address, MQTTS), 10) as plain,
                context.wrap_socket(plain, server_hostname=address) as tls,
            ):
                return tls.getpeercert(binary_form=True) or b""

        shown = within(self.network.namespace(CLIENT), look)
        return x509.load_der_x509_certificate(shown).serial_number

    def renew_server(self, host: int) -> None:
        """Put a new certificate and key in the place of a host's own, as an ACME client would."""
        address = self.network.address(host)
        issued = issue_certificate(
            load_authority(pki_directory(self.office), TRUST_DOMAIN),
            "renewed",
            [host_name(address)],
            [ExtendedKeyUsageOID.SERVER_AUTH],
            now=utc_now(),
            lifetime=timedelta(days=1),
        )
        folder = self.folder(host) / "client-pki"
        replace_file(folder / "server.key", issued.key_pem, 0o600)
        replace_file(folder / "server.pem", issued.certificate_pem, 0o644)

    # Asking, always from the clients' own host.

    def run(self, *arguments: str, input_text: str | None = None, ok: bool = True) -> str:
        """Run a command on the operator's machine; return what it printed."""
        done = self.ask(*arguments, input_text=input_text)
        if ok:
            said = f"{arguments}: {done.stdout}{done.stderr}\n{self.last_words()}"
            assert done.returncode == 0, said
        return done.stdout

    def ask(
        self, *arguments: str, input_text: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["ip", "netns", "exec", self.network.namespace(CLIENT), *QUANTUM, *arguments],
            capture_output=True,
            text=True,
            input=input_text,
            timeout=DEADLINE_SECONDS,
            check=False,
        )

    def publish(self, host: int, topic: str, lines: list[str]) -> bool:
        """Publish lines at QoS 1 to a host, over TLS; say whether all were acknowledged."""
        place = ("--host", self.network.address(host), "--port", str(MQTTS), "--tls")
        given = ("pub", topic, "--stdin-lines", "--qos", "1", *place, *self.client)
        return self.ask(*given, input_text="".join(f"{line}\n" for line in lines)).returncode == 0

    def subscribe(self, host: int, topic: str) -> None:
        """Let a session of client `reader` wait for messages at a host, and leave it there."""
        self._read(host, topic, 0)

    def read(self, host: int, topic: str, count: int) -> list[str]:
        """Return what waited for `reader`, from whichever host it asks."""
        return self._read(host, topic, count)

    def _read(self, host: int, topic: str, count: int) -> list[str]:
        from tests.interop.host_reader import read_session

        return read_session(self, host, topic, count)

    def status(self) -> dict[str, Any]:
        """Return what all nodes say of themselves; nothing while none answers."""
        done = self.ask("cluster", "status", "--data", str(self.office), "--json")
        found: dict[str, Any] = json.loads(done.stdout) if done.stdout.startswith("{") else {}
        return found

    def all_led(self, voters: int) -> bool:
        """Say whether every group has a leader and so many voters."""
        nodes = self.status().get("nodes", [])
        found: dict[int, list[int]] = {}
        numbers: set[int] = set()
        for node in nodes:
            groups = [*node.get("groups", ())]
            groups += [node["control"]["group"]] if node.get("control") else []
            for group in groups:
                numbers.add(group["partition_id"])
                if group["role"] == "Leader":
                    found[group["partition_id"]] = group["voters"]
        return bool(numbers) and found.keys() == numbers and {*map(len, found.values())} == {voters}

    def until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not condition():
            assert time.monotonic() < deadline, f"never: {what}\n{self.last_words()}"
            time.sleep(0.1)

    def last_words(self) -> str:
        logs = sorted(self.root.glob("host-*.log"))
        words = []
        for log in logs:
            with suppress(OSError):
                lines = log.read_text(errors="replace").splitlines()[-15:]
                words += [f"{log.name}: {line}" for line in lines]
        return "\n".join(words)


SMALL = (
    *("--data", "data", "--segment-mib", "4", "--tenant-prgs", "2"),
    *("--disk-override", ONE_MACHINE),
)
"""What a test's hosts are like: their data below their folders, and little of it."""
