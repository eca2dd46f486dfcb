"""The edge: sockets become handlers, and bad clients cost little and disturb nobody."""
