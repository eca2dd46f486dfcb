"""One MQTT client from its first byte to its last: handshake, publishes in, deliveries out."""
