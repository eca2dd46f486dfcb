"""Pages that are read from the control plane's store: a list by pages, one object, a gathering."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, Final

import msgspec

from clustor.control import (
    RING_RECORDS_MAX,
    AclPolicy,
    AuditRecord,
    AuditRing,
    CertificateBundle,
    ConfigHead,
    ConfigVersion,
    DefinitionBundle,
    DraftReading,
    FeatureGate,
    FeatureManifest,
    KeyEpochs,
    QuotaPolicy,
    RoutingMap,
    ScopeKind,
    SettingScope,
    SigningKey,
    TenantSpec,
    cluster_state,
    decode_object,
    explain,
    find,
    key_of,
    scan,
)
from clustor.control.draft import prefix_of, scan_records
from clustor.control.objects import Object
from clustor.control.tenants import CLUSTER
from clustor.kv import Key, KvRecord, RecordPage, prefix_end
from quantum.admin.answers import (
    AccessAnswer,
    AuditRow,
    BundleRow,
    ClusterState,
    ConfigurationAnswer,
    ConfigValue,
    Features,
    GroupState,
    KeysAnswer,
    ListPage,
    TenantState,
)
from quantum.admin.errors import malformed, not_found
from quantum.admin.page_context import PageContext
from quantum.admin.routes import AdminRequest, ReadPage
from quantum.admin.shapes import shown
from quantum.config.live import SET, USER_PREFIX, takes

PAGE_BYTES_MAX: Final = 4 << 20


def revision_of(store: DraftReading) -> int:
    return store.range(b"", b"\0", 1).revision


def listing(
    kind: type[Object], *within: str, row: Callable[[Object], object] | None = None
) -> ReadPage:
    """List the objects of a kind by key; `within` names the query's parts of the prefix."""

    def read(_api: PageContext, asked: AdminRequest) -> ListPage[object]:
        prefix = prefix_of(kind, *(asked.values[each] for each in within))
        records, after = _page(asked, prefix)
        found = [decode_object(kind, record.value) for record in records]
        items: list[object] = [row(each) for each in found] if row is not None else list(found)
        return ListPage(items=items, after=after, revision=revision_of(asked.store))

    return read


def _page(asked: AdminRequest, prefix: bytes) -> tuple[list[KvRecord], str | None]:
    """Take what fits: at most `limit` records, and no more than a page holds."""
    limit, after = asked.values["limit"], asked.values["after"]
    start = prefix if after is None else prefix + after.encode() + b"\0"
    page = asked.store.range(start, prefix_end(prefix), limit)
    total = 0
    for count, record in enumerate(page.records, 1):
        total += len(record.value)
        if total > PAGE_BYTES_MAX:
            kept = page.records[: max(1, count - 1)]
            return list(kept), _tail(kept[-1], prefix)
    records = list(page.records)
    return records, _tail(records[-1], prefix) if page.more else None


def _tail(record: KvRecord, prefix: bytes) -> str:
    return record.key.removeprefix(prefix).decode()


def item(kind: type[Object], *parts: str) -> ReadPage:
    """Show the object that these parameters name."""

    def read(_api: PageContext, asked: AdminRequest) -> Object:
        return _need(asked.store, kind, *(asked.values[each] for each in parts))

    return read


def item_at(kind: type[Object], name: str) -> ReadPage:
    """Show an object of which there is one."""

    def read(_api: PageContext, asked: AdminRequest) -> Object:
        return _need(asked.store, kind, name)

    return read


def _need(store: DraftReading, kind: type[Object], *parts: str | int) -> Object:
    found = find(store, kind, *parts)
    if found is None:
        raise not_found(f"no such {kind.__name__}", name="/".join(map(str, parts)))
    return found


# Tenants.


def tenant(_api: PageContext, asked: AdminRequest) -> TenantState:
    name = asked.values["tenant_id"]
    return TenantState(
        tenant=_need(asked.store, TenantSpec, name),
        quotas=_quotas(asked.store, name),
        acls=_acls(asked.store, name),
        trust=_trust(asked.store, name),
        routing=find(asked.store, RoutingMap, name),
    )


