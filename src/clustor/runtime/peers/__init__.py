"""Connections between nodes: TLS, frames, batches."""
