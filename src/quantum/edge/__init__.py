"""The edge: sockets become handlers, and bad clients cost little and disturb nobody."""

from quantum.edge.admission import AdmissionLimits
from quantum.edge.errors import AddressRefused, ClientRefused, EdgeError, ListenFailed
from quantum.edge.listener import Listener, require_loopback
from quantum.edge.lobby import EdgeLimits, Lobby
from quantum.edge.ports import EarlyWire, Handler, NewHandler, Peer, Wire

__all__ = [
    "AddressRefused",
    "AdmissionLimits",
    "ClientRefused",
    "EarlyWire",
    "EdgeError",
    "EdgeLimits",
    "Handler",
    "ListenFailed",
    "Listener",
    "Lobby",
    "NewHandler",
    "Peer",
    "Wire",
    "require_loopback",
]