def _of_tenant(make: Callable[[DraftReading, str], Object]) -> ReadPage:
    def read(_api: PageContext, asked: AdminRequest) -> Object:
        _need(asked.store, TenantSpec, asked.values["tenant_id"])
        return make(asked.store, asked.values["tenant_id"])

    return read


def _quotas(store: DraftReading, name: str) -> QuotaPolicy:
    return find(store, QuotaPolicy, name) or QuotaPolicy(tenant_id=name)


def _acls(store: DraftReading, name: str) -> AclPolicy:
    return find(store, AclPolicy, name) or AclPolicy(tenant_id=name, version=0, rules=())


def _trust(store: DraftReading, name: str) -> CertificateBundle:
    none = CertificateBundle(owner=name, version=0, roots=(), revoked=(), published_at=0)
    return find(store, CertificateBundle, name) or none


tenant_quotas: Final = _of_tenant(_quotas)
tenant_acls: Final = _of_tenant(_acls)
tenant_trust: Final = _of_tenant(_trust)


def cluster_trust(_api: PageContext, asked: AdminRequest) -> CertificateBundle:
    return _trust(asked.store, CLUSTER)


# Gatherings.


def features(_api: PageContext, asked: AdminRequest) -> Features:
    return Features(
        manifest=find(asked.store, FeatureManifest, "manifest"),
        gates=list(scan(asked.store, FeatureGate)),
    )


def keys(_api: PageContext, asked: AdminRequest) -> KeysAnswer:
    return KeysAnswer(
        epochs=find(asked.store, KeyEpochs, "newest"), keys=list(scan(asked.store, SigningKey))
    )


def bundle_row(bundle: DefinitionBundle) -> BundleRow:
    return BundleRow(
        bundle_id=bundle.bundle_id,
        version=bundle.version,
        sha256=bundle.sha256,
        blob_bytes=len(bundle.definition_blob),
        warmup_recipe=bundle.warmup_recipe,
        published_at=bundle.published_at,
    )


def audit(_api: PageContext, asked: AdminRequest) -> ListPage[AuditRow]:
    """List the newest records first; `after` goes on where a page ended."""
    ring, limit, after = (asked.values[each] for each in ("ring", "limit", "after"))
    prefix = prefix_of(AuditRecord, ring.value)
    newest = _newest_sequence(asked.store, prefix) if after is None else int(after) - 1
    first = max(0, newest - limit + 1)
    start, end = (key_of(AuditRecord, ring.value, each) for each in (first, newest + 1))
    records = asked.store.range(start, end, limit).records if newest >= 0 else []
    items = [_audit_row(decode_object(AuditRecord, each.value)) for each in reversed(records)]
    more = str(items[-1].sequence) if items and items[-1].sequence > 1 else None
    return ListPage(items=items, after=more, revision=revision_of(asked.store))


def _audit_row(record: AuditRecord) -> AuditRow:
    facts = msgspec.structs.asdict(record)
    return AuditRow(**facts | {"answer": msgspec.json.decode(record.answer)})


def _ring_length(store: DraftReading, ring: AuditRing) -> int:
    prefix = prefix_of(AuditRecord, ring.value)
    oldest = _oldest_sequence(store, prefix)
    return 0 if oldest is None else _newest_sequence(store, prefix) - oldest + 1


def _oldest_sequence(store: DraftReading, prefix: bytes) -> int | None:
    first = store.range(prefix, prefix_end(prefix), 1).records
    return decode_object(AuditRecord, first[0].value).sequence if first else None


def _newest_sequence(store: DraftReading, prefix: bytes) -> int:
    """Find the end of a ring: its sequences have no holes, so halving finds it."""
    low = _oldest_sequence(store, prefix)
    if low is None:
        return -1
    high = low + max(RING_RECORDS_MAX.values()) + 1
    while high - low > 1:
        middle = (low + high) // 2
        if store.get(Key(prefix + f"{middle:020d}".encode())) is not None:
            low = middle
        else:
            high = middle
    return low


# Configuration.


def scope_of(values: Mapping[str, Any]) -> SettingScope:
    """Read `?scope=` and `?name=`; the cluster's scope has no name of its own."""
    kind, name = values["scope"], values["name"]
    if (kind is ScopeKind.CLUSTER) != (name == "all"):
        raise malformed("the scope Cluster has no name, and every other scope has one", name=name)
    return SettingScope(kind=kind, name=name)


