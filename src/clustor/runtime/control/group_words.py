"""What the control plane's copy says of each group here, handed to a few groups in each turn."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from clustor.control import ControlCache
from clustor.control.fences import fences_of
from clustor.log.types import PartitionId
from clustor.runtime.control.cache_file import moment
from clustor.runtime.group import HostedGroup
from clustor.runtime.node import Node

_TOLD_PER_TURN: Final = 64


class GroupWords:
    """Which groups must be told something, and the DR fences that stand."""

    def __init__(
        self,
        node: Node,
        own: HostedGroup,
        cache: Callable[[], ControlCache],
        *,
        features: Callable[[HostedGroup], None],
        steer: Callable[[HostedGroup], None],
    ) -> None:
        self._node = node
        self._own = own
        self._cache = cache
        self._features = features
        self._steer = steer
        self.to_tell: dict[PartitionId, None] = {}
        """Who must be told something; every turn looks whether there is any."""
        self._fences: dict[int, str] = {}

    def add(self, partitions: Iterable[PartitionId]) -> None:
        """Tell these groups in one of the next turns."""
        self.to_tell |= dict.fromkeys(partitions)

    def tell_all(self) -> None:
        """Tell every group once more: something that all of them obey has changed."""
        self._fences = fences_of(self._cache())
        self.to_tell |= dict.fromkeys(self._node.groups)

    def tell_some(self) -> None:
        """Tell so many groups in a turn; one that is not open yet is told later."""
        for partition in list(self.to_tell)[:_TOLD_PER_TURN]:
            del self.to_tell[partition]
            group = self._node.groups.get(partition)
            if group is None or group.replica.failed is not None or group.paused:
                continue
            if group.replica.ready:
                group.answer_for(partial(self._tell, group))
            else:
                self.to_tell[partition] = None

    def _tell(self, group: HostedGroup) -> None:
        """Hand a group the control plane's word on it."""
        if group is not self._own:  # or nobody could lift a fence again
            group.replica.set_fence(self._fences.get(int(group.partition_id), ""))
        word = self._cache().word_for(group.partition_id, moment(self._node.now_ms()))
        if word is None:
            return
        self._features(group)
        replica = group.replica
        if word.reconciled:
            replica.proof_conflict_reconciled()
        for update in word.updates:
            replica.control_plane(update)
        if word.membership_ack is not None:
            replica.membership_acknowledged(word.membership_ack)
        if replica.leads:
            self._steer(group)
        self._node.touch(group)
