"""The admin port of a node: HTTP in, status and commands out, and whom it believes."""
