"""What a node says about itself: metrics, spans, the journal, and why something is stuck."""
