"""Asking nodes for their status, and ordering things, over the admin port."""

from __future__ import annotations

import http.client
import json
import ssl
import threading
from collections.abc import Iterable, Mapping
from typing import Any, Final, NoReturn

from clustor.runtime.admin.caller import (
    Credentials,
    CredentialsUnusable,
    DoorRefused,
    explain_silence,
    open_http,
    why_refused,
)
from clustor.runtime.peers.address import Address
from quantum.cli.credentials import chosen
from quantum.cli.exits import Exit, fail

TIMEOUT_SECONDS: Final = 2.0


class AdminUnreachable(Exception):
    """No node answered."""


class AdminDoorShut(AdminUnreachable):
    """A node is there, but the two do not agree on TLS, or do not believe each other."""


def fail_unreachable(error: AdminUnreachable, hint: str = "") -> NoReturn:
    """End with one sentence; the hint is for where nobody is there."""
    if isinstance(error, AdminDoorShut):
        fail(str(error), Exit.CERTIFICATE)
    fail(f"{error}; {hint}" if hint else str(error), Exit.UNREACHABLE)


def parse_address(text: str) -> Address:
    """Read HOST:PORT, or raise ValueError with one clear sentence."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65_536:
        raise ValueError(f"not an address like 127.0.0.1:9080: {text}")
    return Address(host.strip("[]"), int(port))


def fetch_status(address: Address) -> dict[str, Any]:
    """Return one node's status, or raise AdminUnreachable."""
    code, status = _ask(address, "GET", "/status", None)
    if code in (401, 403):
        raise AdminDoorShut(f"{address} refused us: {status.get('message', code)}")
    if code != 200:
        raise AdminUnreachable(f"{address} answered {code}")
    return status


def fetch(
    address: Address, path: str, *, seconds: float = TIMEOUT_SECONDS
) -> tuple[int, dict[str, Any]]:
    """Return the code and the answer of a page, or raise AdminUnreachable."""
    return _ask(address, "GET", path, None, seconds=seconds)


def post(address: Address, path: str, body: dict[str, object]) -> tuple[int, dict[str, Any]]:
    """Order something; return the node's code and answer, or raise AdminUnreachable."""
    return _ask(address, "POST", path, json.dumps(body))


def _ask(
    address: Address,
    method: str,
    path: str,
    body: str | None,
    *,
    seconds: float = TIMEOUT_SECONDS,
) -> tuple[int, dict[str, Any]]:
    headers = {} if body is None else {"Content-Type": "application/json"}
    code, content, _ = exchange(address, method, path, body, headers=headers, seconds=seconds)
    return code, content


def exchange(
    address: Address,
    method: str,
    target: str,
    body: str | bytes | None,
    *,
    headers: Mapping[str, str],
    seconds: float,
    credentials: Credentials | None = None,
) -> tuple[int, Any, dict[str, str]]:
    """Ask once, as these or as whom the command speaks; return the answer's code, JSON, headers.

    Raises AdminUnreachable; AdminDoorShut where TLS is what stands between us.
    """
    try:
        connection = open_http(address, credentials or chosen(), seconds=seconds)
    except (CredentialsUnusable, DoorRefused) as error:
        raise AdminDoorShut(str(error)) from error
    except OSError as error:
        raise AdminUnreachable(f"cannot reach {address}: {error}") from error
    try:
        connection.request(method, target, body, dict(headers))
        response = connection.getresponse()
        content = json.loads(response.read())
    except ssl.SSLError as error:  # under TLS 1.3 a refusal comes after our own handshake
        raise AdminDoorShut(why_refused(address, error)) from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        is_plain = not isinstance(connection, http.client.HTTPSConnection)
        # One that hangs hangs on under TLS too; one that wants TLS says so, or hangs up.
        asks = is_plain and not isinstance(error, TimeoutError)
        wants_tls = explain_silence(address) if asks else None
        if wants_tls is not None:
            raise AdminDoorShut(wants_tls) from error
        raise AdminUnreachable(f"cannot reach {address}: {error}") from error
    finally:
        connection.close()
    return response.status, content, dict(response.getheaders())


def why_shut(address: Address) -> str | None:
    """Say what TLS has to do with a silence; None: nothing."""
    try:
        fetch(address, "/status")
    except AdminDoorShut as error:
        return str(error)
    except AdminUnreachable:
        pass
    return None


def cluster_status(addresses: Iterable[Address]) -> dict[str, Any]:
    """Ask these nodes who the others are, and those as well: each once, all at the same time."""
    heard, silent = _ask_at_once(addresses)
    if not heard:
        errors = sorted(silent.values(), key=lambda each: isinstance(each, AdminDoorShut))
        raise errors[-1] if errors else AdminUnreachable("no address")
    known = next(iter(heard.values()))
    by_node = {status["node_id"]: status for status in heard.values()}
    places = {
        entry["node_id"]: parse_address(entry["admin"])
        for entry in known["nodes"]
        if entry["node_id"] not in by_node
    }
    more, also_silent = _ask_at_once(place for place in places.values() if place not in silent)
    by_node |= {status["node_id"]: status for status in more.values()}
    silent |= also_silent
    nodes = [
        by_node.get(entry["node_id"])
        or {"node_id": entry["node_id"], "error": str(silent.get(places[entry["node_id"]]))}
        for entry in known["nodes"]
    ]
    return {"cluster_id": known["cluster_id"], "nodes": nodes, "addresses": known["nodes"]}


def _ask_at_once(
    addresses: Iterable[Address],
) -> tuple[dict[Address, dict[str, Any]], dict[Address, AdminUnreachable]]:
    """Ask all of them at the same time: one that hangs costs its deadline once.

    Returns what was answered, and why where nothing was.
    """
    heard: dict[Address, dict[str, Any]] = {}
    silent: dict[Address, AdminUnreachable] = {}

    def ask(address: Address) -> None:
        try:
            heard[address] = fetch_status(address)
        except AdminUnreachable as error:
            silent[address] = error

    places = list(dict.fromkeys(addresses))
    threads = [threading.Thread(target=ask, args=(place,)) for place in places]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    in_order = {place: heard[place] for place in places if place in heard}
    return in_order, {place: silent[place] for place in places if place in silent}
