"""Shared subscriptions: one member each, in turn, nothing lost (quantumqtt §2.3, ruling C12)."""

from __future__ import annotations

from collections import Counter

from quantum.broker import PUBACK, PUBREC, LeaderStarted, Message, Send, SendPubrel, SetPolicy
from quantum.broker.items import Interest, MemberItem, Returned, Targeted
from quantum.broker.message_key import message_key
from quantum.broker.shares import ShareGroup, ShareMember, owner_of_key
from quantum.tenancy import HELD
from tests.quantum.broker.desk import Desk, record, spec

MEMBERS = (b"m0", b"m1", b"m2")


def group(desk: Desk, qos: int = 2, members: tuple[bytes, ...] = MEMBERS, window: int = 4) -> None:
    for client_id in members:
        desk.attach(client_id, window=window)
        desk.subscribe(spec(b"a", qos, share=b"g", identifier=3), client_id=client_id)


def turn(client_id: bytes, epoch: int, data: bytes) -> Targeted:
    return Targeted(
        client_id, epoch, data, 1, retain=False, identifier=0, share=b"g", filter=b"far/#"
    )


def receivers(desk: Desk, count: int, qos: int = 1) -> list[bytes]:
    found = []
    for number in range(count):
        assert desk.publish(b"a", b"%d" % number, qos) == 0
        found += [client_id for client_id, *_ in desk.sent()]
    return found


def test_turns_go_round_among_those_who_are_connected() -> None:
    desk = Desk()
    group(desk)
    assert Counter(receivers(desk, 6)) == dict.fromkeys(MEMBERS, 2)
    desk.detach(b"m1")
    for client_id in MEMBERS:
        for packet_id in range(1, 9):
            desk.acknowledge(PUBACK, packet_id, client_id=client_id)
    assert Counter(receivers(desk, 4)) == {b"m0": 2, b"m2": 2}


def test_a_shared_message_carries_its_identifier_and_the_members_qos() -> None:
    desk = Desk()
    group(desk, qos=1, members=(b"m0",))
    desk.publish(b"a", b"x", 2)
    (sent,) = desk.effects
    assert isinstance(sent, Send) and (sent.delivery.qos, sent.delivery.identifiers) == (1, (3,))


def test_a_group_whose_members_are_all_away_queues_for_one_of_them() -> None:
    desk = Desk()
    group(desk, members=(b"m0",))
    desk.detach(b"m0")
    assert receivers(desk, 3) == []
    desk.attach(b"m0")
    assert desk.payloads() == [b"0", b"1", b"2"]


def test_what_a_member_did_not_acknowledge_goes_to_others() -> None:
    desk = Desk()
    group(desk, members=(b"m0", b"m1"), window=1)
    receivers(desk, 4)
    desk.acknowledge(PUBACK, 1, client_id=b"m1")
    desk.detach(b"m0", gracefully=False)
    waiting = [each.message.payload for each in desk.session(b"m1").outbound.unfinished()]
    assert sorted(waiting) == [b"0", b"2", b"3"]
    assert len(desk.session(b"m0").outbound) == 0


def test_a_member_that_ends_leaves_nothing_behind() -> None:
    desk = Desk()
    desk.subscribe(spec(b"a", share=b"g"), client_id=b"short", epoch=0)
    desk.attach(b"m0")
    desk.subscribe(spec(b"a", share=b"g"), client_id=b"m0")
    desk.detach(b"m0")
    receivers(desk, 3)
    desk.detach(b"short", gracefully=False)
    waiting = [each.message.payload for each in desk.session(b"m0").outbound.queue]
    assert waiting == [b"0", b"1", b"2"]


def test_a_qos_2_exchange_is_completed_with_its_client() -> None:
    """[MQTT-4.8.2-4]: whether PUBREC came or not, the packet id is this client's."""
    desk = Desk()
    group(desk, members=(b"m0", b"m1"))
    receivers(desk, 4, qos=2)
    desk.acknowledge(PUBREC, 1, client_id=b"m0")
    desk.detach(b"m0", gracefully=False)
    assert len(desk.session(b"m1").outbound) == 2
    desk.attach(b"m0")
    assert SendPubrel(b"m0", 1) in desk.effects
    assert [(each[0], each[1]) for each in desk.sent()] == [(b"m0", 2)]


def test_a_qos_2_exchange_dies_with_its_session() -> None:
    """[MQTT-4.8.2-5]: nobody else gets what one member may have had."""
    desk = Desk()
    group(desk, members=(b"m0", b"m1"), window=1)
    receivers(desk, 4, qos=2)
    desk.detach(b"m0", gracefully=False, expiry=0)
    waiting = [each.message.payload for each in desk.session(b"m1").outbound.unfinished()]
    assert sorted(waiting) == [b"1", b"2", b"3"]  # 0 was on its way to m0; 2 only waited


def test_a_group_ends_with_its_last_member() -> None:
    desk = Desk()
    group(desk, members=(b"m0",))
    desk.unsubscribe(b"$share/g/a", client_id=b"m0")
    assert not desk.leader.state.groups and receivers(desk, 1) == []


