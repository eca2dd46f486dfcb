"""Whose client is it: what binds who came over TLS to the tenant that it asks for.

A server name says which tenant a client asks for, and anybody can ask. Where there is one tenant
that is all there is to say. Where there are several, who a client is must say whose it is: its
certificate names the tenant (`spiffe://…/tenant/NAME/…`), is of the tenant's own authority, or a
token for that tenant was shown. And what no access list allows is not allowed: a tenant without
one was set up for nobody yet. Plaintext is for development on this machine, where the port decides.
"""

from __future__ import annotations

from typing import Final

from quantum.edge.ports import ConnectionPeer
from quantum.tenancy import CompiledAcl, compile_acl

UNDER_TLS: Final = frozenset({"tls", "wss"})
NO_LIST: Final = "the tenant has no access list, and it is not the only tenant"
NOTHING_ALLOWED: Final[CompiledAcl] = compile_acl(())


def disbelief(
    peer: ConnectionPeer, tenant: str, *, shared: bool, awaits_token: bool = False
) -> str | None:
    """Say why a client is not this tenant's; None: it is, or nothing says otherwise.

    `shared`: there are other tenants. `awaits_token`: who it is will be shown in a moment.
    """
    if peer.transport not in UNDER_TLS:
        return None
    if peer.named_tenant is not None:
        return None if peer.named_tenant == tenant else "its certificate is for another tenant"
    if shared and not awaits_token:
        return "its certificate names no tenant, and there are several"
    return None


def needs_list(peer: ConnectionPeer | None, *, shared: bool) -> bool:
    """Say whether a client may do nothing where its tenant has no access list."""
    return shared and peer is not None and peer.transport in UNDER_TLS
