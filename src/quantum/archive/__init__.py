"""Archives: what a partition's log held, in an object store, listed, chained, never forked."""
