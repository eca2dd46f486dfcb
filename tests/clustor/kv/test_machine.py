"""What each command does at its edges: limits, transactions, time, repeats, and the past."""

from __future__ import annotations

import pytest

from clustor.kv import (
    CasRevision,
    ClientId,
    Command,
    Conflict,
    Delete,
    Deleted,
    DeleteRange,
    ErrorCode,
    Events,
    EventsCompacted,
    Expire,
    Expired,
    Get,
    Key,
    KvLimits,
    KvMachine,
    KvMisuse,
    KvRefused,
    KvWritten,
    NotYet,
    Put,
    ReadRange,
    RecordPage,
    Reply,
    Revision,
    RevisionIs,
    StoreId,
    Txn,
    TxnConflict,
    TxnDelete,
    TxnDeleteRange,
    TxnDone,
    TxnGet,
    TxnPut,
    ValueIs,
    decode_reply,
    encode_command,
    prefix_end,
)

A, B, C = Key(b"a"), Key(b"b"), Key(b"c")
SMALL = KvLimits(key_bytes_max=4, value_bytes_max=10, txn_operations_max=3, reply_bytes_max=25)


class Client:
    """Sends commands one after another, and reads the replies."""

    def __init__(self, limits: KvLimits | None = None) -> None:
        self.machine = KvMachine(StoreId(b"store-1"), limits)

    def __call__(self, command: Command) -> Reply:
        index = self.machine.applied_index + 1
        return decode_reply(self.machine.apply(index, encode_command(command)))

    def events(self, since: int, *, limit: int = 100) -> list[tuple[bytes, int, bool]]:
        answer = self.machine.events_since(Revision(since), limit=limit)
        assert isinstance(answer, Events)
        return [(each.key, each.mod_revision, each.is_delete) for each in answer.events]


LONG_KEY, LONG_VALUE = Key(b"12345"), b"x" * 11
REFUSED: dict[str, tuple[Command, KvRefused]] = {
    "get of no key": (Get(Key(b"")), KvRefused(ErrorCode.KEY_EMPTY)),
    "get of a long key": (Get(LONG_KEY), KvRefused(ErrorCode.KEY_TOO_LARGE, 5, 4)),
    "put of no key": (Put(Key(b""), b""), KvRefused(ErrorCode.KEY_EMPTY)),
    "put of a long key": (Put(LONG_KEY, b""), KvRefused(ErrorCode.KEY_TOO_LARGE, 5, 4)),
    "put of a long value": (Put(A, LONG_VALUE), KvRefused(ErrorCode.VALUE_TOO_LARGE, 11, 10)),
    "compare-and-set of a long value": (
        CasRevision(A, 0, LONG_VALUE),
        KvRefused(ErrorCode.VALUE_TOO_LARGE, 11, 10),
    ),
    "delete of a long key": (Delete(LONG_KEY), KvRefused(ErrorCode.KEY_TOO_LARGE, 5, 4)),
    "too many operations": (
        Txn([], [TxnGet(A)] * 4),
        KvRefused(ErrorCode.TOO_MANY_OPERATIONS, 4, 3),
    ),
    "too many comparisons": (
        Txn([RevisionIs(A, 0)] * 4, []),
        KvRefused(ErrorCode.TOO_MANY_OPERATIONS, 4, 3),
    ),
    "a long key in a comparison": (
        Txn([ValueIs(LONG_KEY, None)], []),
        KvRefused(ErrorCode.KEY_TOO_LARGE, 5, 4),
    ),
    "a long value after a good put": (
        Txn([], [TxnPut(A, b"good"), TxnPut(B, LONG_VALUE)]),
        KvRefused(ErrorCode.VALUE_TOO_LARGE, 11, 10),
    ),
    "a key put twice": (
        Txn([], [TxnPut(A, b"1"), TxnPut(A, b"2")]),
        KvRefused(ErrorCode.OVERLAPPING_OPERATIONS),
    ),
    "a key put and deleted": (
        Txn([], [TxnDelete(A), TxnPut(A, b"2")]),
        KvRefused(ErrorCode.OVERLAPPING_OPERATIONS),
    ),
    "a key put into a deleted range": (
        Txn([], [TxnPut(B, b"1"), TxnDeleteRange(b"a", b"c")]),
        KvRefused(ErrorCode.OVERLAPPING_OPERATIONS),
    ),
    "a client id without end": (
        Put(A, b"", client_id=ClientId(b"c" * 65), sequence=1),
        KvRefused(ErrorCode.CLIENT_ID_TOO_LARGE, 65, 64),
    ),
}


