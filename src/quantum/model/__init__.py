"""What the broker, its protocols, the lake and the simulator say to each other."""
