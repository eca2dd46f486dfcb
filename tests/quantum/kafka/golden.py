"""Requests that stock clients really sent: one file for each client, a line for each request."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

DIRECTORY = Path(__file__).parent / "golden"
KIND_BYTES = 4  # api_key and api_version


def keep(client: str, requests: Iterable[bytes]) -> None:
    """With `QUANTUM_GOLDEN` set, add what is new in kind; Produce is kept once for each codec."""
    if not os.environ.get("QUANTUM_GOLDEN"):
        return
    DIRECTORY.mkdir(exist_ok=True)
    path = DIRECTORY / f"{client}.txt"
    lines = path.read_text().split() if path.exists() else []
    kinds = [bytes.fromhex(line)[:KIND_BYTES] for line in lines]
    for request in requests:
        kind = request[:KIND_BYTES]
        most = 6 if kind[:2] == b"\x00\x00" else 2
        if kinds.count(kind) < most and request.hex() not in lines:
            kinds.append(kind)
            lines.append(request.hex())
    path.write_text("\n".join(lines) + "\n")


def requests() -> list[bytes]:
    """Return all golden requests."""
    return [
        bytes.fromhex(line)
        for path in sorted(DIRECTORY.glob("*.txt"))
        for line in path.read_text().split()
    ]