def test_two_groups_of_one_filter_each_get_the_message() -> None:
    desk = Desk()
    group(desk, members=(b"m0",))
    desk.attach(b"other")
    desk.subscribe(spec(b"a", share=b"h"), client_id=b"other")
    assert sorted(receivers(desk, 1)) == [b"m0", b"other"]


def test_a_new_leader_gives_each_message_to_another_member_once() -> None:
    desk = Desk()
    for number in range(20):
        client_id = b"short %d" % number
        desk.subscribe(spec(b"a", share=b"g"), client_id=client_id, epoch=0)
    desk.attach(b"m0")
    desk.subscribe(spec(b"a", share=b"g"), client_id=b"m0")
    receivers(desk, 42)
    before = desk.leader.state.groups[b"g", b"a"].turn
    desk.do(LeaderStarted(desk.now_ms, 2))
    assert len(desk.session(b"m0").outbound) == 42
    assert desk.leader.state.groups[b"g", b"a"].turn == before + 42


# Room.


def test_a_member_without_room_yields_and_a_group_without_room_refuses() -> None:
    desk = Desk(queue_messages_max=4)
    group(desk, members=(b"m0", b"m1"), window=2)
    for _ in range(8):
        assert desk.publish(b"a") == 0
    assert desk.publish(b"a") == 0x97
    desk.acknowledge(PUBACK, 1, client_id=b"m1")
    assert desk.publish(b"a") == 0
    assert len(desk.session(b"m0").outbound) == 4
    assert desk.publish(b"a") == 0x97


def test_a_full_member_elsewhere_yields_too() -> None:
    desk = Desk()
    near = MemberItem(b"g", b"a", b"near", 1, 1, 0, online=True)
    full = MemberItem(b"g", b"a", b"full", 1, 1, 0, online=True, full=True)
    desk.from_there(near, full)
    for _ in range(3):
        desk.publish(b"a")
    targets = {each.client_id for each in desk.to_there() if isinstance(each, Targeted)}
    assert targets == {b"near"}
    desk.from_there(MemberItem(b"g", b"a", b"near", 1, 1, 0, online=True, full=True))
    assert desk.publish(b"a") == 0x97


def test_taking_back_makes_room() -> None:
    desk = Desk(queue_messages_max=4)
    desk.attach(b"m0")
    desk.subscribe(spec(b"a", share=b"g"), spec(b"b"), client_id=b"m0")
    for _ in range(4):
        desk.publish(b"a")
    assert desk.publish(b"b") == 0x97
    desk.attach(b"m1", window=9)
    desk.subscribe(spec(b"a", share=b"g"), client_id=b"m1")
    desk.detach(b"m0")
    assert desk.publish(b"b") == 0


# Across partitions.


def test_the_owner_of_the_topic_picks_members_of_other_partitions() -> None:
    desk = Desk()
    desk.from_there(MemberItem(b"g", b"a", b"far member", 7, 1, 9, online=True))
    desk.publish(b"a", b"x", 2)
    (item,) = desk.to_there()
    assert isinstance(item, Targeted)
    assert (item.client_id, item.epoch, item.qos, item.identifier) == (b"far member", 7, 1, 9)
    assert (item.share, item.filter) == (b"g", b"a")
    desk.from_there(MemberItem(b"g", b"a", b"far member", 7, -1, 9, online=False))
    assert desk.publish(b"a") == 0 and desk.to_there() == []


def test_other_partitions_hear_of_members_and_their_condition() -> None:
    desk = Desk()
    desk.attach(b"m")
    desk.subscribe(spec(b"far/#", 1, share=b"g"), client_id=b"m")
    assert desk.to_there() == [MemberItem(b"g", b"far/#", b"m", 1, 1, 0, online=True)]
    desk.detach(b"m")
    assert desk.to_there() == [MemberItem(b"g", b"far/#", b"m", 1, 1, 0, online=False)]
    desk.attach(b"m", clean=True)
    assert desk.to_there() == [MemberItem(b"g", b"far/#", b"m", 1, -1, 0, online=False)]


def test_a_turn_for_a_session_that_is_no_more_is_returned() -> None:
    desk = Desk()
    late = turn(b"gone", 4, record(b"far/x"))
    desk.from_there(late)
    assert desk.to_there() == [Returned(b"g", b"far/#", record(b"far/x"))]


def test_a_turn_for_a_member_that_left_is_returned() -> None:
    desk = Desk()
    epoch = desk.attach(b"m").epoch
    desk.subscribe(spec(b"far/#", share=b"g"), client_id=b"m")
    desk.unsubscribe(b"$share/g/far/#", client_id=b"m")
    desk.to_there()
    desk.from_there(turn(b"m", epoch, record(b"far/x")))
    assert desk.to_there() == [Returned(b"g", b"far/#", record(b"far/x"))]


def test_what_comes_back_goes_to_the_next_member_or_to_nobody() -> None:
    desk = Desk()
    group(desk, members=(b"m0",))
    desk.from_there(Returned(b"g", b"a", record(b"a", b"back")))
    assert desk.payloads() == [b"back"]
    desk.from_there(Returned(b"gone", b"a", record(b"a", b"back")))
    assert desk.payloads() == [] and desk.leader.state.dropped == 1


