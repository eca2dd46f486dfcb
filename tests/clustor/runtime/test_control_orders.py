"""An order at a group, as the placement that it asks for."""

from __future__ import annotations

import pytest

from clustor.control import Members, Placement
from clustor.raft.errors import MembershipRefused
from clustor.runtime.control.placement_requests import UNDER_WAY, changed, placement_for
from clustor.runtime.members import WantedChange

THREE = Members(voters=(1, 2, 3))


def placed(members: Members = THREE, previous: Members | None = None) -> Placement:
    return Placement(
        partition_id=7,
        tenant_id="a",
        members=members,
        load=4,
        routing_epoch=9,
        placement_digest=b"d" * 32,
        utilization=1,
        survivable=True,
        profile="ConsistencyProfile",
        previous=previous,
    )


GOALS = {
    "a voter more": (THREE, WantedChange("add", 4), (1, 2, 3, 4)),
    "a voter less": (Members(voters=(1, 2, 3, 4)), WantedChange("remove", 2), (1, 3, 4)),
    "a learner votes": (Members(voters=(1, 2), learners=(3,)), WantedChange("add", 3), (1, 2, 3)),
}


@pytest.mark.parametrize(("before", "wanted", "voters"), GOALS.values(), ids=GOALS.keys())
def test_the_order_becomes_a_placement_of_the_next_epoch(
    before: Members, wanted: WantedChange, voters: tuple[int, ...]
) -> None:
    command = placement_for(placed(before), wanted)
    assert command is not None
    assert command.members == Members(voters=voters)
    assert (command.partition_id, command.tenant_id, command.load) == (7, "a", 4)
    assert command.expected_routing_epoch == 9


def test_what_stands_is_not_placed_again() -> None:
    assert placement_for(placed(), WantedChange("add", 3)) is None
    assert placement_for(placed(), WantedChange("remove", 4)) is None


@pytest.mark.parametrize("wanted", [WantedChange("add", 3), WantedChange("add", 4)])
def test_a_move_that_is_not_recorded_is_not_overtaken(wanted: WantedChange) -> None:
    with pytest.raises(MembershipRefused, match=UNDER_WAY):
        placement_for(placed(previous=Members(voters=(1, 2))), wanted)


def test_a_group_is_not_shrunk_below_what_survives_without_a_word() -> None:
    with pytest.raises(MembershipRefused, match="survive"):
        placement_for(placed(), WantedChange("remove", 3))
    command = placement_for(placed(), WantedChange("remove", 3, "it is sold"))
    assert command is not None and command.members.voters == (1, 2)


def test_other_members_stay_as_they_are() -> None:
    held = Members(voters=(1, 2, 3), learners=(4,), observers=(5,))
    assert changed(held, WantedChange("remove", 1)) == Members(
        voters=(2, 3), learners=(4,), observers=(5,)
    )
