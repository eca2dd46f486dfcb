"""Offsets are equal bytes when they are equal, and nothing else is taken for one."""

from __future__ import annotations

import pickle

import pytest

from quantum.archive.types import PrgId
from quantum.lake.offsets import Offsets
from quantum.lake.refusals import BadOption

A, B, C = PrgId("dev", 2), PrgId("dev", 10), PrgId("acme", 0)


def test_the_text_is_stable() -> None:
    assert Offsets({B: 4, A: 1, C: 7}).to_json() == '{"acme/0":7,"dev/2":1,"dev/10":4}'
    assert Offsets.from_json('{"dev/10":4,"dev/2":1,"acme/0":7}') == Offsets({C: 7, A: 1, B: 4})
    assert hash(Offsets({A: 1, B: 2})) == hash(Offsets({B: 2, A: 1}))


def test_what_is_not_named_was_not_read() -> None:
    offsets = Offsets({A: 3})
    assert offsets[B] == 0
    assert offsets.moved({B: 2}) == Offsets({A: 3, B: 2})
    assert offsets == Offsets({A: 3}), "moved is another"


def test_they_travel() -> None:
    offsets = Offsets({A: 3, C: 1})
    assert pickle.loads(pickle.dumps(offsets)) == offsets
    assert Offsets.from_document(offsets.to_document()) == offsets


@pytest.mark.parametrize(
    "text",
    ["", "[]", "3", '{"dev":1}', '{"dev/x":1}', '{"dev/1":-1}', '{"dev/1":"2"}', '{"dev/1":true}',
     '{"dev/01":1}', '{"/1":1}', '{"dev/1":1.5}'],
)  # fmt: skip
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(BadOption):
        Offsets.from_json(text)


def test_no_index_is_below_zero() -> None:
    with pytest.raises(BadOption):
        Offsets({A: -1})
