"""Trust bundles that somebody wants in force: refused before they enter the log, if nobody could
use them.

The control plane's machine does not read certificates: what a library makes of one may change with
its version, and every replica must decide alike. So the leader reads them at its door.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from typing import Final

import msgspec
from cryptography import x509

from clustor.control import RefusalCode, Refused, SetTrust
from clustor.runtime.errors import CertificateUnreadable
from clustor.runtime.pki.certificates import telling_unreadable

_HEX: Final = frozenset("0123456789abcdefABCDEF")


class _Trust(msgspec.Struct, gc=False):
    kind: str = ""
    roots: tuple[str, ...] = ()
    revoked: tuple[str, ...] = ()


_decoder = msgspec.json.Decoder(_Trust)


def refuse_trust(command: bytes | msgspec.Raw) -> Refused | None:
    """Say why a bundle must not enter the log; None: it may, or the call is about something else.

    What is malformed may: the machine refuses it.
    """
    try:
        wanted = _decoder.decode(command)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError):
        return None
    if wanted.kind != SetTrust.__name__:
        return None
    why = mistake_in(wanted.roots, wanted.revoked)
    return None if why is None else Refused(RefusalCode.INVALID, why, {})


def mistake_in(roots: Iterable[str], revoked: Iterable[str]) -> str | None:
    """Say what is wrong with a bundle; None: it can be used as it is."""
    for number, root in enumerate(roots, 1):
        try:
            read_roots(root)
        except CertificateUnreadable as error:
            return f"root {number} is of no use: {error.reason}"
    for serial in revoked:
        if not serial or not _HEX.issuperset(serial):
            return "a revoked serial number is hexadecimal"
    return None


def read_roots(pem: str) -> list[x509.Certificate]:
    """Read the authorities of one text, as TLS and as we do. Raises CertificateUnreadable."""
    with telling_unreadable():
        found = x509.load_pem_x509_certificates(pem.encode())
        for each in found:
            constraints = each.extensions.get_extension_for_class(x509.BasicConstraints).value
            if not constraints.ca:
                raise CertificateUnreadable("the certificate is no authority's")
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(cadata=pem)
        return found
