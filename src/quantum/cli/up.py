"""`quantum up`: start a development broker."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Annotated

import typer
import uvloop

from clustor.log.errors import LogError
from clustor.raft.errors import DataLost
from clustor.replica import ReplicaError
from clustor.runtime.disk import DiskError
from clustor.runtime.disk.memory import keep_freed_memory
from clustor.runtime.errors import NodeError
from clustor.runtime.main import check_self, raise_file_limit
from clustor.runtime.telemetry.journal import set_up_logging
from quantum.admin.attaching import attach
from quantum.cli.config import load_or_fail
from quantum.cli.exits import Exit, exit_of, fail
from quantum.cli.naming import own_command
from quantum.cli.node_exits import exit_of_node
from quantum.cli.option_groups import grouped
from quantum.cli.up_options import UpOptions
from quantum.edge.errors import CertificatesUnusable, EdgeError, ListenFailed
from quantum.node.up import serve_alone


@grouped
def up(
    *,
    options: UpOptions,
    config: Annotated[Path | None, typer.Option(help="A TOML file.")] = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Say what the node does.")] = False,
) -> None:
    """Start a development broker in this process: one node, tenant `dev`, durable under DATA.

    Every acknowledgement is on disk first. Ctrl-C stops it; kill it, and it comes back with
    sessions, queues and retained messages. `quantum config show` prints all settings; each has
    an environment variable (QUANTUM_MQTT=…) and a key of the TOML file.
    """
    settings = load_or_fail(options.flags(), config).settings
    level = logging.INFO if verbose else logging.WARNING
    set_up_logging(1, level=level)
    try:
        check_self()
        keep_freed_memory()
        raise_file_limit()
        uvloop.run(serve_alone(settings, _say, attach, command=own_command()))
    except ListenFailed as error:
        others = "--mqtt, --mqtts, --ws, --kafka or --amqp"
        fail(f"{error}; choose another with {others}", Exit.PORT_TAKEN)
    except CertificatesUnusable as error:
        fail(str(error), Exit.CERTIFICATE)
    except EdgeError as error:
        fail(str(error), Exit.USAGE)
    except NodeError as error:
        fail(str(error), exit_of_node(error))
    except (ReplicaError, DataLost, DiskError) as error:
        fail(str(error), Exit.REPLICA)
    except LogError as error:
        fail(str(error), exit_of(error))


def _say(line: str) -> None:
    typer.echo(line)
    sys.stdout.flush()
