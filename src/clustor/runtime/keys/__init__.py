"""Private keys and key rings on a node's disk: made, taken up, replaced and destroyed."""