def veiled(version: ConfigVersion) -> ConfigVersion:
    """Show a document without what is kept of passwords: only that there is one."""
    shown: dict[str, Any] = {
        key: SET if key.startswith(USER_PREFIX) else value
        for key, value in version.document.items()
    }
    return msgspec.structs.replace(version, document=shown)


def configuration(_api: PageContext, asked: AdminRequest) -> ConfigurationAnswer:
    scope = scope_of(asked.values)
    head = find(asked.store, ConfigHead, scope.kind.value, scope.name)
    if head is None:
        return ConfigurationAnswer(scope=scope, version=0, oldest=0, in_force=None)
    parts = (scope.kind.value, scope.name, head.version)
    return ConfigurationAnswer(
        scope=scope,
        version=head.version,
        oldest=head.oldest,
        in_force=None
        if (held := find(asked.store, ConfigVersion, *parts)) is None
        else veiled(held),
    )


def explained(_api: PageContext, asked: AdminRequest) -> ConfigValue:
    """Say which scope gives a key its value, of the widest to the narrowest that are named."""
    key = asked.values["key"]
    scopes = [SettingScope(kind=ScopeKind.CLUSTER)]
    for kind in (ScopeKind.NODE, ScopeKind.PARTITION, ScopeKind.TENANT, ScopeKind.DEFINITION):
        name = asked.values[kind.value.lower()]
        if name is not None:
            scopes.append(SettingScope(kind=kind, name=name))
    found = explain(asked.store, key, scopes)
    if found is None:
        raise not_found("no scope sets this key", key=key, scopes=[s.kind.value for s in scopes])
    of_tenant = found.scope.kind is ScopeKind.TENANT
    effect = takes(key, of_tenant=of_tenant).value
    said = {"scope": found.scope, "takes_effect": effect}
    if key.startswith(USER_PREFIX):
        said["value"] = SET
    return ConfigValue(key=key, **asdict(found) | said)


# The whole cluster.

_SHOWN: Final = (
    "cluster/",
    "node/",
    "tenant/",
    "routing/",
    "placement/",
    "proof/",
    "proof_conflict/",
    "quarantine/",
    "feature_gate/",
    "fence/",
    "override/",
    "key_epochs/",
)


class Copy:
    """Records of some prefixes as they stood at one moment: what is built of them may take long."""

    def __init__(self, store: DraftReading) -> None:
        self.revision = revision_of(store)
        self._by_prefix = {
            prefix.encode(): list(scan_records(store, prefix.encode())) for prefix in _SHOWN
        }
        self._by_key = {r.key: r for records in self._by_prefix.values() for r in records}
        self.audit_records = sum(_ring_length(store, ring) for ring in AuditRing)

    def get(self, key: Key) -> KvRecord | None:
        return self._by_key.get(key)

    def range(self, start: bytes, _end: bytes | None, _limit: int) -> RecordPage:
        return RecordPage(self.revision, self._by_prefix.get(start, []), more=False)  # type: ignore[arg-type]


async def whole_cluster(api: PageContext, asked: AdminRequest) -> bytes:
    """Show everything at one revision; a large cluster is encoded beside the event loop."""
    copy, age_ms = Copy(asked.store), api.port.local_age()
    return await asyncio.to_thread(_whole, api, asked, copy, age_ms)


def _whole(api: PageContext, asked: AdminRequest, copy: Copy, age_ms: int | None) -> bytes:
    found = cluster_state(copy)
    found["partitions"] = [GroupState(**each) for each in found["partitions"]]
    found["audit_records"] = copy.audit_records
    state = ClusterState(
        access=access_of(api, asked), revision=copy.revision, cache_age_ms=age_ms, **found
    )
    return shown(ClusterState, state)


def access_of(api: PageContext, asked: AdminRequest) -> AccessAnswer:
    message = "roles are those of /v1/roles"
    if api.development is not None:
        message = "development: plaintext on loopback, and every caller is this Operator"
    return AccessAnswer(
        identity=asked.authority.identity,
        roles=tuple(sorted(asked.authority.roles)),
        development=api.development is not None,
        message=message,
    )
