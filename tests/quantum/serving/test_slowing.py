"""A subscriber that is slower than its publishers slows them, and is not closed for it."""

from __future__ import annotations

import pytest

from quantum.protocols.mqtt.codec import Publish
from quantum.protocols.mqtt.session import slowing
from quantum.protocols.mqtt.session.limits import MqttLimits
from quantum.protocols.mqtt.session.slowing import SLOW_BYTES_MAX, STUCK_MS_MAX
from tests.quantum.serving.client import Client, connect
from tests.quantum.serving.tenant_lab import TenantLab
from tests.quantum.serving.test_tenants_limits import OPEN, answers, line_of, publishes

MESSAGE = 10_000


def deaf_reader(lab: TenantLab, topic: bytes = b"t") -> Client:
    reader = connect(lab.door("blue"))
    reader.subscribe(topic, 1)
    line_of(reader).writable = False
    return reader


def flood(writer: Client, topic: bytes = b"t") -> int:
    """Publish until it is left unread, or much more than may wait was sent; return how many."""
    sent = 0
    while not line_of(writer).is_paused and sent * MESSAGE < 4 * SLOW_BYTES_MAX:
        writer.send(publishes(10, MESSAGE, topic, first=1 + sent))
        sent += 10
    return sent


def test_a_subscriber_that_does_not_read_stops_its_publisher_and_no_other() -> None:
    lab = TenantLab({"blue": {}}, OPEN)
    reader = deaf_reader(lab)
    fast, other = connect(lab.door("blue")), connect(lab.door("blue"))
    sent = flood(fast)
    assert line_of(fast).is_paused
    assert sent * MESSAGE < SLOW_BYTES_MAX + 400_000, "what was read before is all that waits"
    assert flood(other, b"elsewhere") * MESSAGE >= 4 * SLOW_BYTES_MAX
    assert not line_of(other).is_paused and not line_of(reader).is_closed


def test_it_goes_on_when_half_of_that_was_read_and_nothing_is_lost() -> None:
    lab = TenantLab({"blue": {}}, OPEN)
    reader = deaf_reader(lab)
    writer = connect(lab.door("blue"))
    sent = flood(writer)
    lab.tick(STUCK_MS_MAX - 1_000)
    assert not line_of(reader).is_closed and line_of(writer).is_paused
    line_of(reader).drain()
    for _ in range(sent):
        assert isinstance(reader.take(), Publish)
    lab.tick(20)
    assert not line_of(writer).is_paused and not line_of(reader).is_closed
    assert len(answers(writer)) == sent


def test_who_takes_a_little_again_and_again_is_never_closed() -> None:
    lab = TenantLab({"blue": {}}, OPEN)
    reader = deaf_reader(lab)
    writer = connect(lab.door("blue"))
    flood(writer)
    line_of(reader).drain()
    for _ in range(5):
        lab.tick(STUCK_MS_MAX // 2)
        reader.take()
    assert not line_of(reader).is_closed


def test_who_takes_nothing_for_half_a_minute_is_closed_and_the_publisher_goes_on() -> None:
    lab = TenantLab({"blue": {}}, OPEN)
    reader = deaf_reader(lab)
    writer = connect(lab.door("blue"))
    sent = flood(writer)
    lab.tick(STUCK_MS_MAX + 2_000)
    assert line_of(reader).is_closed
    assert not line_of(writer).is_paused and len(answers(writer)) == sent


def test_a_publisher_that_also_reads_is_read_on() -> None:
    """Its acknowledgements come by the same way: unread, two such clients would wait for ever."""
    lab = TenantLab({"blue": {}}, OPEN)
    deaf_reader(lab)
    both = connect(lab.door("blue"))
    both.subscribe(b"answers", 1)
    flood(both)
    assert not line_of(both).is_paused


def test_what_is_beyond_a_session_s_bound_is_dropped_and_counted_not_its_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(slowing, "only_publishes", lambda _connection: False)
    lab = TenantLab({"blue": {}}, MqttLimits(receive_maximum=60_000, queue_bytes_max=100_000))
    reader = deaf_reader(lab)
    writer = connect(lab.door("blue"))
    sent = flood(writer)
    assert len(answers(writer)) == sent
    assert not line_of(reader).is_closed
    assert lab.clients("blue").dropped > sent - 20
    assert lab.clients("blue").queued.amount <= 100_000 + 2 * MESSAGE


def test_a_word_from_another_node_holds_its_publisher_until_it_is_taken_back() -> None:
    lab = TenantLab({"blue": {}}, OPEN)
    writer, reader = connect(lab.door("blue"), client_id="w"), connect(lab.door("blue"))
    reader.subscribe(b"t", 1)
    tenant = lab.clients("blue")
    connection = tenant.of_client(b"w").connections[b"w"]
    tenant.slowed.on_word(2, b"far", connection, slow=True)
    tenant.slowed.on_word(2, b"far", connection, slow=True)
    assert line_of(writer).is_paused and tenant.slowed.slowed_by(connection) == b"far"
    tenant.slowed.on_word(2, b"far", connection, slow=False)
    lab.tick(20)
    assert not line_of(writer).is_paused and tenant.slowed.slowed_by(connection) is None
    tenant.slowed.on_word(2, b"far", connection, slow=True)
    tenant.slowed.begin_anew(3)
    lab.tick(20)
    assert line_of(writer).is_paused, "another node's word stands"
    tenant.slowed.begin_anew(2)
    lab.tick(20)
    assert not line_of(writer).is_paused
