"""The bytes of commands and replies: fixed vectors, round trips, and any bytes at all."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from clustor.kv import (
    CasRevision,
    CasValue,
    ClientId,
    Command,
    Compact,
    CompactedTo,
    Conflict,
    Delete,
    Deleted,
    DeleteRange,
    ErrorCode,
    Expire,
    Expired,
    Found,
    Get,
    Key,
    KvMachine,
    KvRecord,
    KvRefused,
    KvWritten,
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
    decode_command,
    decode_reply,
    encode_command,
    encode_reply,
    prefix_end,
)
from tests.clustor.kv.commands_drawn import commands

RECORD = KvRecord(Key(b"k"), b"v", Revision(1), Revision(2), 2, 0)

# These bytes are in logs on disk: a change here is a change of format.
COMMANDS: dict[str, tuple[Command, str]] = {
    "get": (Get(Key(b"k")), "9200c4016b"),
    "range": (ReadRange(b"a", None, 10), "9401c40161c00a"),
    "put": (Put(Key(b"k"), b"v"), "9702c4016bc401760000c40000"),
    "put with all": (
        Put(Key(b"k"), b"v", 5000, 1_700_000_000_000, ClientId(b"c"), 7),
        "9702c4016bc40176cd1388cf0000018bcfe56800c4016307",
    ),
    "compare-and-set by revision": (
        CasRevision(Key(b"k"), 300, b"v"),
        "9803c4016bcd012cc401760000c40000",
    ),
    "compare-and-set by value": (CasValue(Key(b"k"), None, b"v"), "9804c4016bc0c401760000c40000"),
    "delete": (Delete(Key(b"k")), "9505c4016b00c40000"),
    "delete range": (DeleteRange(b"a", b"b"), "9606c40161c4016200c40000"),
    "transaction": (
        Txn(
            [RevisionIs(Key(b"k"), 1), ValueIs(Key(b"j"), None)],
            [
                TxnGet(Key(b"k")),
                TxnPut(Key(b"k"), b"v"),
                TxnDelete(Key(b"j")),
                TxnDeleteRange(b"x", None),
            ],
        ),
        "9607929300c4016b019301c4016ac0949200c4016b9401c4016bc40176009202c4016a9303c40178c000c40000",
    ),
    "compact": (Compact(9), "95080900c40000"),
    "expire": (Expire(1000, 100), "9509cd03e864c40000"),
}

REPLIES: dict[str, tuple[Reply, str]] = {
    "refused": (KvRefused(ErrorCode.KEY_TOO_LARGE, 1025, 1024), "940003cd0401cd0400"),
    "found": (Found(Revision(2), RECORD), "93010296c4016bc4017601020200"),
    "found nothing": (Found(Revision(2), None), "930102c0"),
    "page": (RecordPage(Revision(2), [RECORD], more=True), "9402029196c4016bc4017601020200c3"),
    "written": (KvWritten(Revision(2)), "920302"),
    "conflict": (Conflict(Revision(2), Revision(1)), "93040201"),
    "deleted": (Deleted(Revision(2), 3), "93050203"),
    "transaction done": (
        TxnDone(Revision(2), [RECORD, None, 1]),
        "9306029396c4016bc4017601020200c001",
    ),
    "transaction conflict": (TxnConflict(Revision(2), 0, Revision(1)), "9407020001"),
    "compacted": (CompactedTo(Revision(9), Revision(4)), "93080904"),
    "expired": (Expired(Revision(2), 3, more=False), "94090203c2"),
}

MALFORMED = KvRefused(ErrorCode.MALFORMED)


@pytest.mark.parametrize(("command", "wire"), COMMANDS.values(), ids=COMMANDS.keys())
def test_a_command_and_its_bytes_agree(command: Command, wire: str) -> None:
    assert encode_command(command).hex() == wire
    assert decode_command(bytes.fromhex(wire)) == command


@pytest.mark.parametrize(("reply", "wire"), REPLIES.values(), ids=REPLIES.keys())
def test_a_reply_and_its_bytes_agree(reply: Reply, wire: str) -> None:
    assert encode_reply(reply).hex() == wire
    assert decode_reply(bytes.fromhex(wire)) == reply


@pytest.mark.parametrize(("command", "wire"), COMMANDS.values(), ids=COMMANDS.keys())
def test_a_command_cut_short_or_too_long_is_no_command(command: Command, wire: str) -> None:
    whole = bytes.fromhex(wire)
    for cut in range(len(whole)):
        with pytest.raises(msgspec.DecodeError):
            decode_command(whole[:cut])
    with pytest.raises(msgspec.DecodeError):
        decode_command(whole + b"\xc0")


def test_trailing_fields_that_have_a_default_may_be_left_out() -> None:
    assert decode_command(msgspec.msgpack.encode([2, b"k", b"v"])) == Put(Key(b"k"), b"v")


@given(commands())
def test_every_command_survives_the_round_trip(command: Command) -> None:
    assert decode_command(encode_command(command)) == command


BAD_COMMANDS = {
    "nothing": b"",
    "no array": msgspec.msgpack.encode(7),
    "unknown kind": msgspec.msgpack.encode([99, b"k"]),
    "no kind": msgspec.msgpack.encode([]),
    "one field too many": msgspec.msgpack.encode([0, b"k", b"more"]),
    "one field too few": msgspec.msgpack.encode([2, b"k"]),
    "text for bytes": msgspec.msgpack.encode([0, 1.5]),
    "negative stamp": msgspec.msgpack.encode([2, b"k", b"v", 0, -1]),
    "stamp beyond the bound": msgspec.msgpack.encode([2, b"k", b"v", 0, 2**53 + 1]),
    "deep nesting": b"\x91" * 100_000,
    "deep nesting in a field": b"\x92\x00" + b"\x91" * 100_000 + b"\xc0",
    "a length beyond the end": b"\xdd\xff\xff\xff\xff",
}


@pytest.mark.parametrize("wire", BAD_COMMANDS.values(), ids=BAD_COMMANDS.keys())
def test_bytes_that_are_no_command_are_refused_and_change_nothing(wire: bytes) -> None:
    machine = KvMachine(StoreId(b"s"))
    before = machine.digest()
    assert decode_reply(machine.apply(1, wire)) == MALFORMED
    assert machine.digest() == before


@settings(max_examples=500)
@given(st.binary(max_size=64) | st.builds(lambda tail: b"\x97\x02" + tail, st.binary(max_size=40)))
@example(b"\x92\x00\xc4\x00")
def test_any_bytes_get_the_same_reply_on_every_replica(wire: bytes) -> None:
    one, other = KvMachine(StoreId(b"s")), KvMachine(StoreId(b"s"))
    reply = one.apply(1, wire)
    assert reply == other.apply(1, wire)
    assert one.digest() == other.digest()
    decode_reply(reply)


@pytest.mark.parametrize(
    ("prefix", "end"),
    [(b"a", b"b"), (b"a/", b"a0"), (b"a\xff", b"b"), (b"\xff\xff", None), (b"", None)],
)
def test_the_end_of_a_prefix(prefix: bytes, end: bytes | None) -> None:
    assert prefix_end(prefix) == end


@given(st.binary(max_size=4), st.binary(max_size=6))
def test_a_key_is_in_the_range_of_a_prefix_exactly_if_it_starts_with_it(
    prefix: bytes, key: bytes
) -> None:
    end = prefix_end(prefix)
    assert (prefix <= key and (end is None or key < end)) == key.startswith(prefix)
