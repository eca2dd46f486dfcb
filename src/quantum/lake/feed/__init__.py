"""The live feed: a running cluster's committed entries, page by page, from any of its nodes."""
