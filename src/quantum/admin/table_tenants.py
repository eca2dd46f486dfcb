"""Pages of tenants: policies, trust, rings, and configuration by scope."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from clustor import control as c
from clustor.control.types import Count, Name
from quantum.admin import reading as r
from quantum.admin import taking_effect as t
from quantum.admin.answers import ConfigurationAnswer, ConfigValue, TenantState, list_page
from quantum.admin.listings import PAGED, SCOPE, TENANT, list_route
from quantum.admin.routes import TENANT_READERS, Parameter, call, page


def _roll_back(asked: Any) -> c.Command:
    return c.RollBackConfiguration(scope=r.scope_of(asked.values), to_version=asked.values["to"])


TENANTS: Final = (
    list_route(
        "/v1/tenants",
        c.TenantSpec,
        "tenants list",
        "List the tenants.",
        "tenant_id",
        "sni",
        "tier",
        "suspended",
        "created_at",
    ),
    call(
        "POST",
        "/v1/tenants",
        c.CreateTenant,
        "tenants create",
        "--tenant-id acme --sni acme.example.com",
    ),
    page(
        "/v1/tenants/{tenant_id}",
        r.tenant,
        TenantState,
        "tenants show",
        "Show a tenant with its quotas, ACLs, trust and ring.",
        kinds=TENANT,
        roles=TENANT_READERS,
        own_tenant=True,
        example="acme",
    ),
    call(
        "PUT",
        "/v1/tenants/{tenant_id}",
        c.UpdateTenant,
        "tenants set",
        "acme --tier Production --no-group-fsync-allowed --dr-shipping --suspended",
    ),
    call("DELETE", "/v1/tenants/{tenant_id}", c.DeleteTenant, "tenants delete", "acme"),
    page(
        "/v1/tenants/{tenant_id}/quotas",
        r.tenant_quotas,
        c.QuotaPolicy,
        "tenants quotas",
        "Show a tenant's quotas.",
        kinds=TENANT,
        roles=TENANT_READERS,
        own_tenant=True,
        example="acme",
    ),
    replace(
        call(
            "PATCH",
            "/v1/tenants/{tenant_id}/quotas",
            c.SetQuotas,
            "tenants set-quotas",
            "acme --quotas '{\"connections_max\": 5000}'",
            name="ChangeQuotas",
        ),
        summary="Change the quotas that are named; the others stay.",
        body=t.ChangeQuotasBody,
        make=t.change_quotas,
        check=t.check_quotas,
        remark=t.quota_effects,
    ),
    replace(
        call("PUT", "/v1/tenants/{tenant_id}/quotas", c.SetQuotas, ""),
        check=t.check_quotas,
        remark=t.quota_effects,
    ),
    page(
        "/v1/tenants/{tenant_id}/acls",
        r.tenant_acls,
        c.AclPolicy,
        "tenants acls",
        "Show a tenant's access rules.",
        kinds=TENANT,
        roles=TENANT_READERS,
        own_tenant=True,
        example="acme",
    ),
    replace(
        call(
            "PUT",
            "/v1/tenants/{tenant_id}/acls",
            c.SetAcls,
            "tenants set-acls",
            'acme --rules \'[{"effect": "Allow", "action": "Any", "filter": "plant/#"}]\'',
        ),
        check=t.check_rules,
    ),
    page(
        "/v1/tenants/{tenant_id}/trust",
        r.tenant_trust,
        c.CertificateBundle,
        "tenants trust",
        "Show the authorities that a tenant's clients are believed by.",
        kinds=TENANT,
        roles=TENANT_READERS,
        own_tenant=True,
        example="acme",
    ),
    call(
        "PUT",
        "/v1/tenants/{tenant_id}/trust",
        c.SetTrust,
        "tenants set-trust",
        "acme --roots @roots.json --revoked '[\"5f3a\"]'",
    ),
)

CERTIFICATES: Final = (
    list_route(
        "/v1/certificates",
        c.CertificateBundle,
        "certificates list",
        "List all trust bundles: the cluster's (`_cluster`) and the tenants'.",
        "owner",
        "version",
        "published_at",
        "revoked",
    ),
    page(
        "/v1/certificates/cluster",
        r.cluster_trust,
        c.CertificateBundle,
        "certificates show",
        "Show the cluster's own trust bundle, and the certificates that it revokes.",
    ),
    call(
        "PUT",
        "/v1/certificates/cluster",
        c.SetTrust,
        "certificates set",
        "--roots @roots.json --revoked '[\"5f3a\"]'",
        preset={"tenant_id": None},
        name="SetClusterTrust",
    ),
)

ROUTING: Final = (
    list_route(
        "/v1/routes",
        c.RoutingMap,
        "routes list",
        "List the tenants' rings: which partition has which slot.",
        "tenant_id",
        "routing_epoch",
        "partitions",
        "redirect_until",
    ),
    page(
        "/v1/routes/{tenant_id}",
        r.item(c.RoutingMap, "tenant_id"),
        c.RoutingMap,
        "routes show",
        "Show a tenant's ring.",
        kinds=TENANT,
        roles=TENANT_READERS,
        own_tenant=True,
        example="acme",
    ),
    call(
        "PUT",
        "/v1/routes/{tenant_id}",
        c.SetRoutingMap,
        "routes set",
        "acme --partitions '[11, 12, 13]'",
    ),
)

CONFIG: Final = (
    page(
        "/v1/config",
        r.configuration,
        ConfigurationAnswer,
        "config show",
        "Show the document of a scope that is in force.",
        query=SCOPE,
        example="--scope Tenant --name acme",
    ),
    page(
        "/v1/config/versions",
        r.listing(c.ConfigVersion, row=r.veiled),
        list_page(c.ConfigVersion),
        "config versions",
        "List the versions of all scopes that are kept.",
        query=PAGED,
        columns=("scope", "version", "tag", "set_by", "set_at", "restores"),
    ),
    page(
        "/v1/config/explain",
        r.explained,
        ConfigValue,
        "config explain",
        "Say where a key's value comes from, who set it, and when.",
        query=(
            Parameter("key", Name, "the key"),
            Parameter("node", Name | None, "as this node sees it", default=None),
            Parameter("partition", Name | None, "as this partition sees it", default=None),
            Parameter("tenant", Name | None, "as this tenant sees it", default=None),
            Parameter("definition", Name | None, "as this definition sees it", default=None),
        ),
        example="--key rates.publishes --tenant acme",
    ),
    replace(
        call(
            "PUT",
            "/v1/config",
            c.SetConfiguration,
            "config set",
            "--scope Tenant/acme --document '{\"rates.publishes\": 4096}'",
        ),
        make=t.set_configuration,
        check=t.check_configuration,
        remark=t.configuration_effects,
    ),
    replace(
        call(
            "POST",
            "/v1/config/rollback",
            c.RollBackConfiguration,
            "config rollback",
            "--to 3",
            query=("scope", "to_version"),
        ),
        query=(Parameter("to", Count, "the version that comes back"), *SCOPE),
        make=_roll_back,
    ),
)
