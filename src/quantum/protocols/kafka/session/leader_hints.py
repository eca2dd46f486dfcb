"""Where a client finds the leader that is not here (KIP-951): with the refusal, not by asking."""

from __future__ import annotations

from quantum.mesh.topic_views import LeaderView
from quantum.protocols.kafka.codec import Endpoint
from quantum.protocols.kafka.session.request import KafkaRequest


class LeaderHints:
    """The leaders that one answer names, each once with its address."""

    __slots__ = ("_found", "_request")

    def __init__(self, request: KafkaRequest) -> None:
        self._request = request
        self._found: dict[int, Endpoint] = {}

    def of(self, leader: LeaderView) -> tuple[int, int]:
        """Return (node, epoch) for a partition's answer; -1, -1 where nobody is known to lead."""
        request, node = self._request, leader.node
        if node is None or node == request.node.node_id or request.peer is None:
            return -1, -1
        place = request.node.broker(request.peer, node)
        if place is None:
            return -1, -1
        self._found[node] = (node, place[0].encode(), place[1], None)
        return node, leader.epoch

    def endpoints(self) -> list[Endpoint]:
        return list(self._found.values())
