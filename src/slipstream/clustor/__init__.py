"""Buckets in Clustor's replicated key-value store: a write that returned is fsynced on a quorum."""

from slipstream.clustor.connection import ClustorConnection, ClustorConnectionConfig
from slipstream.clustor.store import ClustorKvStore

__all__ = ["ClustorConnection", "ClustorConnectionConfig", "ClustorKvStore"]
