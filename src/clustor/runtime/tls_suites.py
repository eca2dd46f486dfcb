"""The two suites of TLS 1.3 that quantumqtt §9.2 names, and no other.

Python's `ssl` chooses suites up to TLS 1.2 only. OpenSSL's own call is asked with the context that
Python keeps in its object, and what Python then lists is compared: where that is not what was
asked for, nothing was restricted, and `is_permitted` still judges each handshake.
"""

from __future__ import annotations

import _ssl
import ctypes
import ssl
import sys
from typing import Final

SUITES: Final = ("TLS_AES_256_GCM_SHA384", "TLS_AES_128_GCM_SHA256")
_TLS_1_3: Final = "TLSv1.3"


def restrict_suites(context: ssl.SSLContext) -> bool:
    """Offer the two suites alone; say whether that succeeded."""
    call = _openssl_call()
    if call is None:
        return False
    # The first member of CPython's object behind its head is the `SSL_CTX *` (Modules/_ssl.c).
    pointer = ctypes.c_void_p.from_address(id(context) + object.__basicsize__)
    call(pointer, ":".join(SUITES).encode())
    return offered(context) == set(SUITES)


def offered(context: ssl.SSLContext) -> set[str]:
    """Return the suites of TLS 1.3 that a context would agree to."""
    return {str(each["name"]) for each in context.get_ciphers() if each.get("protocol") == _TLS_1_3}


def is_permitted(tls: ssl.SSLObject) -> bool:
    """Say whether a finished handshake agreed on one of the two."""
    agreed = tls.cipher()
    return agreed is not None and agreed[0] in SUITES


def _openssl_call() -> ctypes._NamedFuncPointer | None:
    if sys.implementation.name != "cpython" or not hasattr(_ssl, "__file__"):
        return None
    try:
        call = ctypes.CDLL(_ssl.__file__).SSL_CTX_set_ciphersuites  # of the very library it uses
    except (OSError, AttributeError):
        return None
    call.argtypes = (ctypes.c_void_p, ctypes.c_char_p)
    call.restype = ctypes.c_int
    return call
