"""Kinds of values: how each is read from text or TOML, shown, and what is allowed."""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

_SIZE: Final = re.compile(r"(\d+)\s*(B|KiB|MiB|GiB)?")
_HOST: Final = re.compile(
    r"(?=.{1,253}\Z)(\*\.)?[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*"
)
_SCRYPT: Final = r"\$scrypt\$ln=\d{1,2},r=\d{1,2},p=\d{1,2}\$[\w+/=]{8,64}\$[\w+/=]{8,128}"
_SCRAM: Final = r"\$SCRAM-SHA-(256|512)\$i=\d{4,5}(\$[\w+/=]{4,88}){3}"
_HASH: Final = re.compile(rf"({_SCRYPT}|{_SCRAM})( {_SCRAM}){{0,2}}")
_UNITS: Final = {None: 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
OFF: Final = "off"


class ListenAddress(NamedTuple):
    """Where to listen."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


Value = ListenAddress | Path | str | int | None


@dataclass(frozen=True, slots=True)
class SettingKind:
    """How a value is read. `read` raises ValueError for what is not allowed."""

    read: Callable[[object], Value]
    allowed: str
    show: Callable[[Value], str] = str


def path() -> SettingKind:
    def read(raw: object) -> Path:
        if not isinstance(raw, str | Path) or not str(raw):
            raise ValueError
        return Path(raw)

    return SettingKind(read, "a path")


def address(*, plaintext: bool) -> SettingKind:
    """An address to listen on, or `off`; plaintext is for loopback alone (C15)."""

    def read(raw: object) -> ListenAddress | None:
        if raw == OFF:
            return None
        if not isinstance(raw, str):
            raise ValueError
        host, _, port = raw.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if not host or not port.isdecimal() or int(port) > 65_535:
            raise ValueError
        if plaintext and not _is_loopback(host):
            raise ValueError
        return ListenAddress(host, int(port))

    where = "a loopback HOST:PORT (it is plaintext)" if plaintext else "HOST:PORT"
    return SettingKind(
        read, f"{where}, or {OFF}", lambda value: OFF if value is None else str(value)
    )


def url() -> SettingKind:
    def read(raw: object) -> str | None:
        if raw == OFF:
            return None
        # Credentials in it are refused by who opens it: the complaint here repeats what it got.
        if not isinstance(raw, str) or not re.fullmatch(r"[a-z][a-z0-9+.-]*://\S*", raw):
            raise ValueError
        return raw

    shown = f"a URL such as s3://bucket/prefix or file:///path, or {OFF}"
    return SettingKind(read, shown, lambda value: OFF if value is None else str(value))


def host_names() -> SettingKind:
    """Names and addresses of this machine, with commas between them; nothing: none."""

    def read(raw: object) -> str:
        if not isinstance(raw, str):
            raise ValueError
        names = [name.strip().lower() for name in raw.split(",") if name.strip()]
        if not all(_is_address(name) or _HOST.fullmatch(name) for name in names):
            raise ValueError
        return ",".join(dict.fromkeys(names))

    return SettingKind(read, "names or addresses such as broker.example, with commas between them")


def text(pattern: str, allowed: str) -> SettingKind:
    """Words of a certain shape."""
    shape = re.compile(pattern)

    def read(raw: object) -> str:
        if not isinstance(raw, str) or not shape.fullmatch(raw):
            raise ValueError
        return raw

    return SettingKind(read, allowed)


def shut() -> SettingKind:
    """A listener that this table never opens."""

    def read(raw: object) -> None:
        if raw != OFF:
            raise ValueError

    return SettingKind(read, f"{OFF}: it is plaintext, which is for development", lambda _: OFF)


def key_set() -> SettingKind:
    """Public keys as JWKS spells them (RFC 7517); which kinds of keys is for who reads them."""

    def read(raw: object) -> str:
        found = json.loads(raw) if isinstance(raw, str) else None
        if not isinstance(found, dict) or not isinstance(found.get("keys"), list):
            raise ValueError
        return str(raw)

    return SettingKind(read, 'a set of public keys, {"keys": […]}')


def password_hash() -> SettingKind:
    """What is kept of a password; `quantum users add` makes it."""

    def read(raw: object) -> str:
        if not isinstance(raw, str) or not _HASH.fullmatch(raw):
            raise ValueError
        return raw

    return SettingKind(read, "a hash as `quantum users add` makes it")


def count(low: int, high: int, unit: str = "") -> SettingKind:
    def read(raw: object) -> int:
        number = _whole(raw)
        if not low <= number <= high:
            raise ValueError
        return number

    of = f" of {unit}" if unit else ""
    return SettingKind(read, f"a whole number{of} from {low:,} to {high:,}")


def choice(*words: str) -> SettingKind:
    """One of a few words."""

    def read(raw: object) -> str:
        if raw not in words:
            raise ValueError
        return str(raw)

    return SettingKind(read, " or ".join(words))


def size(low: int, high: int) -> SettingKind:
    """Bytes; text may have a unit, as in `64 MiB`."""

    def read(raw: object) -> int:
        found = _SIZE.fullmatch(raw.strip()) if isinstance(raw, str) else None
        number = int(found[1]) * _UNITS[found[2]] if found else _whole(raw)
        if not low <= number <= high:
            raise ValueError
        return number

    return SettingKind(read, f"a size from {shown_size(low)} to {shown_size(high)}", shown_size)


def shown_size(value: Value) -> str:
    """Return bytes with the largest unit that says them exactly."""
    assert isinstance(value, int)
    for unit in ("GiB", "MiB", "KiB"):
        if value and value % _UNITS[unit] == 0:
            return f"{value // _UNITS[unit]} {unit}"
    return f"{value} B"


def _whole(raw: object) -> int:
    if isinstance(raw, bool):
        raise ValueError
    if isinstance(raw, int):
        return raw
    if isinstance(raw, str) and raw.replace("_", "").isdecimal():
        return int(raw)
    raise ValueError


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
