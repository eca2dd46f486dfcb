"""Tokens: one node, one role, one key, one time. Every rule, and every order of events."""

from __future__ import annotations

import random

import msgspec
import pytest

from clustor.security import (
    EnrolmentRefusal,
    EnrolmentRefused,
    EnrolmentRequest,
    NodeRole,
    RegistryUnreadable,
    SecurityMisuse,
    TokenBook,
    decode_book,
    digest_of_token,
    encode_book,
    issue_token,
    redeem,
    withdraw_tokens,
)
from clustor.security.enrolment import KEPT_MS, TTL_MS_MAX

TOKEN = digest_of_token("secret")
KEY, OTHER_KEY = "a" * 64, "b" * 64


def book(ttl_ms: int = 600_000, now_ms: int = 1_000, digest: str = TOKEN) -> TokenBook:
    return issue_token(
        TokenBook(),
        digest=digest,
        node_id=4,
        role=NodeRole.VOTER,
        ttl_ms=ttl_ms,
        issued_by="operator",
        now_ms=now_ms,
    )


def request(**changes: object) -> EnrolmentRequest:
    values: dict[str, object] = {
        "token_digest": TOKEN,
        "node_id": 4,
        "role": "voter",
        "key_digest": KEY,
    }
    return EnrolmentRequest(**(values | changes))  # type: ignore[arg-type]  # a test's changes


def refusal(held: TokenBook, asked: EnrolmentRequest, now_ms: int) -> str:
    with pytest.raises(EnrolmentRefused) as caught:
        redeem(held, asked, now_ms)
    return caught.value.code


def test_a_token_lets_its_node_in_once() -> None:
    used, grant = redeem(book(), request(), 2_000)
    assert (grant.node_id, grant.role, grant.repeated) == (4, NodeRole.VOTER, False)
    assert refusal(used, request(key_digest=OTHER_KEY), 2_001) == "TokenUsed"


def test_the_same_key_may_ask_again_while_the_token_lasts() -> None:
    used, _ = redeem(book(), request(), 2_000)
    again, grant = redeem(used, request(), 3_000)
    assert grant.repeated and again is used
    assert refusal(used, request(), 601_000) == "TokenExpired"


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"token_digest": digest_of_token("guess")}, EnrolmentRefusal.UNKNOWN),
        ({"node_id": 5}, EnrolmentRefusal.OTHER_NODE),
        ({"role": "observer"}, EnrolmentRefusal.OTHER_ROLE),
        ({"role": "root"}, EnrolmentRefusal.OTHER_ROLE),
    ],
)
def test_a_wrong_request_is_refused_and_burns_nothing(
    changes: dict[str, object], code: EnrolmentRefusal
) -> None:
    held = book()
    assert refusal(held, request(**changes), 2_000) == code
    assert redeem(held, request(), 2_000)[1].node_id == 4


def test_time_ends_a_token_to_the_millisecond() -> None:
    held = book(ttl_ms=10, now_ms=0)
    redeem(held, request(), 9)
    assert refusal(held, request(), 10) == "TokenExpired"


def test_a_withdrawn_token_is_refused() -> None:
    held = withdraw_tokens(book(), 4, 1_500)
    assert refusal(held, request(), 2_000) == "TokenWithdrawn"
    assert withdraw_tokens(book(), 5, 1_500) == book()


@pytest.mark.parametrize("ttl_ms", [0, -1, TTL_MS_MAX + 1])
def test_a_token_lasts_a_day_at_most(ttl_ms: int) -> None:
    with pytest.raises(SecurityMisuse):
        book(ttl_ms=ttl_ms)


def test_the_same_token_is_not_entered_twice() -> None:
    with pytest.raises(SecurityMisuse):
        issue_token(
            book(), digest=TOKEN, node_id=9, role=NodeRole.VOTER, ttl_ms=1, issued_by="", now_ms=2
        )  # fmt: skip


def test_the_book_forgets_what_ended_long_ago_and_nothing_else() -> None:
    held = book(ttl_ms=10, now_ms=0)
    for now_ms, expected in ((10 + KEPT_MS - 1, 2), (10 + KEPT_MS, 1)):
        later = issue_token(
            held, digest=digest_of_token("two"), node_id=1, role=NodeRole.OBSERVER, ttl_ms=1,
            issued_by="", now_ms=now_ms,
        )  # fmt: skip
        assert len(later.tokens) == expected


def test_a_book_can_be_read_back_and_never_holds_a_token() -> None:
    held = redeem(book(), request(), 2_000)[0]
    assert decode_book(encode_book(held)) == held
    assert b"secret" not in encode_book(held)
    for broken in (b"", b"{}x", b'{"tokens":[1]}', b"\xff", encode_book(held)[:-9]):
        with pytest.raises(RegistryUnreadable):
            decode_book(broken)
    later = msgspec.structs.replace(held, format_version=2)
    with pytest.raises(RegistryUnreadable):
        decode_book(encode_book(later))


@pytest.mark.parametrize("seed", range(60))
def test_however_they_race_one_token_serves_one_key(seed: int) -> None:
    rng = random.Random(seed)
    held, now_ms, served = book(ttl_ms=5_000, now_ms=0), 0, set()
    for _ in range(40):
        now_ms += rng.randrange(300)
        key = rng.choice([KEY, OTHER_KEY, "c" * 64])
        asked = request(key_digest=key, node_id=rng.choice([4, 4, 5]))
        try:
            held, grant = redeem(held, asked, now_ms)
        except EnrolmentRefused:
            continue
        assert grant.node_id == 4 and now_ms < 5_000
        served.add(key)
        held = decode_book(encode_book(held))
    assert len(served) <= 1, seed
