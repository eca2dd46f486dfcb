"""`listening.json`: where a broker listens, for commands that print lines to try."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from clustor.runtime.cluster_file import ADMIN_ROLE, CLUSTER_FILE, read_cluster_file
from clustor.runtime.data_directory import write_durably
from clustor.runtime.errors import NodeError

LISTENING_FILE: Final = "listening.json"
MQTTS_PORT: Final = 8883
MQTT_ROLE: Final = 2
MQTTS_ROLE: Final = 3
WS_ROLE: Final = 4
KAFKA_ROLE: Final = 5
AMQP_ROLE: Final = 6
WSS_ROLE: Final = 7
KAFKAS_ROLE: Final = 8
"""A cluster's node has ten ports; these are its listeners' places among them."""


def note_listening(data: Path, addresses: Mapping[str, str]) -> None:
    """Write down where the listeners are; a disk that refuses takes nothing from anybody."""
    with contextlib.suppress(OSError):
        write_durably(data / LISTENING_FILE, json.dumps(dict(addresses)).encode() + b"\n", 0o644)


def mqtts_port(data: Path) -> int:
    """Return where TLS clients go: as the broker said, else its cluster's first node."""
    try:
        noted = json.loads((data / LISTENING_FILE).read_bytes())
        return int(str(noted["mqtts"]).rpartition(":")[2])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    try:
        entry = read_cluster_file(data / CLUSTER_FILE).nodes[0]
    except NodeError:
        return MQTTS_PORT
    if entry.clients:
        return int(entry.clients.get("mqtts", str(MQTTS_PORT)).rpartition(":")[2])
    return entry.admin_port - ADMIN_ROLE + MQTTS_ROLE
