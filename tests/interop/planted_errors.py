"""`quantum up` with a slip planted in each place that serves one connection, and in one machine.

Each slip is found by the word that it is looked for by, and by nothing else: the process is a
broker like any other until somebody says it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from clustor.kv import KvMachine
from clustor.runtime.admin import server as admin
from clustor.runtime.kv.service import KvService
from clustor.runtime.peers import transport
from quantum.cli import main as quantum
from quantum.edge import websocket
from quantum.protocols.mqtt.session import connection

WORD = b"planted"


def slips(function: Callable[..., Any], says: Callable[..., bytes]) -> Callable[..., Any]:
    """Return the function with an error in it, for what `says` the word."""

    def slipping(*args: Any, **kwargs: Any) -> Any:
        if WORD in says(*args, **kwargs):
            raise ZeroDivisionError("a slip, with the secret that it fell over")
        return function(*args, **kwargs)

    return slipping


def plant() -> None:
    admin.check_origin = slips(admin.check_origin, lambda head, *_, **__: head.path.encode())  # type: ignore[attr-defined]
    connection.scan = slips(connection.scan, lambda buffer, *_: bytes(buffer))  # type: ignore[attr-defined]
    websocket.WebSocket._answer = slips(  # type: ignore[method-assign]
        websocket.WebSocket._answer, lambda _, request: request.path.encode()
    )
    KvService.on_requests = slips(  # type: ignore[method-assign]
        KvService.on_requests,
        lambda _, __, requests: b"".join(each[3] for each in requests if each[2] == 2),
    )
    transport.Transport.check = slips(transport.Transport.check, lambda *_: WORD)  # type: ignore[method-assign]
    KvMachine.apply_batch = slips(  # type: ignore[method-assign]
        KvMachine.apply_batch, lambda _, __, commands: b"".join(commands)
    )


if __name__ == "__main__":
    plant()
    quantum()
