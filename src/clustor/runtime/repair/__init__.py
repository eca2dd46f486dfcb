"""Damage on a node's disk: found, fenced, repaired by its peers."""
