"""Kafka on a node: connections, one handler per API, and what waits; it does no I/O."""
