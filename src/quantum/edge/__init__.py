"""The edge: sockets become handlers, and bad clients cost little and disturb nobody."""

from quantum.edge.admission import AdmissionLimits
from quantum.edge.errors import (
    AddressRefused,
    CertificatesUnusable,
    ClientRefused,
    EdgeError,
    ListenFailed,
)
from quantum.edge.listener import Listener, require_loopback
from quantum.edge.listener_tls import TlsListener
from quantum.edge.lobby import EdgeLimits, Lobby
from quantum.edge.ports import EarlyWire, Expelling, Handler, NewHandler, Peer, Wire
from quantum.edge.tls import ServerCertificates, TenantOf, TenantTrust
from quantum.edge.websocket import WebSocketLimits, over_websocket

__all__ = [
    "AddressRefused",
    "AdmissionLimits",
    "CertificatesUnusable",
    "ClientRefused",
    "EarlyWire",
    "EdgeError",
    "EdgeLimits",
    "Expelling",
    "Handler",
    "ListenFailed",
    "Listener",
    "Lobby",
    "NewHandler",
    "Peer",
    "ServerCertificates",
    "TenantOf",
    "TenantTrust",
    "TlsListener",
    "WebSocketLimits",
    "Wire",
    "over_websocket",
    "require_loopback",
]
