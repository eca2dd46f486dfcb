"""What of a control plane's records begins a new cluster, as calls to its own control plane.

Carried over: tenants (with names, tiers and suspensions), their quotas, access rules, trust and
settings (users are among these), the cluster's settings, and the roles of people. Not carried over:
what is about nodes, keys, placements, proofs and single acts of the cluster that was; the new one
has its own. Pure: a store in, calls out; what they lead to is decided by the machine itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec

from clustor.control import (
    AclPolicy,
    Binding,
    Caller,
    CertificateBundle,
    ClusterConfig,
    Command,
    ConfigHead,
    ConfigVersion,
    ControlMachine,
    CreateTenant,
    DraftReading,
    PublishRbacManifest,
    QuotaPolicy,
    RbacManifest,
    Refused,
    ScopeKind,
    SetAcls,
    SetConfiguration,
    SetQuotas,
    SettingScope,
    SetTrust,
    TenantSpec,
    UpdateTenant,
    decode_answer,
    encode_call,
    find,
    scan,
)
from clustor.runtime.cluster_file import ClusterFile
from clustor.runtime.control.records import genesis, new_machine, steward_of
from clustor.runtime.errors import DataDirectoryRefused
from quantum.archive import ArchiveMissing, PrgId
from quantum.tenants.control_words import tenant_word

_STAMPS_MS: Final = 10
"""Between two calls: the control plane takes 200 changes of policy in a second."""


def tenants_at(
    store: DraftReading | None, archived: Iterable[PrgId], chosen: frozenset[str]
) -> dict[str, str]:
    """Say which tenants there were, each with its name in the archive; raises ArchiveMissing.

    One that was deleted is left out unless it is asked for by name. Without a control plane's word
    all that was archived is meant.
    """
    lives = list(dict.fromkeys(prg.tenant for prg in archived))
    found: dict[str, str] = {}
    for life in lives:
        name = life.partition("~")[0]
        if chosen and name not in chosen:
            continue
        if store is None or _is_current(store, name, life, asked=name in chosen):
            found[name] = life
    missing = ", ".join(sorted(chosen - set(found)))
    if missing or not found:
        raise ArchiveMissing("the archive has nothing of it", tenant=missing or "any tenant")
    return found


def _is_current(store: DraftReading, name: str, life: str, *, asked: bool) -> bool:
    """Say whether this is the life that a tenant's name stood for."""
    word = tenant_word(store, name)
    if word.is_deleted and not asked:
        return False
    reborn = word.is_reborn and word.partitions
    return life == (f"{name}~{word.partitions[0]}" if reborn else name)


def begun_with_records(
    cluster: ClusterFile, store: DraftReading, tenants: Mapping[str, str], now_ms: int
) -> ControlMachine:
    """Make a new cluster's control plane that has these records; raises DataDirectoryRefused."""
    machine = new_machine(cluster.birth)
    calls = [genesis(cluster), *_records(cluster, store, tenants)]
    began_ms = now_ms - _STAMPS_MS * len(calls)
    for index, command in enumerate(calls, 1):
        _call(machine, steward_of(cluster.id), index, began_ms + _STAMPS_MS * index, command)
    return machine


def _call(
    machine: ControlMachine, caller: Caller, index: int, now_ms: int, command: Command
) -> None:
    call = encode_call(caller, f"restore-{index}", now_ms, command)
    (encoded,) = machine.apply_batch(index, [call])
    answer = decode_answer(encoded)
    if isinstance(answer, Refused):
        raise DataDirectoryRefused(
            "a record cannot be brought back",
            call=type(command).__name__,
            refused=answer.code.value,
            why=answer.reason,
        )


def _records(
    cluster: ClusterFile, store: DraftReading, tenants: Mapping[str, str]
) -> Iterator[Command]:
    yield from _roles(cluster, store, tenants)
    for spec in scan(store, TenantSpec):
        if spec.tenant_id in tenants:
            yield from _tenant(store, spec)
    for head in scan(store, ConfigHead):
        if _is_carried(head.scope, tenants):
            parts = (head.scope.kind.value, head.scope.name, head.version)
            version = find(store, ConfigVersion, *parts)
            if version is not None and version.document:
                yield SetConfiguration(
                    scope=head.scope,
                    expected_version=0,
                    document=version.document,
                    tag=f"restored: version {head.version}",
                )


def _roles(
    cluster: ClusterFile, store: DraftReading, tenants: Mapping[str, str]
) -> Iterator[Command]:
    """People keep their roles; whose names end in the old cluster's get the new one's."""
    manifest, config = find(store, RbacManifest, "manifest"), find(store, ClusterConfig, "config")
    if manifest is None or config is None:
        return
    first = genesis(cluster).bindings
    old, new = f"spiffe://{config.cluster_id}/", f"spiffe://{cluster.id}/"
    carried = (
        msgspec.structs.replace(each, identity=new + each.identity.removeprefix(old))
        if each.identity.startswith(old)
        else each
        for each in manifest.bindings
        if each.tenant_id is None or each.tenant_id in tenants
    )
    bindings: tuple[Binding, ...] = tuple(dict.fromkeys((*first, *carried)))
    if bindings != first:
        yield PublishRbacManifest(expected_version=1, bindings=bindings)


def _tenant(store: DraftReading, spec: TenantSpec) -> Iterator[Command]:
    name = spec.tenant_id
    yield CreateTenant(
        tenant_id=name,
        sni=spec.sni,
        tier=spec.tier,
        group_fsync_allowed=spec.group_fsync_allowed,
        dr_shipping=spec.dr_shipping,
    )
    if spec.suspended:
        yield UpdateTenant(
            tenant_id=name,
            tier=spec.tier,
            group_fsync_allowed=spec.group_fsync_allowed,
            dr_shipping=spec.dr_shipping,
            suspended=True,
        )
    quotas = find(store, QuotaPolicy, name)
    if quotas is not None and quotas.version:
        numbers = msgspec.structs.asdict(quotas)
        said = {key: numbers[key] for key in numbers.keys() - {"tenant_id", "version"}}
        yield SetQuotas(tenant_id=name, expected_version=0, quotas=dict(sorted(said.items())))
    rules = find(store, AclPolicy, name)
    if rules is not None:
        yield SetAcls(
            tenant_id=name,
            expected_version=0,
            rules=rules.rules,
            disconnect_on_refusal=rules.disconnect_on_refusal,
        )
    trust = find(store, CertificateBundle, name)
    if trust is not None:
        yield SetTrust(
            tenant_id=name,
            expected_version=0,
            roots=trust.roots,
            revoked=trust.revoked,
            region=trust.region,
        )


def _is_carried(scope: SettingScope, tenants: Mapping[str, str]) -> bool:
    if scope.kind is ScopeKind.TENANT:
        return scope.name in tenants
    return scope.kind in (ScopeKind.CLUSTER, ScopeKind.DEFINITION)
