"""Snapshots: a state on disk that is complete, authentic and authorised, or does not count."""
