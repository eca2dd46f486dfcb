"""Writing a host's `quantum.toml`: what is there can be read by people, and by `tomllib`."""

from __future__ import annotations

import json
from collections.abc import Mapping

from clustor.runtime.cluster_file import NodeEntry


def host_toml(
    cluster: str,
    entry: NodeEntry,
    ports: Mapping[str, int],
    more: Mapping[str, str],
) -> str:
    """Return the file of one node; `quantum config show --config` lists all that it may say."""
    where = "[::]" if ":" in entry.host else "0.0.0.0"  # noqa: S104  # TLS is all that is spoken
    said: dict[str, object] = {
        "cluster": cluster,
        "node": entry.node_id,
        "host": entry.host,
        "zone": entry.zone,
        "peer": f"{where}:{entry.peer_port}",
        "admin": f"{where}:{entry.admin_port}",
        **{name: f"{where}:{port}" for name, port in ports.items()},
        **more,
    }
    head = f"# Node {entry.node_id} of {cluster}. Relative paths begin where this file is.\n"
    # A TOML string is a JSON string, as far as the values here go.
    return head + "".join(f"{name} = {json.dumps(value)}\n" for name, value in said.items())