def test_what_a_member_elsewhere_did_not_take_goes_back_to_the_owner() -> None:
    desk = Desk()
    epoch = desk.attach(b"m", window=1).epoch
    desk.subscribe(spec(b"far/#", share=b"g"), client_id=b"m")
    for payload in (b"1", b"2"):
        data = record(b"far/x", payload)
        desk.from_there(turn(b"m", epoch, data))
    desk.to_there()
    desk.detach(b"m", gracefully=False)
    online, *back = desk.to_there()
    assert isinstance(online, MemberItem) and not online.online
    assert back == [Returned(b"g", b"far/#", record(b"far/x", each)) for each in (b"1", b"2")]


def test_picking_for_what_is_not_logged_changes_no_state() -> None:
    desk = Desk()
    group(desk)
    before = desk.leader.digest()
    share = desk.leader.state.groups[b"g", b"a"]
    picked = [share.pick_unlogged() for _ in range(3)]
    assert {each.client_id for each in picked if each is not None} == set(MEMBERS)
    assert desk.leader.digest() == before
    assert ShareGroup(b"g", b"a").pick_unlogged() is None


def test_replicas_that_began_at_different_times_give_out_alike() -> None:
    """The order of groups must not depend on when a replica learned of them."""
    desk = Desk()
    for share in (b"z", b"a", b"m"):
        desk.from_there(MemberItem(share, b"a", b"far", 1, 1, 0, online=True))
    desk.from_there(Interest(b"a", 1))
    desk.publish(b"a")
    shares = [each.share for each in desk.to_there() if isinstance(each, Targeted)]
    assert shares == [b"a", b"m", b"z"]


# By key (C12: the option).


def by_key(desk: Desk) -> None:
    plenty = [1 << 40] * len(HELD)
    desk.do(SetPolicy(desk.now_ms, plenty, plenty, hashes_shares=True))


def key_owners(desk: Desk, keys: int) -> dict[int, bytes]:
    """Publish one message for each key; say who got it, and let it be acknowledged."""
    found = {}
    for key in range(keys):
        assert desk.publish(b"k/%d" % key) == 0
        ((client_id, packet_id, _, _),) = desk.sent()
        desk.acknowledge(PUBACK, packet_id, client_id=client_id)
        found[key] = client_id
    return found


def keyed(desk: Desk, members: tuple[bytes, ...] = MEMBERS) -> None:
    by_key(desk)
    for client_id in members:
        desk.attach(client_id)
        desk.subscribe(spec(b"k/#", 1, share=b"g"), client_id=client_id)


def test_a_key_stays_with_its_member_and_only_what_must_moves() -> None:
    desk = Desk()
    keyed(desk, (*MEMBERS, b"m3"))
    before = key_owners(desk, 60)
    assert before == key_owners(desk, 60)
    assert all(8 <= count <= 24 for count in Counter(before.values()).values())
    desk.unsubscribe(b"$share/g/k/#", client_id=b"m1")
    after = key_owners(desk, 60)
    assert {key for key in before if before[key] != after[key]} == {
        key for key, owner in before.items() if owner == b"m1"
    }
    desk.subscribe(spec(b"k/#", 1, share=b"g"), client_id=b"m1")
    assert key_owners(desk, 60) == before


def test_a_member_that_dies_loses_nothing_and_gets_its_keys_again() -> None:
    desk = Desk()
    keyed(desk)
    before = key_owners(desk, 30)
    mine = [key for key, owner in before.items() if owner == b"m0"]
    for key in mine:
        desk.publish(b"k/%d" % key, b"unseen %d" % key)
    desk.detach(b"m0", gracefully=False)
    assert sorted(desk.payloads()) == sorted(b"unseen %d" % key for key in mine)
    assert all(client_id != b"m0" for client_id, *_ in desk.sent())
    desk.attach(b"m0")
    for client_id in (b"m1", b"m2"):
        desk.acknowledge(PUBACK, *range(1, 60), client_id=client_id)
    assert key_owners(desk, 30) == before


def test_a_key_that_the_publisher_names_outranks_the_topic() -> None:
    def message(properties: bytes) -> Message:
        return Message(b"topic", b"", 1, False, properties, 0, b"p", 0, 1)  # noqa: FBT003

    named = b"\x01\x01\x03\x00\x04text\x26\x00\x01a\x00\x01b\x26\x00\x03key\x00\x02k7"
    assert message_key(message(b"")) == b"topic"
    assert message_key(message(named)) == b"k7"
    assert message_key(message(named[:18])) == b"topic"
    for end in range(len(named)):
        message_key(message(named[:end]))  # whatever bytes there are


def test_the_owner_of_a_key_does_not_depend_on_the_order_of_members() -> None:
    members = [ShareMember(0, b"m%d" % n, 1, 1, 0, online=True) for n in range(9)]
    for key in (b"a", b"b", b"c"):
        owners = {owner_of_key(members[n:] + members[:n], key).client_id for n in range(9)}
        assert len(owners) == 1
    assert owner_of_key(members, b"frozen").client_id == b"m5"  # another seed moves every key
