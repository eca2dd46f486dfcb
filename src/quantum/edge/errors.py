"""What can go wrong at the edge.

EdgeError
├── AddressRefused         plaintext is for loopback in development mode alone (C15)
├── PolicyTooOpen          a listener's policy would let strangers in, or cannot be kept
├── DoorUnserved           a listener is wanted that nobody here speaks behind
├── ListenFailed           the address is taken, or not ours
├── CertificatesUnusable   the server's own certificate, key or authority cannot be used
└── ClientRefused          a client that may not come in
    ├── ClientUntrusted            its certificate is missing or of an unknown authority
    ├── ClientCertificateExpired   its certificate is past its end, or not valid yet
    ├── ClientCertificateRevoked   its authority, or its tenant, has revoked its certificate
    ├── ClientAuthorityGone        its authority was trusted when it came, and is no more
    ├── ClientUnnamed              its certificate names nobody
    ├── SuiteRefused               it agreed on a suite of TLS that is not for this broker
    └── TenantUnknown              it asked for a name that is no tenant's
"""

from __future__ import annotations

from clustor.printable import printable


class EdgeError(Exception):
    """Root of the room's errors: a sentence for people, and `facts` for machines."""

    def __init__(self, reason: str, **facts: object) -> None:
        super().__init__(reason)
        self.reason = reason
        self.facts = facts

    def __str__(self) -> str:
        details = ", ".join(f"{name}={printable(value)}" for name, value in self.facts.items())
        return f"{self.reason} ({details})" if details else self.reason


class AddressRefused(EdgeError):
    """Plaintext is served on loopback, in development mode, and nowhere else."""


class PolicyTooOpen(EdgeError):
    """What a listener is told to ask of its clients is too little, or cannot be kept."""


class DoorUnserved(EdgeError):
    """A listener is wanted whose protocol this build does not serve."""


class ListenFailed(EdgeError):
    """The address is taken, or not an address of this machine."""


class CertificatesUnusable(EdgeError):
    """The server's own certificate, key or authority cannot be used."""


class ClientRefused(EdgeError):
    """A client that may not come in."""


class ClientUntrusted(ClientRefused):
    """The client's certificate is missing, or of an authority that is not trusted."""


class ClientCertificateExpired(ClientRefused):
    """The client's certificate is past its end, or not valid yet."""


class ClientCertificateRevoked(ClientRefused):
    """The client's authority has revoked its certificate."""


class ClientAuthorityGone(ClientRefused):
    """The client's authority was trusted when it came, and is no more."""


class ClientUnnamed(ClientRefused):
    """The client's certificate names nobody."""


class SuiteRefused(ClientRefused):
    """The client agreed on a suite of TLS that quantumqtt §9.2 does not name."""


class TenantUnknown(ClientRefused):
    """The client asked for a name that is no tenant's."""
