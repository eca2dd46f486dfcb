"""A network of the test's own: a namespace per node, cables to one bridge, and shears.

Nothing leaves these namespaces, and nothing of the machine's own network is touched. A cable can
be pulled (`unplug`), and any direction between two hosts can be cut silently (`lose`): the sender
then addresses its frames to a card that does not exist, so that they are lost on the way as on a
real network, without an error for anybody. That needs no packet filter, which many kernels of
small machines are built without.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

CLONE_NEWNET = 0x40000000
NOBODY = "02:00:00:00:ff:ff"
CLIENT = 100  # the host number of the clients

ResultT = TypeVar("ResultT")


def why_impossible() -> str | None:
    """Try what the network needs; None where all of it can be had."""
    if shutil.which("ip") is None:
        return "there is no `ip` command"
    name = f"qprobe{os.getpid()}"
    try:
        _ip("netns", "add", name)
        _ip("-n", name, "link", "add", "bridge0", "type", "bridge")
        _ip("-n", name, "link", "add", "end0", "type", "veth", "peer", "end1")
        within(name, lambda: None)
    except (subprocess.CalledProcessError, OSError) as error:
        said = getattr(error, "stderr", "") or str(error)
        return f"this machine gives no network namespaces: {said.strip()}"
    finally:
        subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
    return None


def within(namespace: str, function: Callable[[], ResultT]) -> ResultT:
    """Run a function on a thread that lives in the namespace; its sockets belong there."""
    results: list[ResultT] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            _enter(namespace)
            results.append(function())
        except BaseException as error:  # noqa: BLE001  # raised again in the caller's thread
            errors.append(error)

    thread = threading.Thread(target=run, name=namespace)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def _enter(namespace: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    with Path("/run/netns", namespace).open() as handle:
        if libc.setns(handle.fileno(), CLONE_NEWNET) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), namespace)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], capture_output=True, text=True, check=True)


class Network:
    """Hosts 1 to `hosts` and one for clients; leave the context to take it all down."""

    def __init__(self, hosts: int) -> None:
        self._prefix = f"q{os.getpid()}x{threading.get_native_id() % 1000}"
        self.hosts = [*range(1, hosts + 1), CLIENT]
        self._made: list[str] = []

    def __enter__(self) -> Self:
        try:
            self._build()
        except BaseException:
            self._take_down()
            raise
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self._take_down()

    def namespace(self, host: int) -> str:
        return f"{self._prefix}-{host}"

    @staticmethod
    def address(host: int) -> str:
        return f"10.77.0.{host}"

    # Cutting.

    def unplug(self, host: int) -> None:
        """Pull the host's cable: nothing comes in and nothing goes out."""
        _ip("-n", self._hub, "link", "set", f"port{host}", "down")

    def plug_in(self, host: int) -> None:
        _ip("-n", self._hub, "link", "set", f"port{host}", "up")

    def lose(self, sender: int, receiver: int) -> None:
        """Lose everything on its way from one host to another, in this direction only."""
        self._know(sender, receiver, NOBODY)

    def find(self, sender: int, receiver: int) -> None:
        """Let a lost direction pass again."""
        self._know(sender, receiver, _card(receiver))

    def part(self, some: set[int], others: set[int]) -> None:
        """Let nothing pass between the two sides, in either direction."""
        for one in some:
            for other in others:
                self.lose(one, other)
                self.lose(other, one)

    def heal(self) -> None:
        """Let everything pass again."""
        for host in self.hosts:
            self.plug_in(host)
            for other in self.hosts:
                if other != host:
                    self.find(host, other)

    def worsen(self, *how: str) -> str | None:
        """Delay and lose what every host sends (tc's netem); None, or why that cannot be had."""
        for host in self.hosts:
            command = ["tc", "-n", self.namespace(host), "qdisc", "replace", "dev", "card"]
            try:
                subprocess.run(
                    [*command, "root", "netem", *how], capture_output=True, text=True, check=True
                )
            except (subprocess.CalledProcessError, OSError) as error:
                self.mend()
                return str(getattr(error, "stderr", "") or error).strip()
        return None

    def mend(self) -> None:
        """Let everything pass at once again."""
        for host in self.hosts:
            command = ["tc", "-n", self.namespace(host), "qdisc", "del", "dev", "card", "root"]
            subprocess.run(command, capture_output=True, check=False)

    # Building.

    @property
    def _hub(self) -> str:
        return f"{self._prefix}-hub"

    def _build(self) -> None:
        self._make(self._hub)
        _ip("-n", self._hub, "link", "add", "bridge0", "type", "bridge")
        _ip("-n", self._hub, "link", "set", "bridge0", "up")
        for host in self.hosts:
            self._make(self.namespace(host))
            self._wire(host)
        self.heal()

    def _make(self, namespace: str) -> None:
        _ip("netns", "add", namespace)
        self._made.append(namespace)

    def _wire(self, host: int) -> None:
        name, port = self.namespace(host), f"port{host}"
        cable = ("type", "veth", "peer", "name", "card", "address", _card(host), "netns", name)
        _ip("-n", self._hub, "link", "add", port, *cable)
        _ip("-n", self._hub, "link", "set", port, "master", "bridge0", "up")
        _ip("-n", name, "address", "add", f"{self.address(host)}/24", "dev", "card")
        for device in ("lo", "card"):
            _ip("-n", name, "link", "set", device, "up")

    def _know(self, host: int, other: int, card: str) -> None:
        """Tell a host which card another one has; it never asks the network."""
        neighbour = (self.address(other), "lladdr", card, "dev", "card", "nud", "permanent")
        _ip("-n", self.namespace(host), "neighbour", "replace", *neighbour)

    def _take_down(self) -> None:
        for namespace in self._made:
            subprocess.run(["ip", "netns", "del", namespace], capture_output=True, check=False)
        self._made.clear()


def _card(host: int) -> str:
    return f"02:00:00:00:00:{host:02x}"