@pytest.mark.parametrize(("command", "refusal"), REFUSED.values(), ids=REFUSED.keys())
def test_what_is_refused_changes_nothing(command: Command, refusal: KvRefused) -> None:
    client = Client(SMALL)
    before = client.machine.digest()
    assert client(command) == refusal
    assert client.machine.digest() == before


def test_exactly_at_the_limits_is_allowed() -> None:
    client = Client(SMALL)
    assert client(Put(Key(b"1234"), b"x" * 10)) == KvWritten(Revision(1))
    assert client(Txn([], [TxnPut(A, b""), TxnPut(B, b""), TxnPut(C, b"")])) == TxnDone(
        Revision(2), [None, None, None]
    )


def test_an_index_is_applied_once() -> None:
    client = Client()
    client.machine.apply(5, encode_command(Put(A, b"")))
    for index in (5, 4, 0):
        with pytest.raises(KvMisuse):
            client.machine.apply(index, encode_command(Put(A, b"")))
    assert client.machine.revision == 1


def test_a_batch_is_the_same_as_its_commands_one_by_one() -> None:
    commands = [encode_command(each) for each in (Put(A, b"1"), Get(A), Delete(A))] + [b"?"]
    batched, single = Client().machine, Client().machine
    replies = batched.apply_batch(7, commands)
    assert replies == [single.apply(index, each) for index, each in enumerate(commands, start=1)]
    assert batched.digest() == single.digest()
    assert batched.applied_index == 7


def test_a_key_that_comes_back_starts_anew() -> None:
    client = Client()
    for command in (Put(A, b"1"), Put(A, b"2"), Delete(A), Put(A, b"3")):
        client(command)
    record = client.machine.get(A)
    assert record is not None
    assert (record.create_revision, record.mod_revision, record.version) == (4, 4, 1)


def test_what_changes_nothing_takes_no_revision() -> None:
    client = Client()
    client(Put(A, b"1"))
    assert client(Delete(B)) == Deleted(Revision(1), 0)
    assert client(DeleteRange(b"b", None)) == Deleted(Revision(1), 0)
    assert client(CasRevision(A, 9, b"2")) == Conflict(Revision(1), Revision(1))
    assert client(Txn([], [TxnGet(A), TxnDelete(B)])) == TxnDone(
        Revision(1), [client.machine.get(A), 0]
    )
    assert client(Expire(100, 10)) == Expired(Revision(1), 0, more=False)


def test_a_transaction_is_one_revision_or_nothing() -> None:
    client = Client()
    client(Put(A, b"1"))
    client(Put(Key(b"x/1"), b""))
    before = client.machine.get(A)
    done = client(
        Txn(
            [RevisionIs(A, 1), ValueIs(B, None)],
            [TxnGet(A), TxnPut(A, b"2"), TxnPut(B, b"3"), TxnDeleteRange(b"x/", b"x0")],
        )
    )
    assert done == TxnDone(Revision(3), [before, None, None, 1])
    assert client.events(2) == [(b"a", 3, False), (b"b", 3, False), (b"x/1", 3, True)]
    refused = Txn([ValueIs(A, b"2"), RevisionIs(B, 1)], [TxnDelete(A)])
    assert client(refused) == TxnConflict(Revision(3), 1, Revision(3))
    assert client.machine.get(A) is not None


