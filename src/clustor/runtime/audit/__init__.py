"""The audit log of a running node."""
