"""What can go wrong around a node.

NodeError
├── DataDirectoryRefused       it belongs to another cluster or node, or is not what was written
├── DataDirectoryInUse         another process has it open
├── NoRoom                     the disk is too full to start on
├── GroupStopped               a group stopped for good before everything was ready
├── PortTaken                  somebody else listens there
├── SelfTestFailed             this build must not open a log
├── ReleaseUnverified          what runs here is not the release that was signed
├── HardeningRefused           the cluster requires what this process could not give up
├── PlaintextRefused           plaintext would be served off loopback
├── ControlUnavailable         no leader of the control plane answered, or our copy of it is too old
├── CertificateUnusable        our own certificate, key or authority cannot be used
├── CertificateUnreadable      somebody's certificate is believed by TLS, and no reader takes it
├── AuditFailed                an event is not in the audit log, and will not be
└── PeerRefused                the other side of a connection is not who it must be
    ├── PeerUntrusted              its certificate is of an authority that we do not know
    ├── PeerCertificateExpired     its certificate is past its end, or not valid yet
    ├── PeerCertificateRevoked     its authority has revoked its certificate
    ├── PeerWithoutIdentity        its certificate names no node, or more than one
    ├── PeerOfAnotherCluster       it belongs to another cluster
    └── PeerIsAnotherNode          it is another node than the one that was called
"""

from __future__ import annotations

from clustor.printable import printable


class NodeError(Exception):
    """Root of the room's errors: a sentence for people, and `facts` for machines."""

    def __init__(self, reason: str, **facts: object) -> None:
        super().__init__(reason)
        self.reason = reason
        self.facts = facts

    def __str__(self) -> str:
        details = ", ".join(f"{name}={printable(value)}" for name, value in self.facts.items())
        return f"{self.reason} ({details})" if details else self.reason


class DataDirectoryRefused(NodeError):
    """The data directory belongs to another cluster or node, or is not what was written."""


class DataDirectoryInUse(NodeError):
    """Another process has the data directory open."""


class NoRoom(NodeError):
    """The disk is too full to start on."""


class GroupStopped(NodeError):
    """A group stopped for good before everything was ready."""


class PortTaken(NodeError):
    """Somebody else listens on the port."""


class SelfTestFailed(NodeError):
    """A vector of the specification did not come out: this build must not open a log."""


class ReleaseUnverified(NodeError):
    """What runs here is not the release that was signed, or nobody can say."""


class HardeningRefused(NodeError):
    """The cluster requires hardening that is not in force."""


class CertificateUnusable(NodeError):
    """Our own certificate, key or authority cannot be used."""


class CertificateUnreadable(NodeError):
    """A certificate that TLS believes, and that cannot be read: its bearer has no name here."""


class AuditFailed(NodeError):
    """The audit log cannot be written: the event is not in it, and will not be."""


class ControlUnavailable(NodeError):
    """No leader of the control plane answered in time, or the copy of it here is too old.

    `facts["because"]`, where it is there, is clustor §11.1's reason. `maybe_applied` says that a
    call may stand all the same: repeat it under the same request id.
    """

    def __init__(self, reason: str, *, maybe_applied: bool = False, **facts: object) -> None:
        super().__init__(reason, **facts)
        self.maybe_applied = maybe_applied


class PlaintextRefused(NodeError):
    """Plaintext would be served where others than this machine can listen (C15)."""


class PeerRefused(NodeError):
    """The other side of a connection is not who it must be."""


class PeerUntrusted(PeerRefused):
    """The peer's certificate is of an authority that this node does not know."""


class PeerCertificateExpired(PeerRefused):
    """The peer's certificate is past its end, or not valid yet."""


class PeerCertificateRevoked(PeerRefused):
    """The peer's authority has revoked its certificate."""


class PeerWithoutIdentity(PeerRefused):
    """The peer's certificate names no node, or more than one."""


class PeerOfAnotherCluster(PeerRefused):
    """The peer belongs to another cluster."""


class PeerIsAnotherNode(PeerRefused):
    """The peer is another node than the one that was called."""
