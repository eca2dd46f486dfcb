"""Pages of the feed: only for the keys' owner, only what was asked, only now."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clustor.log.errors import AuthenticationFailed, KeyUnavailable
from clustor.log.types import PartitionId
from quantum.archive.feed_page import (
    PROOF_AGE_MS_MAX,
    FeedRequest,
    PageHead,
    decode_page,
    encode_page,
    is_proven,
    prove,
)
from tests.quantum.lake.archive.boxes import entries
from tests.quantum.lake.archive.test_records import ring

PARTITION = PartitionId(1000)
NOW = 1_700_000_000_000
REQUEST = FeedRequest("dev", 0, 7, 1000, NOW)
HEAD = PageHead("dev/0", 7, 3, 1, 9, 1, "00" * 12)


def test_a_proof_is_for_one_question_one_key_and_five_minutes() -> None:
    proof = prove(REQUEST, ring(), PARTITION)
    assert is_proven(REQUEST, proof, ring(), PARTITION, NOW + PROOF_AGE_MS_MAX)
    assert not is_proven(REQUEST, proof, ring(), PARTITION, NOW + PROOF_AGE_MS_MAX + 1)
    assert not is_proven(REQUEST, proof, ring(), PARTITION, NOW - PROOF_AGE_MS_MAX - 1)
    assert not is_proven(REQUEST, proof, ring(2), PARTITION, NOW)
    assert not is_proven(REQUEST, proof, ring(), PartitionId(1001), NOW)
    for other in (
        replace(REQUEST, tenant="acme"),
        replace(REQUEST, prg=1),
        replace(REQUEST, first=8),
        replace(REQUEST, bytes_max=1001),
        replace(REQUEST, at_ms=NOW + 1),
    ):
        assert not is_proven(other, proof, ring(), PARTITION, NOW)
    for bad in ("", ".", "1.", "2." + proof[2:], proof[:-1] + "g", "1.\xe9", "9" * 30 + ".00"):
        assert not is_proven(REQUEST, bad, ring(), PARTITION, NOW)


def test_a_page_comes_back_whole_or_not_at_all() -> None:
    sent = entries(7, 9)
    page = encode_page(sent, HEAD, ring(), PARTITION)
    assert decode_page(page, ring(), PARTITION) == (HEAD, sent)
    assert sent[0].payload not in page
    for at in range(len(page)):
        with pytest.raises((AuthenticationFailed, KeyUnavailable)):
            decode_page(page[:at] + bytes([page[at] ^ 1]) + page[at + 1 :], ring(), PARTITION)
    for cut in (0, 3, 10, len(page) - 1):
        with pytest.raises(AuthenticationFailed):
            decode_page(page[:cut], ring(), PARTITION)
    with pytest.raises(AuthenticationFailed):
        decode_page(page, ring(2), PARTITION)
