"""What all commands of `quantum admin` share: whom they ask, as whom, and how they fail."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Final, NoReturn

import typer

from quantum.cli.admin_api import Told
from quantum.cli.admin_client import AdminUnreachable, fail_unreachable
from quantum.cli.exits import Exit, fail

ADMIN_DEFAULT: Final = "127.0.0.1:9080"
_EXITS: Final = {
    400: Exit.USAGE,
    401: Exit.CERTIFICATE,
    404: Exit.NOT_FOUND,
    405: Exit.USAGE,
    409: Exit.CONFLICT,
    422: Exit.USAGE,
    503: Exit.UNREACHABLE,
    504: Exit.UNREACHABLE,
}

Admin = Annotated[
    str,
    typer.Option(
        metavar="HOST:PORT", envvar="QUANTUM_ADMIN", help="The admin address of any node."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")]
RequestId = Annotated[
    str | None,
    typer.Option("--idempotency-key", help="Names the call: repeated, it is carried out once."),
]
Replace = Annotated[
    bool, typer.Option("--replace", help="Give what is not named its default again.")
]
Token = Annotated[
    str | None, typer.Option("--break-glass", help="The break-glass token that is used up.")
]


@contextmanager
def telling() -> Iterator[None]:
    """End with one sentence where a node cannot be asked."""
    try:
        yield
    except AdminUnreachable as error:
        fail_unreachable(error, "start a broker with `quantum up`")


def fail_told(told: Told) -> NoReturn:
    """End with what the node refused, and what to do about it."""
    body = told.body if isinstance(told.body, dict) else {}
    facts = ", ".join(f"{name}={value}" for name, value in (body.get("facts") or {}).items())
    said = body.get("message") or body.get("error") or f"the node answered {told.code}"
    name = f"{body['error']}: " if "message" in body else ""
    then = f"\n  next: {body['next']}" if body.get("next") else ""
    fail(f"{name}{said}{f' ({facts})' if facts else ''}{then}", _EXITS.get(told.code, Exit.FAILED))