def test_the_reads_of_a_transaction_are_bounded_before_it_writes() -> None:
    client = Client(SMALL)
    for key in (A, B, C):
        client(Put(key, b"x" * 10))
    digest = client.machine.digest()
    reply = client(Txn([], [TxnGet(A), TxnGet(B), TxnGet(C)]))
    assert reply == KvRefused(ErrorCode.REPLY_TOO_LARGE, 33, 25)
    reply = client(Txn([], [TxnGet(A), TxnGet(B), TxnPut(C, b"")]))
    assert isinstance(reply, TxnDone)
    assert client.machine.digest() != digest


def test_a_page_ends_at_its_count_or_its_bytes_and_says_so() -> None:
    client = Client(SMALL)
    for key in (A, B, C):
        client(Put(key, b"x" * 10))
    for limit, expected, more in ((0, [], True), (1, [A], True), (3, [A, B], True)):
        page = client(ReadRange(b"", None, limit))
        assert isinstance(page, RecordPage)
        assert ([each.key for each in page.records], page.more) == (expected, more)
    page = client(ReadRange(b"b", prefix_end(b"c"), 9))
    assert isinstance(page, RecordPage)
    assert ([each.key for each in page.records], page.more) == ([B, C], False)


# --- time -----------------------------------------------------------------------------------


def test_a_key_lives_until_a_command_says_that_its_time_has_come() -> None:
    client = Client()
    client(Put(A, b"", ttl_ms=10, now_ms=100))
    client(Put(B, b"", now_ms=10_000))  # Time passes, and nobody has said Expire.
    assert client.machine.get(A) is not None
    assert client.machine.next_expiry_ms() == 110
    assert client(Expire(10_000, 10)) == Expired(Revision(3), 1, more=False)
    assert client.events(2) == [(b"a", 3, True)]
    assert client.machine.next_expiry_ms() is None


@pytest.mark.parametrize(("now_ms", "count"), [(109, 0), (110, 1), (111, 1)])
def test_a_key_expires_exactly_at_its_time(now_ms: int, count: int) -> None:
    client = Client()
    client(Put(A, b"", ttl_ms=10, now_ms=100))
    assert client(Expire(now_ms, 10)) == Expired(Revision(1 + count), count, more=False)


def test_a_later_put_extends_or_ends_the_lease() -> None:
    client = Client()
    for key in (A, B):
        client(Put(key, b"", ttl_ms=10, now_ms=100))
    client(Put(A, b"", ttl_ms=50, now_ms=105))
    client(Put(B, b"", now_ms=105))
    assert client(Expire(120, 10)) == Expired(Revision(4), 0, more=False)
    assert client(Expire(155, 10)) == Expired(Revision(5), 1, more=False)
    assert client.machine.get(B) is not None


def test_a_leader_with_a_slow_clock_does_not_turn_time_back() -> None:
    client = Client()
    client(Put(A, b"", ttl_ms=10, now_ms=100))
    client(Put(B, b"", ttl_ms=10, now_ms=50))
    assert client.machine.next_expiry_ms() == 110
    assert client(Expire(60, 10)) == Expired(Revision(2), 0, more=False)


def test_expiry_is_taken_in_bites_earliest_first() -> None:
    client = Client()
    for ttl_ms, key in ((30, A), (10, B), (20, C)):
        client(Put(key, b"", ttl_ms=ttl_ms, now_ms=100))
    assert client(Expire(200, 2)) == Expired(Revision(4), 2, more=True)
    assert client.events(3) == [(b"b", 4, True), (b"c", 4, True)]
    assert client(Expire(200, 2)) == Expired(Revision(5), 1, more=False)


def test_renewed_leases_do_not_pile_up() -> None:
    client = Client(KvLimits(events_max=10))
    for now_ms in range(2_000):
        client(Put(A, b"", ttl_ms=10, now_ms=now_ms))
    assert len(client.machine._store._expiry._heap) < 100


# --- repeats --------------------------------------------------------------------------------


def _request(client_id: bytes, sequence: int, value: bytes = b"") -> Put:
    return Put(A, value, client_id=ClientId(client_id), sequence=sequence)


