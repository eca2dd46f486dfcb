"""A broker's node: tenants, listeners, archive and telemetry put together, started and stopped."""
