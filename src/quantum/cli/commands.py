"""Which commands there are, and the page that lists them: nothing else is imported for it."""

from __future__ import annotations

import shutil
import textwrap
from typing import Final, NamedTuple


class CommandEntry(NamedTuple):
    """Where a command is, and what the list of commands says of it."""

    module: str
    attribute: str
    summary: str


# In the order of the help.
COMMANDS: Final[dict[str, CommandEntry]] = {
    "up": CommandEntry(
        "up",
        "up",
        "Start a development broker in this process: one node, tenant `dev`, durable under DATA.",
    ),
    "pub": CommandEntry("pub", "pub", "Publish MESSAGE to TOPIC."),
    "sub": CommandEntry("sub", "sub", "Print messages of FILTER, until Ctrl-C or --count."),
    "status": CommandEntry(
        "broker", "status", "Show the broker's partitions: who serves them, and what is in them."
    ),
    "sessions": CommandEntry(
        "broker", "sessions", "List sessions: connected clients, and those that will come back."
    ),
    "session": CommandEntry("broker", "session_app", "Look at one session, or end it."),
    "why": CommandEntry(
        "why", "why", "Say what stands in the way of a client or of a group, in sentences."
    ),
    "explain": CommandEntry("explain", "app", "Say which rule decides, or where a message was."),
    "receipts": CommandEntry(
        "receipts", "app", "Proof that a message was on the disks of a quorum: get it, verify it."
    ),
    "doctor": CommandEntry(
        "doctor", "doctor", "Examine a node, or a whole cluster, from outside, and say what to do."
    ),
    "scrub": CommandEntry(
        "scrub",
        "scrub",
        "Read every log again now, past the page cache, and authenticate every byte of it.",
    ),
    "streams": CommandEntry("streams", "app", "Messages kept by offset: captured, read, replayed."),
    "queues": CommandEntry("queues", "app", "AMQP's queues: made, looked at, emptied, moved."),
    "amqp": CommandEntry("amqp", "app", "Send messages to AMQP's queues, and receive them."),
    "tenants": CommandEntry("tenants", "app", "Look at tenants' rings, or let one grow."),
    "kafka": CommandEntry("kafka", "app", "Kafka's topics, groups, records, transactions."),
    "users": CommandEntry(
        "users", "app", "Users of a tenant: who may come by a user name and a password."
    ),
    "topics": CommandEntry("broker", "topics", "List the filters that clients subscribe to."),
    "retained": CommandEntry("broker", "retained", "List retained messages."),
    "bench": CommandEntry("bench", "app", "Put load on a broker."),
    "cert": CommandEntry(
        "cert", "app", "Issue, renew and revoke certificates of a development broker."
    ),
    "keys": CommandEntry("keys", "app", "Keys: which there are, and new ones."),
    "node": CommandEntry("enrol", "app", "Run the node of a host; let new nodes into a cluster."),
    "audit": CommandEntry("audit", "app", "Verify and read a node's audit log."),
    "traces": CommandEntry(
        "traces", "traces", "Print traces of messages, over all nodes of a cluster."
    ),
    "admin": CommandEntry(
        "admin",
        "app",
        "Read and change what the control plane holds: nodes, tenants, groups, configuration,"
        " keys.",
    ),
    "archive": CommandEntry(
        "archive",
        "app",
        "Look at an archive of closed segments and snapshots; let go of the oldest.",
    ),
    "backup": CommandEntry(
        "backup", "app", "Points in time that a cluster's archive can be gone back to."
    ),
    "restore": CommandEntry(
        "restore",
        "restore",
        "Make a cluster's directory out of an archive and the keys that sealed it, and nothing"
        " else.",
    ),
    "at": CommandEntry(
        "restore",
        "at",
        "Look at a broker as it stood at a moment, out of its archive: the living one is not"
        " asked.",
    ),
    "drill": CommandEntry("backup", "drill_app", "Practise what must work one day."),
    "lake": CommandEntry(
        "lake", "app", "Logs as tables: ingest, verify, replay, and what can be asked of them."
    ),
    "config": CommandEntry("config", "app", "Look at the configuration of a broker."),
    "cluster": CommandEntry(
        "cluster",
        "app",
        "Run a development cluster on this machine, look at a cluster, change its members.",
    ),
    "kv": CommandEntry("kv", "app", "Read and write the replicated key-value store of a cluster."),
    "log": CommandEntry(
        "log",
        "app",
        "Look into a log on disk: verify it, print its entries, measure it. Reads only.",
    ),
    "sim": CommandEntry(
        "sim",
        "sim",
        "Run clusters of 3 to 7 nodes under drawn faults, and judge them from outside.",
    ),
    "selftest": CommandEntry(
        "selftest",
        "selftest",
        "Rerun the specification's vectors with the code that handles real data.",
    ),
    "spec": CommandEntry("spec", "app", "Print what this build speaks, as canonical JSON."),
}

GROUPS: Final[dict[str, tuple[str, ...]]] = {
    "Start a broker": ("up", "cluster", "node", "config"),
    "Be a client": ("pub", "sub", "streams", "kafka", "queues", "amqp", "kv", "bench"),
    "Look, and ask why": (
        *("status", "sessions", "session", "topics", "retained"),
        *("why", "explain", "receipts", "doctor", "traces", "audit"),
    ),
    "Administer it": ("admin", "tenants", "users", "cert", "keys"),
    "Keep it for years": ("scrub", "archive", "backup", "restore", "at", "drill"),
    "Work with its logs": ("lake", "log"),
    "Trust it": ("sim", "selftest", "spec"),
}
"""Every command once, in the order of the page."""

_WIDTH_MAX: Final = 100


def overview(program: str) -> str:
    """Return the page of `quantum --help`, as wide as the terminal, `program` being its name."""
    width = min(shutil.get_terminal_size().columns, _WIDTH_MAX)
    indent = 4 + max(map(len, COMMANDS))
    lines = [
        f"Usage: {program} COMMAND [ARGUMENTS]",
        "",
        "A message broker whose acknowledgement means: fsynced on a quorum.",
    ]
    for title, names in GROUPS.items():
        lines += ["", f"{title}:"]
        for name in names:
            lines += textwrap.wrap(
                COMMANDS[name].summary,
                max(width, indent + 20),
                initial_indent=f"  {name}".ljust(indent),
                subsequent_indent=" " * indent,
            )
    lines += [
        "",
        f"  {program} COMMAND --help   what a command takes, with examples",
        f"  {program} --version        what runs here",
    ]
    return "\n".join(lines)
