"""Where buckets lie in the store, and what its records mean to a watch."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clustor.kv import Key, KvRecord, Revision, prefix_end
from clustor.runtime.peers.transport import Address
from slipstream.backends import open_connection
from slipstream.clustor.connection import ClustorConnection, ClustorConnectionConfig
from slipstream.clustor.layout import BucketLayout, encode_bucket, read_bucket, witness
from slipstream.errors import InvalidKey, Misuse, StoreFailure
from slipstream.types import KvUpdate, StorageType, StoreConfig, WatchScope

names = st.text("ab-_0", min_size=1, max_size=4)
tokens = st.text(st.characters(exclude_characters=" \t\r\n\0*>.", exclude_categories=["Cs"]))
keys = st.lists(tokens.filter(bool), min_size=1, max_size=3).map(".".join)


def record(key: bytes, revision: int, value: bytes = b"v", *, born: int | None = None) -> KvRecord:
    version = 1 if value else 0
    created = Revision(revision if born is None else born)
    return KvRecord(Key(key), value, created, Revision(revision), version, 0)


@given(names, names, keys, keys)
def test_no_bucket_covers_a_key_of_another(one: str, other: str, a: str, b: str) -> None:
    first, second = BucketLayout(one), BucketLayout(other)
    places = {first.record, second.record, first.key(a), second.key(b)}
    assert len(places) == 4 - 2 * (one == other) + (one == other and a != b)
    assert second.key(b).startswith(first.prefix("")) == (one == other)
    assert not second.key(b).startswith(first.record)
    assert second.record.startswith(first.record) == (one == other)


@given(keys, keys)
def test_keys_lie_in_the_order_of_their_bytes(a: str, b: str) -> None:
    layout = BucketLayout("routes")
    assert (layout.key(a) < layout.key(b)) == (a.encode() < b.encode())
    end = prefix_end(layout.prefix(""))
    assert end is not None
    assert layout.prefix("") < layout.key(a) < end


@pytest.mark.parametrize("name", ["", "a/b", "a.b", "a b", "é"])
def test_a_bucket_name_is_plain(name: str) -> None:
    with pytest.raises(InvalidKey):
        BucketLayout(name)


def test_a_key_that_is_no_text_is_refused() -> None:
    with pytest.raises(InvalidKey):
        BucketLayout("routes").key("\ud800")


def test_a_scope_is_prefixes_that_do_not_overlap() -> None:
    layout = BucketLayout("b")
    wanted = [layout.prefix("a."), layout.prefix("c")]
    assert layout.prefixes(WatchScope.of_prefixes("c", "a.", "a.b.", "cd", "a.")) == wanted
    assert layout.prefixes(WatchScope.of_prefixes("", "a.")) == [layout.prefix("")]


def test_a_bucket_keeps_its_settings_and_every_life_has_its_own_identity() -> None:
    config = StoreConfig(None, 5, 3, 1.5, StorageType.MEMORY, per_key_ttl=True)
    first = read_bucket(record(b"b", 7, encode_bucket(b"m" * 16, config)), 9)
    assert (first.config, first.born, first.revision) == (config, 7, 9)
    again = read_bucket(record(b"b", 7, encode_bucket(b"m" * 16, config)), 12)
    elsewhere = read_bucket(record(b"b", 7, encode_bucket(b"n" * 16, config)), 9)
    later = read_bucket(record(b"b", 8, encode_bucket(b"m" * 16, config)), 9)
    assert first.identity == again.identity
    assert len({first.identity, elsewhere.identity, later.identity}) == 3
    assert len(first.identity) == 8


@pytest.mark.parametrize("value", [b"", b"nonsense", encode_bucket(b"m", StoreConfig())[:-1]])
def test_a_record_that_is_no_bucket_is_refused(value: bytes) -> None:
    with pytest.raises(StoreFailure):
        read_bucket(record(b"b", 1, value), 1)


def test_only_the_last_event_of_a_revision_moves_a_cursor() -> None:
    """A cursor in the middle of a revision would lose the rest of it at the next start."""
    layout = BucketLayout("b")
    places = [(layout.key(key), revision) for key, revision in [("a", 3), ("b", 4), ("c", 4)]]
    updates = layout.updates([record(place, revision, b"") for place, revision in places])
    told = [(each.key, each.version.as_u64()) for each in updates if isinstance(each, KvUpdate)]
    assert told == [("a", 3), ("b", None), ("c", 4)]


def test_a_witness_tells_what_a_revision_did() -> None:
    seen = {
        witness(record(b"k", 4)),
        witness(record(b"k", 4, b"w")),
        witness(record(b"k", 4, born=3)),
        witness(record(b"j", 4)),
        witness(record(b"k", 5)),
    }
    assert len(seen) == 5
    assert all(0 < each < 1 << 63 for each in seen)


def test_a_url_names_nodes() -> None:
    config = ClustorConnectionConfig.from_url("clustor://127.0.0.1:7011,[::1]:7021")
    assert config.addresses == (Address("127.0.0.1", 7011), Address("::1", 7021))
    assert isinstance(open_connection("clustor://localhost:1"), ClustorConnection)


@pytest.mark.parametrize("rest", ["", "host", "host:", ":1", "host:x", "h:1,", "h:0", "h:65536"])
def test_a_url_without_a_port_is_refused(rest: str) -> None:
    with pytest.raises(Misuse):
        open_connection(f"clustor://{rest}")
