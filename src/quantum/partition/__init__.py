"""The leader's side of a partition: batches in, outcomes out, and ways to other partitions."""
