"""MQTT, its whole server side."""
