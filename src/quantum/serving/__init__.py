"""One node's broker: connections at the edge, partitions on Clustor, and links between nodes."""
