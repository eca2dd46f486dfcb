"""The control plane on a node: its replica, the node's copy of it, and what is done on its word."""
