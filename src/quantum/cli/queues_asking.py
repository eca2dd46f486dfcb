"""How commands about queues ask a node: pages, orders, and how long they wait."""

from __future__ import annotations

import json
from typing import Any, Final
from urllib.parse import quote, urlencode

from quantum.cli.admin_client import (
    AdminUnreachable,
    exchange,
    fail_unreachable,
    parse_address,
)
from quantum.cli.broker import get_page, tenant_path
from quantum.cli.exits import Exit, fail

_SECONDS_MAX: Final = 20.0
"""An order looks for a leader for half as long."""
_PAGE: Final = 1_000


def queue_path(admin: str, tenant: str, name: str = "") -> str:
    """Return the page of a queue, or of all."""
    path = f"{tenant_path(admin, tenant)}/queues"
    return f"{path}/{quote(name, safe='')}" if name else path


def order(admin: str, path: str, body: dict[str, object]) -> dict[str, Any]:
    """Order something; any node finds the leader."""
    try:
        code, answer, _ = exchange(
            parse_address(admin),
            "POST",
            path,
            json.dumps(body),
            headers={"Content-Type": "application/json"},
            seconds=_SECONDS_MAX,
        )
    except ValueError as error:
        fail(str(error), Exit.USAGE)
    except AdminUnreachable as error:
        fail_unreachable(error)
    if code >= 400:
        fail(str(answer.get("message", code)), Exit.FAILED)
    found: dict[str, Any] = answer
    return found


def all_rows(admin: str, path: str, limit: int | None = None, **query: object) -> list[Any]:
    """Walk the pages of a listing, as far as `limit`."""
    rows: list[Any] = []
    after: str | None = ""
    while after is not None and (limit is None or len(rows) < limit):
        most = _PAGE if limit is None else min(_PAGE, limit - len(rows))
        asked = {"limit": most, **query, **({"after": after} if after else {})}
        page = get_page(admin, f"{path}?{urlencode(asked)}")
        rows += page["items"]
        after = page["after"] if page["items"] else None
    return rows
