"""The key-value store of a node, and its client."""
