"""Where a setting gets its value: each layer's word, from the weakest to the strongest."""

from __future__ import annotations

import pwd
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from clustor.control import QuotaPolicy
from quantum.cli.admin_api import AdminApi
from quantum.cli.admin_client import AdminUnreachable, parse_address
from quantum.config import NAMES, HostSettings, about, is_host_file, load, load_host
from quantum.config.live import LIVE_KEYS, Takes
from quantum.config.loading import CONFIG_VARIABLE, DEFAULT, PREFIX
from quantum.config.settings import names_of


@dataclass(frozen=True, slots=True)
class Layer:
    """What one layer says; the last one that says something is in force."""

    layer: str
    value: object
    source: str
    set_by: str = "-"
    set_at: str = "-"
    takes_effect: str = "at the start"

    @property
    def is_taken(self) -> bool:
        """Whether brokers act on it, now or at their next start."""
        return self.takes_effect != Takes.NEVER.value


def local_layers(
    key: str, environment: Mapping[str, str], file: Path | None, flag: str | None
) -> list[Layer]:
    """Return what defaults, file, environment and flag say of a setting of `quantum up`.

    Raises ConfigurationError for what would keep a broker from starting.
    """
    if file is not None and file.exists() and is_host_file(file):
        return _host_layers(key, file)
    if key not in NAMES:
        return []
    found = [Layer("default", load({}, {}).shown(key), "built in")]
    if file is None and environment.get(CONFIG_VARIABLE):
        file = Path(environment[CONFIG_VARIABLE])
    if file is not None:
        said = load({}, {}, file)
        if said.sources[key] != DEFAULT:
            owner, changed = _owner_of(file)
            found.append(Layer("file", said.shown(key), said.sources[key], owner, changed))
    variable = PREFIX + key.upper()
    if variable in environment:
        said = load({}, {variable: environment[variable]})
        found.append(Layer("environment", said.shown(key), variable, "this shell"))
    if flag is not None:
        said = load({key: flag}, {})
        found.append(Layer("flag", said.shown(key), said.sources[key], "this command"))
    return found


def _host_layers(key: str, file: Path) -> list[Layer]:
    """A production node is one file: it says all by itself."""
    if key not in names_of(HostSettings):
        return []
    said = load_host(file)
    if said.sources[key] == DEFAULT:
        return [Layer("default", said.shown(key), "built in")]
    return [Layer("file", said.shown(key), said.sources[key], *_owner_of(file))]


QUOTA_NAMES: Final = tuple(
    name for name in QuotaPolicy.__struct_fields__ if name not in ("tenant_id", "version")
)


CLUSTER_FILE_KEYS: Final = {
    "patience": ("1", "how many times as long elections wait: for slow disks and networks"),
    "flow.structural_hard_block": (
        "false",
        "whether every write is refused, by an operator's word",
    ),
}
"""What stands in each node's cluster.json, and is read at its start."""


def knows(key: str) -> bool:
    """Say whether there is such a key at all, whoever sets it."""
    return any(key in each for each in (NAMES, LIVE_KEYS, QUOTA_NAMES, CLUSTER_FILE_KEYS))


def built_in(key: str, tenant: str | None) -> list[Layer]:
    """Return what holds of a key that `quantum up` does not take, while nobody sets it."""
    if key in QUOTA_NAMES and (tenant is not None or key not in NAMES):
        return [Layer("default", getattr(QuotaPolicy(tenant_id=""), key), "built in")]
    if key in LIVE_KEYS and key not in NAMES:
        return [Layer("default", LIVE_KEYS[key].default, "built in")]
    if key in CLUSTER_FILE_KEYS:
        return [Layer("default", CLUSTER_FILE_KEYS[key][0], "built in")]
    return []


def how_to_set(key: str) -> str:
    """Say what a key is and by which command it changes."""
    if key in QUOTA_NAMES and key not in NAMES:
        change = f"`quantum admin tenants set-quotas TENANT --quotas '{{\"{key}\": N}}'`"
        return f"a quota of each tenant; change it with {change}"
    if key in CLUSTER_FILE_KEYS:
        return f"{CLUSTER_FILE_KEYS[key][1]}; change it in every node's cluster.json, and restart"
    if key in LIVE_KEYS:
        found = LIVE_KEYS[key]
        scope = "Tenant/NAME" if found.of_tenant else "Cluster"
        change = f"`quantum admin config set --scope {scope} --document '{{\"{key}\": …}}'`"
        return f"{found.about}; change it with {change}"
    return f"{about(key)}; change it with {PREFIX}{key.upper()}, or in the file of --config"


def quota_layer(admin: str, key: str, tenant: str) -> Layer | None:
    """Return the quota that somebody set for a tenant. Raises ValueError for what is no address."""
    try:
        told = AdminApi(parse_address(admin)).ask("GET", f"/v1/tenants/{quote(tenant)}/quotas")
    except AdminUnreachable:
        return None
    if not told.is_done or told.body["version"] == "0":
        return None
    source = f"Tenant {tenant} quotas version {told.body['version']}"
    return Layer("control plane", told.body[key], source, takes_effect=Takes.LIVE.value)


def _owner_of(file: Path) -> tuple[str, str]:
    status = file.stat()
    try:
        owner = pwd.getpwuid(status.st_uid).pw_name
    except KeyError:
        owner = str(status.st_uid)
    return owner, _moment(int(status.st_mtime * 1000))


def _moment(milliseconds: int) -> str:
    return f"{datetime.fromtimestamp(milliseconds / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"


def control_layer(admin: str, key: str, scopes: Mapping[str, str]) -> Layer | str:
    """Return what the control plane says of a key, or a sentence why it says nothing.

    Raises ValueError for what is no address.
    """
    api = AdminApi(parse_address(admin))
    try:
        told = api.ask("GET", "/v1/config/explain", query={"key": key, **scopes})
    except AdminUnreachable:
        return f"no broker answered at {admin}: versions of the control plane are not shown"
    if told.code == 404:
        return "the control plane sets no such key"
    if not told.is_done:
        return f"the control plane did not say: {_said(told.body)}"
    body = told.body
    source = f"{_scope(body['scope'])} version {body['version']}"
    return Layer(
        "control plane",
        body["value"],
        source,
        body["set_by"],
        _moment(int(body["set_at"])),
        body.get("takes_effect", Takes.NEVER.value),
    )


def _said(body: Any) -> str:
    found = body.get("message") or body.get("error") if isinstance(body, dict) else None
    return str(found or "an unknown answer")


def _scope(scope: Mapping[str, str]) -> str:
    return scope["kind"] if scope["name"] == "all" else f"{scope['kind']} {scope['name']}"
