"""Writes `docs/configuration.md` from the settings: `python -m tools.configuration_page`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Final

from clustor.control.tenants import QUOTA_MAXIMA, QuotaPolicy
from quantum.cli.config_layers import CLUSTER_FILE_KEYS, QUOTA_NAMES
from quantum.config import NAMES, about
from quantum.config.live import LIVE_KEYS
from quantum.config.settings import kind_of, shown_default
from quantum.tenancy import QUOTA_MAXIMA as TENANCY_MAXIMA
from quantum.tenancy import Quotas

PAGE: Final = Path(__file__).parent.parent / "docs" / "configuration.md"

_HEAD: Final = """# Configuration

Made from the settings themselves by `python -m tools.configuration_page`; a test compares them.
Ask a running broker with `quantum config show`, and for one key `quantum config explain KEY`:
its value, who set it, when it takes effect, and how to change it.
"""
_SETTINGS: Final = """## Settings of `quantum up`

Each is a variable (`QUANTUM_PACKET_BYTES_MAX`) and a key of the TOML file of `--config`, the first
ones are flags too (`quantum up --help`). A flag wins over a variable, that over the file, that over
the default.
"""
_LIVE: Final = """## Keys of the control plane

Set for the cluster or for one tenant with `quantum admin config set`, in force while brokers
run. They win over the settings above.
"""
_QUOTAS: Final = """## Quotas of a tenant

`quantum admin tenants set-quotas TENANT --quotas '{"connections_max": 5000}'` changes what is
named and leaves the rest; `--replace` gives everything else its default again. `quantum admin
tenants quotas TENANT` shows them.

Beyond a quota there is a **grace**: for `overage_grace_ms` (24 hours) half as much again is let
in and slowed, then nothing more, until the tenant has stayed within its quota for as long. So
`connections_max: 2` lets a third client in during that time, and says so when it is set. With
`overage_grace_ms: 0` a quota is the bound itself: 2 admits 2. (What partitions store keeps a
grace of 24 hours, or none where it is 0.) The offline queue's bounds are those that a tenant is
made with.
"""
_FILE: Final = """## Quotas in `tenants.toml`

The same and a few more under `[tenants.NAME.quotas]`, until the control plane has quotas of its
own for the tenant.
"""
_CLUSTER: Final = """## Keys of each node's cluster.json

Read at a node's start.
"""


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(headings)} |"
    yield f"|{' --- |' * len(headings)}"
    for row in rows:
        yield f"| {' | '.join(each.replace('|', chr(92) + '|') for each in row)} |"


def settings() -> Iterator[tuple[str, ...]]:
    for name in NAMES:
        default = shown_default(name) or "none"
        yield f"`{name}`", default, kind_of(name).allowed, about(name)


def live() -> Iterator[tuple[str, ...]]:
    for name, key in LIVE_KEYS.items():
        places = ("cluster",) * key.of_cluster + ("tenant",) * key.of_tenant
        yield f"`{name}`", key.default, " or ".join(places), key.takes.value, key.about


def quotas() -> Iterator[tuple[str, ...]]:
    stands = QuotaPolicy(tenant_id="")
    for name in QUOTA_NAMES:
        most = QUOTA_MAXIMA.get(name)
        if name == "overage_grace_ms":
            most = TENANCY_MAXIMA.overage_grace_ms
        yield f"`{name}`", f"{getattr(stands, name):,}", f"{most:,}" if most else "no bound"


def file_quotas() -> Iterator[tuple[str, ...]]:
    for each in fields(Quotas):
        most = getattr(TENANCY_MAXIMA, each.name)
        yield f"`{each.name}`", f"{each.default:,}", f"{most:,}"


def cluster_keys() -> Iterator[tuple[str, ...]]:
    for name, (default, words) in CLUSTER_FILE_KEYS.items():
        yield f"`{name}`", default, words


def page() -> str:
    """Return the whole page."""
    bound = ("quota", "default", "at most")
    parts = [
        (_SETTINGS, ("setting", "default", "allowed", "what it is"), settings()),
        (_LIVE, ("key", "default", "of", "takes effect", "what it is"), live()),
        (_QUOTAS, bound, quotas()),
        (_FILE, bound, file_quotas()),
        (_CLUSTER, ("key", "default", "what it is"), cluster_keys()),
    ]
    sections = ["\n".join((head, *table(names, rows), "")) for head, names, rows in parts]
    return "\n".join((_HEAD, *sections))


if __name__ == "__main__":
    PAGE.write_text(page())
