"""The two suites of TLS 1.3 that quantumqtt §9.2 names: which one is agreed on, and no other.

Python's `ssl` chooses suites up to TLS 1.2 only. So ours are preferred to the client's, of which
the first that OpenSSL knows is one of the two, and each finished handshake is judged: whoever
offers neither is refused.
"""

from __future__ import annotations

import ssl
from typing import Final

SUITES: Final = ("TLS_AES_256_GCM_SHA384", "TLS_AES_128_GCM_SHA256")


def prefer_own_suites(context: ssl.SSLContext) -> None:
    """Let the server's order decide, not the client's."""
    context.options |= ssl.OP_CIPHER_SERVER_PREFERENCE


def is_permitted(tls: ssl.SSLObject) -> bool:
    """Say whether a finished handshake agreed on one of the two."""
    agreed = tls.cipher()
    return agreed is not None and agreed[0] in SUITES
