"""Hostile input to every decoder: a typed error in bounded time, or an honest answer."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.clustor.log.fuzz import DECODERS, draw_input, survives


@pytest.mark.parametrize("name", DECODERS)
def test_valid_bytes_are_accepted(name: str) -> None:
    decoder = DECODERS[name]
    assert all(survives(decoder, data) for data in decoder.valid)
    assert all(survives(decoder, decoder.mend(data)) for data in decoder.valid)


@pytest.mark.parametrize("name", DECODERS)
def test_spoilt_bytes_get_a_typed_error(name: str) -> None:
    rng = Random(name)
    for _ in range(2_000):
        survives(DECODERS[name], draw_input(rng, DECODERS[name]))


@pytest.mark.parametrize("name", DECODERS)
@given(data=st.binary(max_size=300))
@settings(max_examples=50)
def test_arbitrary_bytes_get_a_typed_error(name: str, data: bytes) -> None:
    survives(DECODERS[name], data)
    survives(DECODERS[name], DECODERS[name].mend(data))


FUZZ_TOTAL = 1_300_000


@pytest.mark.soak
@pytest.mark.parametrize("name", DECODERS)
def test_a_million_spoilt_inputs(name: str) -> None:
    rng = Random(f"soak {name}")
    inputs = FUZZ_TOTAL // len(DECODERS) + 1
    accepted = sum(survives(DECODERS[name], draw_input(rng, DECODERS[name])) for _ in range(inputs))
    print(f"{name}: {inputs} of {FUZZ_TOTAL} inputs, {accepted} accepted")
