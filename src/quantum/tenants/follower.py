"""Keeps a node's tenants as the control plane says, from the node's own copy of it.

The copy is durable, so a node that starts while the control plane is gone serves what it last
heard. What the words mean, and what the files still say, is in `control_words`; here they are
put in force: tenants are hosted, described, shut and opened, while everybody else goes on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Protocol, cast

import msgspec

from clustor.control import CertificateBundle, ControlCache, ScopeKind, SettingScope
from clustor.control.configuration import Value
from clustor.log.types import PartitionId
from quantum.config.live import LIVE_KEYS, NODE_KEYS, Takes, read_value
from quantum.tenancy import TenantDescription
from quantum.tenants.broker_file import BrokerFile, TenantEntry, TenantRing
from quantum.tenants.control_words import (
    ConnectRules,
    TenantWord,
    connect_rules,
    describe,
    joined_sizes,
    known_tenants,
    settings_of,
    tenant_word,
)
from quantum.tenants.group_ids import GroupPlacement, placements_of
from quantum.tenants.policy import server_name_owners
from quantum.tenants.records import PLACED_SUFFIX

_LOOK_TURNS = 10
SUSPENDED = "the tenant is suspended"
DELETED = "the tenant was deleted"

journal = logging.getLogger("quantum.broker")


@dataclass(slots=True)
class Changed:
    """What others hear of: whose doors and names are others now."""

    doors: bool = False
    names: bool = False
    trust: bool = False


class HostedTenant(Protocol):
    """A tenant as it is served on this node, whatever its clients speak."""

    shut: str
    auth_epoch: int

    def obey(self, description: TenantDescription, connects: ConnectRules | None = None) -> None:
        """Put another policy in force, for those who are connected too."""

    def shut_out(self, why: str) -> int:
        """Send every client away, and let nobody in; returns how many went."""
        ...

    def groups(self) -> tuple[PartitionId, ...]:
        """Return the groups of its partitions, by their numbers."""
        ...


class TenantHost(Protocol):
    """Who hosts tenants on this node."""

    limits: Any
    """What new connections may ask for: a dataclass whose fields settings name."""
    server_names: dict[str, str]

    @property
    def tenants(self) -> Mapping[str, HostedTenant]: ...
    def add_placed(
        self, entry: TenantEntry, placements: Sequence[GroupPlacement], life: str | None = None
    ) -> HostedTenant:
        """Host the partitions of a tenant in these groups."""
        ...

    def host(
        self, tenant: Any, entry: TenantEntry, placements: Sequence[GroupPlacement] | None = None
    ) -> None:
        """Host the partitions of a tenant that are not hosted yet."""

    def forget_tenant(self, name: str) -> None: ...
    def note_act(self, what: str, outcome: str, *, target: str = "", tenant: str = "") -> None: ...


class TenantKeeper:
    """Follows the copy of one node. `on_changed` hears of doors and server names."""

    def __init__(
        self,
        service: TenantHost,
        cache: Callable[[], ControlCache],
        node_id: int,
        filed: BrokerFile,
    ) -> None:
        self._service = service
        self._cache = cache
        self._node_id = node_id
        self._ordinals = {entry.name: number for number, entry in enumerate(filed.tenants)}
        self._entries = {entry.name: entry for entry in filed.tenants}
        self._described: dict[str, TenantDescription] = {}
        self._words: dict[str, TenantWord] = {}
        self._in_force: dict[str, TenantDescription] = {}
        self._limits = service.limits
        self._seen: int | None = None
        self._sentences: dict[str, tuple[str, ...]] = {}
        self._turns = 0
        self._may_host = True
        self._is_behind = False
        """Whether a tenant waits for the next turn: opening its groups takes the loop's time."""
        self.is_fresh: Callable[[], bool] = lambda: True
        """Whether the copy may be acted on; what a start finds is in force whatever its age."""
        self.look: Callable[[], None] | None = None
        """Lets the control plane's leader look again at what is missing."""
        self.on_changed: Callable[[Changed], None] | None = None

    def describe(self, filed: Mapping[str, TenantDescription]) -> None:
        """Take up what `tenants.toml` says now."""
        self._described = dict(filed)
        self._seen = None
        self.follow()

    def file_grew(self, filed: BrokerFile) -> None:
        """Take up that rings of `broker.json` grew."""
        self._entries = {entry.name: entry for entry in filed.tenants}

    def word(self, name: str) -> TenantWord:
        """Return what the control plane said last of a tenant."""
        return self._words.get(name, TenantWord(name))

    def setting(self, tenant: str, key: str) -> object:
        """Return what the configuration says of a key for a tenant; None: nothing."""
        return self.word(tenant).settings.get(key)

    def settings(self, tenant: str) -> Mapping[str, object]:
        """Return all that the configuration says of a tenant."""
        return self.word(tenant).settings

    def names(self) -> Iterable[str]:
        """Name the tenants that the control plane spoke of."""
        return self._words

    def trust(self) -> dict[str, CertificateBundle]:
        """Return whom the tenants believe that say so themselves."""
        return {name: word.trust for name, word in self._words.items() if word.trust is not None}

    def at_start(self) -> dict[str, int]:
        """Return what the configuration says of settings that are read at the start."""
        said, found = self._said(), {}
        for key in NODE_KEYS & said.keys():
            if LIVE_KEYS[key].takes is Takes.RESTART:
                with suppress(ValueError):
                    found[key] = cast("int", read_value(key, said[key]))
        return found

    def _said(self) -> dict[str, Value]:
        node = SettingScope(kind=ScopeKind.NODE, name=str(self._node_id))
        return settings_of(self._cache(), SettingScope(kind=ScopeKind.CLUSTER), node)

    def description(self, name: str) -> TenantDescription:
        """Return what is in force for a tenant."""
        return self._in_force.get(name, TenantDescription())

    def follow(self) -> None:
        """Take up what changed in the copy since the last time."""
        cache = self._cache()
        self._turns += 1
        if self._turns % _LOOK_TURNS == 0 and self.look is not None and self._is_growing():
            self.look()
        if cache.tenants_revision == self._seen and not self._is_behind:
            return
        if self._seen is not None and not self.is_fresh():
            return  # hot reloads are for a fresh copy alone (quantumqtt §15.3)
        self._seen, self._is_behind, self._may_host = cache.tenants_revision, False, True
        self._follow_limits()
        changed = Changed()
        names = [*self._entries, *known_tenants(cache), *self._service.tenants]
        for name in dict.fromkeys(names):
            self._follow_tenant(tenant_word(cache, name), changed)
        owners = self._owners()
        if owners != self._service.server_names:
            self._service.server_names = owners
            changed.names = True
        if self.on_changed is not None and changed != Changed():
            self.on_changed(changed)

    def _is_growing(self) -> bool:
        """Say whether a ring is smaller than it is wanted: the change before may not be over."""
        wanted = ((w.settings.get("tenant_prg_count"), w) for w in self._words.values())
        return any(isinstance(n, int) and n > len(w.partitions) for n, w in wanted)

    # The node.

    def _follow_limits(self) -> None:
        """Put the limits in force that the configuration sets, for connections from now on."""
        said = self._said()
        found = {}
        for key in NODE_KEYS & said.keys():
            if LIVE_KEYS[key].takes is not Takes.NEW_CONNECTIONS:
                continue
            try:
                found[key] = read_value(key, said[key])
            except ValueError as error:
                journal.error("the configuration is not followed: %s", error)
        limits = replace(self._limits, **found)
        if limits != self._service.limits:
            journal.info("limits of new connections: %s", found or "those of the start")
            self._service.limits = limits

    # One tenant.

    def _follow_tenant(self, word: TenantWord, changed: Changed) -> None:
        filed = self._described.get(word.name, TenantDescription())
        description = describe(word, TenantDescription() if word.is_reborn else filed)
        before = self._in_force.get(word.name)
        if word == self._words.get(word.name) and description == before:
            return
        if word.partitions and word.is_known and not self._has_room(word.name):
            return
        changed.trust |= word.trust != self.word(word.name).trust
        self._words[word.name] = word
        for sentence in word.mistakes:
            journal.error("tenant %s: %s", word.name, sentence)
        if word.is_deleted:
            self._end(word.name)
            changed.doors |= before is not None and before.mqtt is not None
            return
        tenant = self._hosted(word)
        if tenant is None:
            return
        self._in_force[word.name] = description
        tenant.obey(description, connect_rules(word))
        epoch = word.settings.get("token_auth_epoch")
        tenant.auth_epoch = epoch if isinstance(epoch, int) else 0
        changed.doors |= (before.mqtt if before is not None else None) != description.mqtt
        self._open_or_shut(tenant, word)

    def _has_room(self, name: str) -> bool:
        """Say whether this turn may open a tenant's groups; the next one comes to it otherwise."""
        if name in self._service.tenants:
            return True
        may_host, self._may_host = self._may_host, False
        self._is_behind |= not may_host
        return may_host

    def _open_or_shut(self, tenant: HostedTenant, word: TenantWord) -> None:
        if word.is_suspended and not tenant.shut:
            count = tenant.shut_out(SUSPENDED)
            self._tell("TenantSuspended", word.name, count)
        elif tenant.shut and not word.is_suspended:
            tenant.shut = ""
            self._tell("TenantServedAgain", word.name, 0)

    def _end(self, name: str) -> None:
        tenant = self._service.tenants.get(name)
        self._in_force.pop(name, None)
        if tenant is not None:
            count = tenant.shut_out(DELETED)
            self._tell("TenantDeleted", name, count)
            self._service.forget_tenant(name)

    def _tell(self, what: str, name: str, count: int) -> None:
        """Write down what became of a tenant here."""
        words = f"{count} clients were sent away"
        journal.warning("tenant %s: %s, %s", name, what, words)
        self._service.note_act(what, words, target=f"tenant/{name}", tenant=name)

    def _hosted(self, word: TenantWord) -> HostedTenant | None:
        """Return the tenant as it is hosted here, with every partition that its ring has by now."""
        tenant = self._service.tenants.get(word.name)
        if tenant is not None and self._is_of_another_life(tenant, word):
            self._end(word.name)
            tenant = None
        entry, placements = self._entry(word)
        if entry is None:
            return tenant  # it has no ring yet
        if tenant is None:
            journal.info("tenant %s has %d partitions here", word.name, entry.prg_count)
            life = f"{word.name}~{placements[0].partition}" if word.is_reborn else None
            tenant = self._service.add_placed(entry, placements, life)
        elif entry.prg_count > len(tenant.groups()):
            journal.info("tenant %s grows to %d partitions", word.name, entry.prg_count)
            self._service.host(tenant, entry, placements)
        return tenant

    @staticmethod
    def _is_of_another_life(tenant: HostedTenant, word: TenantWord) -> bool:
        mine = tenant.groups()
        short = min(len(mine), len(word.partitions))
        return bool(short) and mine[:short] != word.partitions[:short] and word.is_reborn

    def _entry(self, word: TenantWord) -> tuple[TenantEntry | None, tuple[GroupPlacement, ...]]:
        """Return a tenant with its rings, and its groups; None: it has no ring yet."""
        filed = None if word.is_reborn else self._entries.get(word.name)
        own = tuple(
            GroupPlacement(PartitionId(group), voters)
            for group, voters in zip(word.partitions, word.founders, strict=True)
        )
        if filed is None:
            if not own:
                return None, ()
            first, *later = word.sizes
            rings = tuple(TenantRing(each) for each in later)
            return TenantEntry(word.name, first, rings=rings), own
        placements = placements_of(filed, self._ordinals[word.name])
        steps = (filed.prgs, *(ring.prg_count for ring in filed.rings))
        sizes = joined_sizes(steps, word.sizes)
        groups, filed_groups = ([each.partition for each in some] for some in (own, placements))
        short = min(len(groups), len(filed_groups))
        if sizes is None or groups[:short] != filed_groups[:short]:
            self._complain(word.name, "its ring is another than that of broker.json: kept as it is")
            return filed, placements
        rings = (*filed.rings, *(TenantRing(each) for each in sizes[len(steps) :]))
        return msgspec.structs.replace(filed, rings=rings), (*placements, *own[len(placements) :])

    def _complain(self, name: str, sentence: str) -> None:
        if self._sentences.get(name) != (sentence,):
            self._sentences[name] = (sentence,)
            journal.error("tenant %s: %s", name, sentence)

    def _owners(self) -> dict[str, str]:
        """Return whose each server name is; names that were made up are nobody's."""
        owners = server_name_owners(self._in_force)
        return {name: owner for name, owner in owners.items() if not name.endswith(PLACED_SUFFIX)}
