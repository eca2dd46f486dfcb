"""Routing: who gets a message, what a filter finds, and which partition owns what."""
