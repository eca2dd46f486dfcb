"""The broker of a node as its admin API sees it: what can be looked at, ordered, sent and fed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quantum.node.delivery import DeliveryExplainer
from quantum.node.feeding import Feeding
from quantum.node.message_trail import MessageTrails
from quantum.node.messages import Messages
from quantum.node.orders import BrokerOrders
from quantum.node.queues import BrokerQueues
from quantum.node.receipts import Receipts
from quantum.node.streams import BrokerStreams
from quantum.node.topics import BrokerTopics
from quantum.node.views import BrokerViews
from quantum.tenants.control_words import named_quotas

if TYPE_CHECKING:
    from clustor.runtime.node import Node
    from quantum.mesh.tenant import Tenant
    from quantum.node.archiving import Archiving
    from quantum.node.backing_up import ScheduledBackups
    from quantum.node.service import BrokerService


class ServedBroker:
    """What `AdminServer.service` is set to."""

    def __init__(
        self,
        node: Node,
        service: BrokerService,
        archiving: Archiving | None,
        backups: ScheduledBackups | None = None,
    ) -> None:
        self._service = service
        self.views = BrokerViews(service, archiving, backups)
        self.orders = BrokerOrders(service)
        self.messages = Messages(service)
        self.feeding = Feeding(node, service)
        self.streams = BrokerStreams(service)
        self.queues = BrokerQueues(service)
        self.topics = BrokerTopics(service)
        self.deliveries = DeliveryExplainer(service)
        self.receipts = Receipts(service)
        self.trails = MessageTrails(service)
        self._node = node

    def close(self) -> None:
        """Answer no reader of a stream any more."""
        self.streams.close()

    def tenant(self, name: str) -> Tenant | None:
        """Return a tenant that is served here."""
        return self._service.tenants.get(name)

    def quotas_in_force(self, name: str) -> dict[str, int]:
        """Return a tenant's quotas as they hold here; none where it is not served here."""
        tenant = self._service.tenants.get(name)
        return {} if tenant is None else named_quotas(tenant.guard.description.policy.quotas)

    def admin_of(self, node: int | None) -> str:
        """Say where another node is asked; empty: nobody knows."""
        listed = self._node.cluster.nodes
        return next((str(each.admin) for each in listed if each.node_id == node), "")