def test_a_repeated_request_is_answered_and_not_redone() -> None:
    client = Client()
    first = client(_request(b"one", 1))
    client(Put(A, b"in between"))
    assert client(_request(b"one", 1)) == first == KvWritten(Revision(1))
    assert client.machine.revision == 2
    assert client(_request(b"one", 5)) == KvWritten(Revision(3))
    assert client(_request(b"one", 4)) == KvRefused(ErrorCode.SEQUENCE_TOO_OLD, 4, 5)


def test_a_refusal_is_repeated_too() -> None:
    client = Client()
    create = CasRevision(A, 0, b"", client_id=ClientId(b"one"), sequence=1)
    client(Put(A, b""))
    assert client(create) == Conflict(Revision(1), Revision(1))
    client(Delete(A))
    assert client(create) == Conflict(Revision(1), Revision(1))


def test_a_forgotten_client_is_refused_rather_than_served_twice() -> None:
    client = Client(KvLimits(clients_max=2))
    client(_request(b"one", 1))
    client(_request(b"one", 2))
    client(_request(b"two", 1))
    client(_request(b"three", 1))
    revision = client.machine.revision
    assert client(_request(b"one", 2)) == KvRefused(ErrorCode.CLIENT_UNKNOWN, 2, 1)
    assert client(_request(b"two", 1)) == KvWritten(Revision(3))
    assert client.machine.revision == revision


def test_the_replies_that_are_kept_are_bounded_in_bytes() -> None:
    client = Client(KvLimits(client_replies_bytes_max=100))
    client(Put(B, b"x" * 60))
    for name in (b"one", b"two"):
        client(Txn([], [TxnGet(B)], client_id=ClientId(name), sequence=1))
    read = Txn([], [TxnGet(B)], client_id=ClientId(b"one"), sequence=2)
    assert client(read) == KvRefused(ErrorCode.CLIENT_UNKNOWN, 2, 1)


# --- the past -------------------------------------------------------------------------------


def test_a_watch_from_before_the_compaction_is_told_where_to_begin() -> None:
    client = Client(KvLimits(events_max=8))
    for number in range(1, 10):
        client(Put(A, b"%d" % number))
    # Past 8 events the history goes back to three quarters of that.
    assert client.machine.compacted_revision == 3
    answer = client.machine.events_since(Revision(2), limit=100)
    assert answer == EventsCompacted(oldest_available=Revision(3), revision=Revision(9))
    assert client.events(3) == [(b"a", number, False) for number in range(4, 10)]


def test_the_bytes_of_the_past_are_bounded() -> None:
    client = Client(KvLimits(events_bytes_max=10_000))
    for _ in range(50):
        client(Put(A, b"x" * 1_000))
    kept = client.events(client.machine.compacted_revision)
    assert 5 <= len(kept) <= 9


def test_a_revision_is_never_torn_by_a_limit_or_a_compaction() -> None:
    client = Client(KvLimits(events_max=4))
    client(Put(A, b""))
    client(Txn([], [TxnPut(Key(b"%d" % number), b"") for number in range(5)]))
    assert client.machine.compacted_revision == 2
    assert client.machine.events_since(Revision(2), limit=1) == Events([], Revision(2), more=False)
    client(Txn([], [TxnDelete(Key(b"%d" % number)) for number in range(3)]))
    assert len(client.events(2, limit=1)) == 3


def test_a_page_of_events_ends_by_bytes_too() -> None:
    client = Client(SMALL)
    for key in (A, B, C):
        client(Put(key, b"x" * 10))
    client(Put(A, b""))
    answer = client.machine.events_since(Revision(0), limit=100)
    assert isinstance(answer, Events)
    assert ([each.key for each in answer.events], answer.through, answer.more) == (
        [A, B, C],
        3,
        True,
    )


def test_a_watch_of_one_prefix_moves_on_past_what_it_did_not_want() -> None:
    client = Client()
    for key in (A, B, A):
        client(Put(key, b""))
    answer = client.machine.events_since(Revision(0), [b"b", b"c"], limit=10)
    assert isinstance(answer, Events)
    assert [each.key for each in answer.events] == [B]
    assert answer.through == 3


def test_a_replica_that_is_behind_says_so() -> None:
    client = Client()
    assert client.machine.events_since(Revision(1), limit=1) == NotYet(Revision(0))
