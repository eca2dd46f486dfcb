"""How a node's errors and exit codes look from the command line."""

from __future__ import annotations

from clustor.log.errors import KeyUnavailable
from clustor.runtime.errors import (
    CertificateUnusable,
    DataDirectoryInUse,
    DataDirectoryRefused,
    GroupStopped,
    NodeError,
    NoRoom,
    PeerRefused,
    PortTaken,
    SelfTestFailed,
)
from quantum.cli.exits import Exit

_BY_ERROR: tuple[tuple[type[Exception], Exit], ...] = (
    (DataDirectoryRefused, Exit.NOT_FOUND),
    (DataDirectoryInUse, Exit.NOT_FOUND),
    (KeyUnavailable, Exit.WRONG_KEY),
    (NoRoom, Exit.NO_ROOM),
    (GroupStopped, Exit.REPLICA),
    (PortTaken, Exit.PORT_TAKEN),
    (CertificateUnusable, Exit.CERTIFICATE),
    (PeerRefused, Exit.CERTIFICATE),
    (SelfTestFailed, Exit.SELF_TEST),
)

# What `clustor.runtime.main` ends with, and what it is here; these a restart does not mend.
FINAL_NODE_EXITS = {
    2: Exit.USAGE,
    3: Exit.NOT_FOUND,
    4: Exit.WRONG_KEY,
    5: Exit.PORT_TAKEN,
    6: Exit.CERTIFICATE,
    7: Exit.SELF_TEST,
    8: Exit.REPLICA,
    9: Exit.NO_ROOM,
}


def exit_of_node(error: NodeError) -> Exit:
    """Choose the exit code of an error."""
    return next((code for kind, code in _BY_ERROR if isinstance(error, kind)), Exit.FAILED)
