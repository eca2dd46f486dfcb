"""Commands drawn from few keys and small numbers, so that they meet each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from clustor.kv import (
    CasRevision,
    CasValue,
    ClientId,
    Command,
    Compact,
    Delete,
    DeleteRange,
    Expire,
    Get,
    Key,
    Put,
    ReadRange,
    RevisionIs,
    Txn,
    TxnDelete,
    TxnDeleteRange,
    TxnGet,
    TxnPut,
    ValueIs,
)

keys = st.sampled_from([Key(each) for each in (b"a", b"a/1", b"a/2", b"b", b"b\xff", b"\xff")])
bounds = st.sampled_from([b"", b"a", b"a/", b"a0", b"b", b"c", b"\xff\xff"])
ends = st.none() | bounds
values = st.sampled_from([b"", b"x", b"y", b"z" * 40])
revisions = st.integers(0, 12)
ttls = st.sampled_from([0, 0, 5, 20])
times = st.integers(0, 60)
# No id, or one of three clients with a sequence that may repeat, skip or go back.
clients = st.sampled_from([ClientId(b"one"), ClientId(b"two"), ClientId(b"three")])
requests = st.just((ClientId(b""), 0)) | st.tuples(clients, st.integers(1, 4))

comparisons = st.builds(RevisionIs, keys, revisions) | st.builds(ValueIs, keys, st.none() | values)
operations = st.one_of(
    st.builds(TxnGet, keys),
    st.builds(TxnPut, keys, values, ttls),
    st.builds(TxnDelete, keys),
    st.builds(TxnDeleteRange, bounds, ends),
)


def _stamped(kind: Callable[..., Command], *fields: SearchStrategy[Any]) -> SearchStrategy[Command]:
    return st.builds(
        lambda now_ms, request, *values: kind(*values, now_ms, *request), times, requests, *fields
    )


_puts = _stamped(Put, keys, values, ttls)


def commands() -> SearchStrategy[Command]:
    return st.one_of(
        # Puts come most often, or there is never anything to act upon.
        _puts,
        _puts,
        _puts,
        st.builds(Get, keys),
        st.builds(ReadRange, bounds, ends, st.integers(0, 6)),
        _stamped(CasRevision, keys, revisions, values, ttls),
        _stamped(CasValue, keys, st.none() | values, values, ttls),
        _stamped(Delete, keys),
        _stamped(DeleteRange, bounds, ends),
        _stamped(Txn, st.lists(comparisons, max_size=2), st.lists(operations, max_size=4)),
        _stamped(Compact, revisions),
        st.builds(
            lambda now_ms, limit, request: Expire(now_ms, limit, *request),
            times,
            st.integers(0, 3),
            requests,
        ),
    )
