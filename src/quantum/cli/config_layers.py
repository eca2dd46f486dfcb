"""Where a setting gets its value: each layer's word, from the weakest to the strongest."""

from __future__ import annotations

import pwd
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from quantum.cli.admin_api import AdminApi
from quantum.cli.admin_client import AdminUnreachable, parse_address
from quantum.config import NAMES, load
from quantum.config.live import Takes
from quantum.config.loading import CONFIG_VARIABLE, DEFAULT, PREFIX


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
