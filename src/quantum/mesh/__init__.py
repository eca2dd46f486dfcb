"""Between the nodes of a broker: links, and clients whose sessions run elsewhere."""
