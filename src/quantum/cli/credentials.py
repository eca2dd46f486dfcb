"""As whom commands speak to admin ports: `--cert`, `--key` and `--ca`, for all of them alike."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from clustor.runtime.admin.caller import (
    AUTHORITY_VARIABLE,
    CERTIFICATE_VARIABLE,
    DATA_VARIABLE,
    KEY_VARIABLE,
    NOBODY,
    Credentials,
)
from quantum.cli.exits import Exit, fail

Cert = Annotated[
    Path | None,
    typer.Option(
        "--cert",
        envvar=CERTIFICATE_VARIABLE,
        help="Our certificate (PEM), where the admin port wants TLS.",
    ),
]
Key = Annotated[
    Path | None,
    typer.Option(
        "--cert-key", "--key", envvar=KEY_VARIABLE, help="Its key, if it is in another file."
    ),
]
KeyOnly = Annotated[
    Path | None,
    typer.Option("--cert-key", envvar=KEY_VARIABLE, help="Its key, if it is in another file."),
]
Authority = Annotated[
    Path | None,
    typer.Option("--ca", envvar=AUTHORITY_VARIABLE, help="The cluster's authority (PEM)."),
]
_OPTIONS: Final[dict[str, Any]] = {"cert": Cert, "cert_key": Key, "ca": Authority}

_chosen = NOBODY


def chosen() -> Credentials:
    """Return as whom this command was told to speak."""
    return _chosen


def speak_as(credentials: Credentials) -> None:
    """Speak so from now on: one process is one command."""
    global _chosen  # noqa: PLW0603  # as the arguments of the process are
    _chosen = credentials


def speak_beside(data: Path) -> None:
    """Where nothing else was said, speak as whoever's certificate lies in a cluster's directory."""
    os.environ[DATA_VARIABLE] = str(data)


def tell_children() -> None:
    """Let the processes that this one starts speak as it does: Spark's workers."""
    named = (CERTIFICATE_VARIABLE, KEY_VARIABLE, AUTHORITY_VARIABLE)
    given = (_chosen.certificate, _chosen.key, _chosen.authority)
    for name, path in zip(named, given, strict=True):
        if path is not None:
            os.environ[name] = str(path)


def speaking(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that say as whom it speaks."""
    signature = inspect.signature(command, eval_str=True)
    more = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
        for name, kind in _OPTIONS.items()
    ]

    @functools.wraps(command)
    def spoken(
        *arguments: Any,
        cert: Path | None = None,
        cert_key: Path | None = None,
        ca: Path | None = None,
        **options: Any,
    ) -> None:
        if cert_key is not None and cert is None:
            fail("a key without its certificate says nothing: give --cert too", Exit.USAGE)
        speak_as(Credentials(cert, cert_key, ca))
        command(*arguments, **options)

    given = [*signature.parameters.values(), *more]
    spoken.__signature__ = signature.replace(parameters=given)  # type: ignore[attr-defined]  # typer reads it
    spoken.__annotations__ = {each.name: each.annotation for each in given}
    return spoken
