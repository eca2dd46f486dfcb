"""Quantum: a message broker on Clustor, in which an acknowledgement means fsynced on a quorum."""
