"""What can go wrong with a replica.

ReplicaError
├── ReplicaMisuse      our caller broke the order of the inputs
├── ReplicaExists      a replica was created here before
├── NoReplica          nothing was ever created here
└── ReplicaDamaged     what the disk must hold is not there, or is not what was written
                       (an empty disk where data was is clustor.raft's DataLost)

None of these is raised for what a peer or a client sent.
"""

from __future__ import annotations


class ReplicaError(Exception):
    """Root of the room's errors: a sentence for people, and `facts` for machines."""

    def __init__(self, reason: str, **facts: object) -> None:
        super().__init__(reason)
        self.reason = reason
        self.facts = facts

    def __str__(self) -> str:
        details = ", ".join(f"{name}={value}" for name, value in self.facts.items())
        return f"{self.reason} ({details})" if details else self.reason


class ReplicaMisuse(ReplicaError):
    """Our caller broke the order or the meaning of the inputs."""


class ReplicaExists(ReplicaError):
    """A replica was created here before; open it, or let it rejoin."""


class NoReplica(ReplicaError):
    """There is no identity: nothing was ever created here."""


class ReplicaDamaged(ReplicaError):
    """The log, the hard state or a snapshot cannot be believed; nothing was changed.

    The replica may have acknowledged what it can no longer read, so it does not vote with what
    is left: it is opened again by `Replica.rejoin`, which sets the old files aside.
    """
