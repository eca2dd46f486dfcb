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


SUITES_OF_1_2: Final = ("ECDHE-ECDSA-AES256-GCM-SHA384", "ECDHE-RSA-AES256-GCM-SHA384")
"""With forward secrecy, and sealed as those of 1.3; only where a listener's policy lets 1.2 in."""


def let_in_1_2(context: ssl.SSLContext) -> None:
    """Speak TLS 1.2 too, with these suites alone, without tickets and renegotiation."""
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(":".join(SUITES_OF_1_2))
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION


def is_permitted(tls: ssl.SSLObject) -> bool:
    """Say whether a finished handshake agreed on one of ours; 1.2 is agreed on only if let in."""
    agreed = tls.cipher()
    return agreed is not None and agreed[0] in (*SUITES, *SUITES_OF_1_2)
