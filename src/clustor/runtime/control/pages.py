"""The control plane on a development node's admin port: one page that takes every call, and
the orders at groups that become calls.

On loopback nobody is asked for a name: who calls there is the cluster's operator (ruling C15).
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Annotated, Final

import msgspec

from clustor.control import Caller
from clustor.control.commands import decode_command
from clustor.control.objects import canonical
from clustor.control.types import Name
from clustor.runtime.admin.commands import Answer
from clustor.runtime.control.placement_requests import GroupOrders
from clustor.runtime.control.records import operator_of
from clustor.runtime.control.service import CALL_SECONDS_MAX, ControlService
from clustor.runtime.errors import ControlUnavailable
from clustor.runtime.pki.identity import ClusterId

PATH: Final = "/control/call"


class WantedCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`POST /control/call`: repeat it under the same id until it is answered."""

    request_id: Name
    command: msgspec.Raw
    seconds_max: Annotated[float, msgspec.Meta(gt=0, le=60)] = CALL_SECONDS_MAX
    break_glass: Name | None = None


class ControlPages:
    """Takes calls for one node's control service."""

    def __init__(self, service: ControlService, cluster: ClusterId, orders: GroupOrders) -> None:
        self._service = service
        self._operator = operator_of(cluster).identity
        self._orders = orders

    def post(self, path: str, body: bytes) -> Awaitable[Answer] | None:
        """Begin to answer; None: it is no page of ours."""
        return self._call(body) if path == PATH else self._orders.post(path, body)

    async def _call(self, body: bytes) -> Answer:
        try:
            wanted = msgspec.json.decode(body, type=WantedCall)
            command = decode_command(wanted.command)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            return 400, {"error": f"not a call: {error}"}
        caller = Caller(identity=self._operator, break_glass=wanted.break_glass)
        try:
            answer = await self._service.call(
                command, caller, wanted.request_id, seconds_max=wanted.seconds_max
            )
        except ControlUnavailable as error:
            return 503, {
                "error": error.reason,
                "maybe_applied": error.maybe_applied,
                **{name: str(fact) for name, fact in error.facts.items()},
            }
        return 200, canonical(answer)
