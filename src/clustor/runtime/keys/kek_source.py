"""Where the key comes from that opens a node's key ring: a file, a command, a key service.

A node reads it once, before it gives up the right to start programs, and keeps it in memory: the
ring's own keys are there anyway. Errors never repeat what was read.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeAlias

from clustor.log.errors import KeyUnavailable
from clustor.log.keyfile import parse_kek
from clustor.runtime.keys.key_service import KeyService

ReadKek: TypeAlias = Callable[[], bytes]
"""Returns the key of a ring; raises KeyUnavailable."""

COMMAND_SECONDS_MAX: Final = 30.0
_OUTPUT_BYTES_MAX: Final = 4_096


def kek_in_file(path: Path) -> ReadKek:
    """Read it from a file, each time."""

    def read() -> bytes:
        try:
            return parse_kek(path.read_text(encoding="ascii", errors="replace"))
        except OSError as error:
            raise KeyUnavailable(f"cannot read {path}: {error.strerror}") from error

    return read


def kek_of_command(command: tuple[str, ...]) -> ReadKek:
    """Let a program print it: hex, as in the file; what it says to stderr is the operator's."""

    def read() -> bytes:
        if not command:
            raise KeyUnavailable("the key's command cannot be run: there is none")
        name = command[0]
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                timeout=COMMAND_SECONDS_MAX,
                check=False,
            )
        except (OSError, ValueError) as error:
            raise KeyUnavailable("the key's command cannot be run", command=name) from error
        except subprocess.TimeoutExpired:
            raise KeyUnavailable("the key's command took too long", command=name) from None
        if done.returncode:
            raise KeyUnavailable(
                "the key's command failed", command=name, exit_code=done.returncode
            )
        return parse_kek(done.stdout[:_OUTPUT_BYTES_MAX].decode("ascii", "replace"))

    return read


def kek_of_service(service: KeyService, wrapped: Path) -> ReadKek:
    """Let a key service open what a file holds wrapped: the service never gives its own key."""

    def read() -> bytes:
        try:
            sealed = bytes.fromhex(wrapped.read_text(encoding="ascii").strip())
        except OSError as error:
            raise KeyUnavailable(f"cannot read {wrapped}: {error.strerror}") from error
        except ValueError as error:
            raise KeyUnavailable("not a wrapped key", file=str(wrapped)) from error
        return parse_kek(service.decrypt(sealed).hex())

    return read


def read_once(read: ReadKek) -> ReadKek:
    """Ask once, now, and remember: later there may be no right to ask any more."""
    kek = read()
    return lambda: kek
