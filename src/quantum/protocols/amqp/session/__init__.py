"""AMQP 1.0 on a node: connections, links, and the leader's side of queues."""
