"""One name for every topic of every tenant, such that no tenant can name another's (§11.1).

Inside a partition names are local: it belongs to one tenant. These keys are for places where
tenants meet: listeners, metrics, audit, bridges, the lake.
"""

from __future__ import annotations

import re

from quantum.tenancy.errors import InvalidTenantId, NamespaceViolation
from quantum.topics import RESERVED, split_shared
from quantum.types import TenantId

_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


def check_tenant_id(tenant_id: str) -> TenantId:
    """Return the id, or raise `InvalidTenantId` unless it is one label of a host name.

    So it holds no separator and no wildcard, and differs from others in more than case.
    """
    if _LABEL.fullmatch(tenant_id) is None:
        raise InvalidTenantId("a tenant id is one DNS label", size=len(tenant_id))
    return TenantId(tenant_id)


class Namespace:
    """The names of one tenant: `tenant/<tenant_id>/…`, and `$tenant/<tenant_id>/$…`.

    The server's own topics have a prefix of their own with the sign in front. Without it, a
    client's `#` would become `tenant/<tenant_id>/#` and suddenly see them. As it is, a filter's
    key matches a topic's key exactly if both are of one tenant and the filter matches the topic.
    """

    __slots__ = ("_prefix", "_reserved_prefix", "tenant_id")

    def __init__(self, tenant_id: TenantId) -> None:
        self.tenant_id = check_tenant_id(tenant_id)
        self._prefix = b"tenant/" + tenant_id.encode() + b"/"
        self._reserved_prefix = RESERVED + self._prefix

    def topic_key(self, topic: bytes) -> bytes:
        """Return the name of a topic among all tenants."""
        return (self._reserved_prefix if topic.startswith(RESERVED) else self._prefix) + topic

    def filter_key(self, topic_filter: bytes) -> bytes:
        """Return a filter that matches the keys of this tenant's topics only.

        A shared subscription stays one: what is behind its group is put into the namespace.
        """
        shared = split_shared(topic_filter)
        if shared is None:
            return self.topic_key(topic_filter)
        return b"$share/" + shared[0] + b"/" + self.topic_key(shared[1])

    def local(self, key: bytes) -> bytes:
        """Return the tenant's own name of a key; inverse of `topic_key` and `filter_key`.

        Raises `NamespaceViolation` for anything that is no key of this tenant.
        """
        shared = split_shared(key)
        if shared is not None:
            return b"$share/" + shared[0] + b"/" + self.local(shared[1])
        for prefix in (self._prefix, self._reserved_prefix):
            name = key[len(prefix) :]
            if key.startswith(prefix) and name and self.topic_key(name) == key:
                return name
        raise NamespaceViolation("a name of another namespace", tenant_id=self.tenant_id)

    def local_of_prefixed(self, name: bytes) -> bytes:
        """Return the tenant's own name of what a client wrote as `tenant/<tenant_id>/…`.

        For tenants whose clients use full names (§11.1). Raises `NamespaceViolation` for a name
        without the prefix, above all for a wildcard in its place.
        """
        shared = split_shared(name)
        if shared is not None:
            return b"$share/" + shared[0] + b"/" + self.local_of_prefixed(shared[1])
        if not name.startswith(self._prefix) or name == self._prefix:
            raise NamespaceViolation("a name without the prefix", tenant_id=self.tenant_id)
        return name[len(self._prefix) :]
