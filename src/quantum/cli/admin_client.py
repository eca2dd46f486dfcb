"""Asking nodes for their status, and ordering things, over the admin port."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterable
from typing import Any, Final

from clustor.runtime.transport import Address

TIMEOUT_SECONDS: Final = 2.0


class AdminUnreachable(Exception):
    """No node answered."""


def parse_address(text: str) -> Address:
    """Read HOST:PORT, or raise ValueError with one clear sentence."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65_536:
        raise ValueError(f"not an address like 127.0.0.1:7011: {text}")
    return Address(host.strip("[]"), int(port))


def fetch_status(address: Address) -> dict[str, Any]:
    """Return one node's status, or raise AdminUnreachable."""
    code, status = _ask(address, "GET", "/status", None)
    if code != 200:
        raise AdminUnreachable(f"{address} answered {code}")
    return status


def fetch(address: Address, path: str) -> tuple[int, dict[str, Any]]:
    """Return the code and the answer of a page, or raise AdminUnreachable."""
    return _ask(address, "GET", path, None)


def post(address: Address, path: str, body: dict[str, object]) -> tuple[int, dict[str, Any]]:
    """Order something; return the node's code and answer, or raise AdminUnreachable."""
    return _ask(address, "POST", path, json.dumps(body))


def _ask(address: Address, method: str, path: str, body: str | None) -> tuple[int, dict[str, Any]]:
    connection = http.client.HTTPConnection(address.host, address.port, timeout=TIMEOUT_SECONDS)
    headers = {} if body is None else {"Content-Type": "application/json"}
    try:
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        answer: dict[str, Any] = json.loads(response.read())
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise AdminUnreachable(f"cannot reach {address}: {error}") from error
    finally:
        connection.close()
    return response.status, answer


def cluster_status(addresses: Iterable[Address]) -> dict[str, Any]:
    """Ask the first node that answers who the others are, then ask them all."""
    known: dict[str, Any] | None = None
    problem = "no address"
    for address in addresses:
        try:
            known = fetch_status(address)
            break
        except AdminUnreachable as error:
            problem = str(error)
    if known is None:
        raise AdminUnreachable(problem)
    nodes: list[dict[str, Any]] = []
    for entry in known["nodes"]:
        if entry["node_id"] == known["node_id"]:
            nodes.append(known)
            continue
        try:
            nodes.append(fetch_status(parse_address(entry["admin"])))
        except AdminUnreachable as error:
            nodes.append({"node_id": entry["node_id"], "error": str(error)})
    return {"cluster_id": known["cluster_id"], "nodes": nodes, "addresses": known["nodes"]}
