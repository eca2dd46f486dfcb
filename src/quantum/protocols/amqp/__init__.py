"""AMQP 1.0 at the edge: the engine that turns bytes into events; no node serves it yet."""
