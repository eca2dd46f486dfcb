"""The real control plane's machine in this process, as the port that the API stands on."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from clustor.control import (
    KINDS,
    Answer,
    Caller,
    Command,
    DraftReading,
    call_refusal,
    decode_answer,
    encode_call,
)
from clustor.raft.control_plane import CacheState
from clustor.runtime.admin.http import Request, Response
from clustor.runtime.errors import ControlUnavailable
from quantum.admin import ApiServer, RefusalNote
from tests.clustor.control.plane import Plane, settled_plane

_KIND_OF = {kind.command: kind for kind in KINDS}


class Host:
    """Decides calls by a machine; how old its copy is, and whether it leads, is the test's word."""

    def __init__(self, plane: Plane) -> None:
        self.plane = plane
        self.age_ms: int | None = 0
        self.cache = CacheState.FRESH
        self.reachable = True
        self.wrap: Callable[[Any], DraftReading] = lambda store: store

    async def call(self, command: Command, caller: Caller, request_id: str) -> Answer:
        refusal = call_refusal(_KIND_OF[type(command)].freshness, self.cache)
        if refusal is not None:
            raise ControlUnavailable("ControlPlaneUnavailable", because=refusal.value)
        if not self.reachable:
            raise ControlUnavailable("no leader answered in time", maybe_applied=True, leader=2)
        encoded = encode_call(caller, request_id, self.plane.now_ms, command)
        return decode_answer(self.plane.apply(encoded))

    async def state(self, linearizable: bool) -> DraftReading:
        if linearizable and not self.reachable:
            raise ControlUnavailable("this replica is behind", because="NeededForReadIndex")
        return self.wrap(self.plane.machine.kv)

    def local_age(self) -> int | None:
        return self.age_ms


@dataclass
class Told:
    """A response, read back."""

    code: int
    body: Any
    headers: Mapping[str, str]


class Kept:
    """A sink of refusals."""

    def __init__(self) -> None:
        self.notes: list[RefusalNote] = []

    def note(self, refusal: RefusalNote) -> None:
        self.notes.append(refusal)


class Desk:
    """An API over a plane, and requests to it without a socket."""

    def __init__(
        self, plane: Plane | None = None, *, development: str | None = None, **more: Any
    ) -> None:
        self.host = Host(plane or settled_plane())
        self.kept = Kept()
        numbers = itertools.count(1)
        self.api = ApiServer(
            self.host,
            now_ms=lambda: self.plane.now_ms,
            draw_id=lambda: f"drawn-{next(numbers)}",
            development=development,
            sink=self.kept,
            **more,
        )

    @property
    def plane(self) -> Plane:
        return self.host.plane

    async def ask(
        self,
        method: str,
        target: str,
        body: object = None,
        *,
        certificate: bytes | None = None,
        encrypted: bool | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Told:
        under_tls = certificate is not None if encrypted is None else encrypted
        content = b"" if body is None else json.dumps(body).encode()
        request = Request(
            method,
            target,
            {"host": "127.0.0.1:9080", **(headers or {})},
            content,
            under_tls,
            certificate,
        )
        return told(await self.api.answer(request))


def told(response: Response) -> Told:
    assert isinstance(response.content, bytes)
    return Told(response.code, json.loads(response.content), response.headers)
