"""The durable log: what it acknowledged is on disk, encrypted, and comes back as it was."""
