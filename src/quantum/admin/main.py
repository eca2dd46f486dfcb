"""The process of one broker node with its admin API: `python -m quantum.admin.main …`.

The broker of `quantum.node.main`, with `/v1` on its admin port; the same flags and exit codes.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from clustor.runtime import main as clustor_main
from clustor.runtime.admin.server import AdminServer
from clustor.runtime.node import Node
from quantum.admin.attaching import attach
from quantum.node.main import serve_mqtt


async def serve(node: Node, admin: AdminServer, cluster_file: Path) -> Callable[[], None]:
    """Serve MQTT, and the API beside it."""
    attach(node, admin)
    return await serve_mqtt(node, admin, cluster_file)


def main() -> None:
    clustor_main.main(serve)


if __name__ == "__main__":
    main()
