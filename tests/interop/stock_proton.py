"""Apache Qpid Proton as the applications of a test use it: blocking, and never waiting for ever."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from proton import ConnectionException, Message, ProtonException
from proton.reactor import Copy, LinkOption
from proton.utils import BlockingConnection, LinkDetached

WAIT_SECONDS = 30.0


class DrainMode(LinkOption):
    """Ask for what is there and no more."""

    def apply(self, link: Any) -> None:
        link.drain_mode = True


@contextmanager
def connected(port: int, **options: Any) -> Iterator[Any]:
    """Connect, and be gone again whatever happened."""
    connection: Any = BlockingConnection(f"127.0.0.1:{port}", timeout=WAIT_SECONDS, **options)
    try:
        yield connection
    finally:
        with suppress(ProtonException, ConnectionException):
            connection.close()


def send_all(connection: Any, address: str, *bodies: Any) -> None:
    """Send, and wait until each is accepted."""
    sender = connection.create_sender(address)
    for body in bodies:
        message = body if isinstance(body, Message) else Message(body=body)
        sender.send(message, timeout=WAIT_SECONDS)
    sender.close()


def take_all(connection: Any, address: str, count: int, *, accept: bool = True) -> list[Any]:
    """Receive so many, and accept each."""
    receiver = connection.create_receiver(address, credit=min(count, 100) or 1)
    found: list[Any] = []
    for _ in range(count):
        found.append(receiver.receive(timeout=WAIT_SECONDS))
        if accept:
            receiver.accept()
    receiver.close()
    return found


def browse(connection: Any, address: str, count: int) -> list[Any]:
    """Look at so many, and take none."""
    receiver = connection.create_receiver(address, credit=count, options=Copy())
    found = [receiver.receive(timeout=WAIT_SECONDS) for _ in range(count)]
    receiver.close()
    return found


def is_empty(receiver: Any, seconds: float = 0.3) -> bool:
    """Say whether nothing comes for a while."""
    try:
        receiver.receive(timeout=seconds)
    except ProtonException:
        return True
    return False


def until_connected(port: int, seconds: float = 60.0) -> Any:
    """Connect as soon as somebody is there."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return BlockingConnection(f"127.0.0.1:{port}", timeout=WAIT_SECONDS)
        except (ProtonException, ConnectionException, OSError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


__all__ = [
    "DrainMode",
    "LinkDetached",
    "browse",
    "connected",
    "is_empty",
    "send_all",
    "take_all",
    "until_connected",
]
