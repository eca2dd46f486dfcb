"""Whatever is done to a line of an audit log, at every line: it is found, and named."""

from __future__ import annotations

import json
import pickle
import random

import msgspec
import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from clustor.security import (
    BATCH_EVENTS_MAX,
    NOTHING,
    AuditEvent,
    BatchVerdict,
    ChainFaultKind,
    ChainVerdict,
    EventLine,
    SealLine,
    TrustedKey,
    decode_line,
    digest_of,
    encode_line,
    join_batches,
    key_id_of,
    split_batches,
    trust,
    verify_batch,
    verify_lines,
)
from tests.clustor.security.audit_logs import (
    KEY,
    KEY_ID,
    OTHER_KEY,
    TRUSTED,
    event,
    new_chain,
    small_log,
)

LINES, ANCHOR = small_log()
EVERY_LINE = range(len(LINES))


def verdict_of(lines: list[bytes]) -> ChainVerdict:
    return verify_lines(lines, TRUSTED, anchor=ANCHOR)


def found(verdict: ChainVerdict) -> tuple[ChainFaultKind, int]:
    assert verdict.fault is not None
    return verdict.fault.kind, verdict.fault.line


def test_an_untouched_log_is_intact() -> None:
    verdict = verdict_of(LINES)
    assert verdict.is_intact
    assert (verdict.lines, verdict.events, verdict.batches) == (16, 12, 3)
    assert verdict.head == verdict.sealed_head == digest_of(LINES[-1])
    assert verdict.unsigned_lines == 0


@pytest.mark.parametrize("at", EVERY_LINE)
def test_a_changed_member_is_found_at_its_line(at: int) -> None:
    members = json.loads(LINES[at])
    for name, value in members.items():
        if isinstance(value, str) and name != "kind":
            changed = {**members, name: value[:-1] + ("0" if value[-1:] != "0" else "1")}
        elif isinstance(value, int):
            changed = {**members, name: value + 1}
        else:
            continue
        lines = [*LINES[:at], rfc8785.dumps(changed), *LINES[at + 1 :]]
        kind, line = found(verdict_of(lines))
        expected = ChainFaultKind.WRONG_KEY if name == "key_id" else ChainFaultKind.ALTERED
        assert (kind, line) == (expected, at + 1), name


@pytest.mark.parametrize("at", EVERY_LINE)
def test_every_flipped_bit_is_found(at: int) -> None:
    rng = random.Random(at)
    for _ in range(60):
        position, bit = rng.randrange(len(LINES[at])), rng.randrange(8)
        changed = bytearray(LINES[at])
        changed[position] ^= 1 << bit
        lines = [*LINES[:at], bytes(changed), *LINES[at + 1 :]]
        assert not verdict_of(lines).is_intact, (at, position, bit)


@pytest.mark.parametrize("at", EVERY_LINE)
def test_a_missing_line_is_found(at: int) -> None:
    kind, line = found(verdict_of([*LINES[:at], *LINES[at + 1 :]]))
    expected = ChainFaultKind.TRUNCATED if at == len(LINES) - 1 else ChainFaultKind.DROPPED
    assert (kind, line) == (expected, at + 1)


@pytest.mark.parametrize("at", range(len(LINES) - 1))
def test_two_lines_in_each_others_place_are_found(at: int) -> None:
    lines = [*LINES[:at], LINES[at + 1], LINES[at], *LINES[at + 2 :]]
    kind, line = found(verdict_of(lines))
    # A seal that is moved takes the border of its batch along: what it left behind is missed.
    moved_seal = isinstance(decode_line(LINES[at + 1]), SealLine)
    assert kind in (
        {ChainFaultKind.REORDERED, ChainFaultKind.DROPPED} if moved_seal else {kind.REORDERED}
    )
    assert line == at + 1


@pytest.mark.parametrize("at", EVERY_LINE)
def test_a_line_that_stands_twice_is_found(at: int) -> None:
    kind, line = found(verdict_of([*LINES[: at + 1], LINES[at], *LINES[at + 1 :]]))
    assert (kind, line) == (ChainFaultKind.REORDERED, at + 2)


@pytest.mark.parametrize("kept", EVERY_LINE)
def test_a_log_that_was_cut_anywhere_is_found_by_its_anchor(kept: int) -> None:
    assert found(verdict_of(LINES[:kept])) == (ChainFaultKind.TRUNCATED, kept + 1)


@pytest.mark.parametrize("at", EVERY_LINE)
def test_an_added_line_is_found(at: int) -> None:
    extra = encode_line(
        msgspec.structs.replace(
            EventLine(
                sequence=at + 1,
                previous=NOTHING,
                who="nobody",
                what="Nothing",
                outcome="Done",
                at_ms=0,
                object="",
                tenant="",
                trace_id="",
                facts={},
            ),
            previous=digest_of(LINES[at - 1]) if at else NOTHING,
        )
    )
    verdict = verdict_of([*LINES[:at], extra, *LINES[at:]])
    assert verdict.fault is not None


@pytest.mark.parametrize("at", EVERY_LINE)
def test_a_chain_that_was_computed_anew_fails_at_its_seal(at: int) -> None:
    """Who changes a line and all digests behind it, and has no key, is stopped by the signature."""
    if isinstance(decode_line(LINES[at]), SealLine):
        return
    lines = list(LINES)
    for place in range(at, len(lines)):
        line = decode_line(lines[place])
        assert line is not None
        if place > at:
            line = msgspec.structs.replace(line, previous=digest_of(lines[place - 1]))
        else:
            line = msgspec.structs.replace(line, at_ms=77)
        lines[place] = encode_line(line)
        if isinstance(line, SealLine):
            break
    kind, line_number = found(verdict_of(lines))
    assert kind is ChainFaultKind.ALTERED
    assert line_number == place + 1


def test_a_log_of_another_key_is_refused() -> None:
    lines, _ = small_log(key=OTHER_KEY)
    kind, line = found(verify_lines(lines, TRUSTED))
    assert (kind, line) == (ChainFaultKind.WRONG_KEY, 6)


@pytest.mark.parametrize("swapped", [0, 1, 2])
def test_a_seal_that_another_key_made_in_its_name_is_refused(swapped: int) -> None:
    others, _ = small_log(key=OTHER_KEY)
    at = [index for index, line in enumerate(LINES) if b'"kind":"seal"' in line][swapped]
    seal, forged = decode_line(LINES[at]), decode_line(others[at])
    assert isinstance(seal, SealLine) and isinstance(forged, SealLine)
    lines = list(LINES)
    lines[at] = encode_line(msgspec.structs.replace(seal, signature=forged.signature))
    assert found(verdict_of(lines)) == (ChainFaultKind.ALTERED, at + 1)


def test_keys_overlap_and_end() -> None:
    chain = new_chain()
    lines = [chain.begin_file(1, 0), chain.append(event(1)), chain.seal(100)]
    chain._sign, chain.key_id = OTHER_KEY.sign, key_id_of(OTHER_KEY.public_key().public_bytes_raw())
    lines += [chain.append(event(2)), chain.seal(200)]
    both = trust(
        TrustedKey(KEY.public_key().public_bytes_raw(), retires_at_ms=150),
        TrustedKey(OTHER_KEY.public_key().public_bytes_raw(), activates_at_ms=90),
    )
    assert verify_lines(lines, both).is_intact
    late = trust(
        TrustedKey(KEY.public_key().public_bytes_raw(), retires_at_ms=100),
        TrustedKey(OTHER_KEY.public_key().public_bytes_raw()),
    )
    assert found(verify_lines(lines, late)) == (ChainFaultKind.WRONG_KEY, 3)


def test_a_seal_that_names_another_seal_before_it_is_refused() -> None:
    """Its signature holds: two writers with one key would make such a log."""
    chain = new_chain()
    lines = [chain.begin_file(1, 0), chain.append(event(1)), chain.seal(10)]
    chain.sealed_digest = digest_of(b"another")
    lines += [chain.append(event(2)), chain.seal(20)]
    assert found(verify_lines(lines, TRUSTED)) == (ChainFaultKind.ALTERED, 4)


def test_a_forged_anchor_is_refused() -> None:
    shorter = msgspec.structs.replace(ANCHOR, sequence=6, digest=digest_of(LINES[5]))
    verdict = verify_lines(LINES[:6], TRUSTED, anchor=shorter)
    assert found(verdict) == (ChainFaultKind.ALTERED, 0)


def test_the_open_tail_is_chained_and_reported_as_unsigned() -> None:
    lines, anchor = small_log(tail=3)
    verdict = verify_lines(lines, TRUSTED, anchor=anchor)
    assert verdict.is_intact and verdict.unsigned_lines == 3
    strict = verify_lines(lines, TRUSTED, anchor=anchor, require_signed=True)
    assert found(strict) == (ChainFaultKind.UNSIGNED, 17)
    lines[-2] = lines[-2].replace(b"acme", b"evil")
    assert found(verify_lines(lines, TRUSTED, anchor=anchor)) == (ChainFaultKind.ALTERED, 18)


def test_a_log_and_its_anchor_put_back_together_are_seen_by_a_witness_alone() -> None:
    chain = new_chain()
    lines = [chain.begin_file(1, 0), chain.append(event(1)), chain.seal(10)]
    older, older_anchor = list(lines), chain.anchor()
    lines += [chain.append(event(2)), chain.seal(20)]
    witness = chain.sealed_digest
    assert verify_lines(older, TRUSTED, anchor=older_anchor).is_intact
    verdict = verify_lines(older, TRUSTED, anchor=older_anchor, expect_head=witness)
    assert found(verdict) == (ChainFaultKind.TRUNCATED, 4)
    assert verify_lines(lines, TRUSTED, anchor=chain.anchor(), expect_head=witness).is_intact
    lines.append(chain.append(event(3)))
    assert verify_lines(lines, TRUSTED, expect_head=witness).is_intact  # it has grown since


def test_a_log_without_its_oldest_files_needs_leave() -> None:
    assert found(verify_lines(LINES[6:], TRUSTED)) == (ChainFaultKind.DROPPED, 1)
    assert verify_lines(LINES[6:], TRUSTED, anchor=ANCHOR, from_start=False).is_intact
    assert found(verify_lines(LINES[7:], TRUSTED, from_start=False)) == (ChainFaultKind.DROPPED, 1)


def apart(lines: list[bytes], rng: random.Random) -> ChainVerdict:
    """Verify the batches as other machines would: alone, in any order, all by value."""
    batches = list(split_batches(lines))
    rng.shuffle(batches)
    verdicts: list[BatchVerdict] = []
    for batch in batches:
        sent, keys = pickle.loads(pickle.dumps((batch, TRUSTED)))
        verdicts.append(pickle.loads(pickle.dumps(verify_batch(sent, keys))))
    return join_batches(sorted(verdicts, key=lambda each: each.first_line))


def test_batches_can_be_verified_apart() -> None:
    verdict = apart(LINES, random.Random(7))
    assert verdict.is_intact
    assert verdict == verify_lines(LINES, TRUSTED)


@pytest.mark.parametrize("seed", range(150))
def test_apart_and_in_one_pass_the_same_logs_are_refused(seed: int) -> None:
    rng = random.Random(seed)
    lines, at = list(LINES), rng.randrange(len(LINES) - 1)
    match rng.randrange(3):
        case 0:
            lines[at] = lines[at].replace(b"1", b"3", 1)
        case 1:
            del lines[at : at + rng.randrange(1, 4)]
        case _:
            lines[at], lines[at + 1] = lines[at + 1], lines[at]
    whole = verify_lines(lines, TRUSTED)
    divided = apart(lines, rng)
    if lines[0] == LINES[0]:  # apart, nothing says where a log begins
        assert whole.is_intact == divided.is_intact, seed
    if divided.fault is not None:
        assert not whole.is_intact


def test_a_batch_of_a_thousand_events_is_full() -> None:
    chain = new_chain()
    lines = [chain.begin_file(1, 0)]
    lines += [chain.append(event(number)) for number in range(BATCH_EVENTS_MAX)]
    with pytest.raises(AssertionError):
        chain.append(event(0))
    lines.append(chain.seal(1))
    assert chain.open_events == 0
    assert verify_lines(lines, TRUSTED).is_intact
    assert len(list(split_batches(lines))) == 1


TEXTS = st.text(max_size=700)


@given(
    who=TEXTS, what=TEXTS, target=TEXTS, at_ms=st.integers(-5, 2**60),
    facts=st.dictionaries(st.text(max_size=80), TEXTS, max_size=20),
)  # fmt: skip
def test_any_event_becomes_a_canonical_line_that_can_be_read_back(
    who: str, what: str, target: str, at_ms: int, facts: dict[str, str]
) -> None:
    chain = new_chain()
    line = chain.append(
        AuditEvent(who=who, what=what, outcome="Done", at_ms=at_ms, object=target, facts=facts)
    )
    assert b"\n" not in line
    assert rfc8785.dumps(json.loads(line)) == line
    decoded = decode_line(line)
    assert isinstance(decoded, EventLine)
    assert encode_line(decoded) == line
    if len(who) <= 512:
        assert decoded.who == who


def test_what_is_no_unicode_is_recorded_all_the_same() -> None:
    line = decode_line(
        new_chain().append(AuditEvent(who="\ud800x", what="\x00", outcome="", at_ms=0))
    )
    assert isinstance(line, EventLine) and line.who == "?x"


def test_the_bytes_of_the_format_are_pinned() -> None:
    """A reader of later years depends on them: a change needs a new format."""
    assert KEY_ID == "31efcd4e9529bdbf"
    assert digest_of(LINES[0])[:16] == "c211bd99806fe9df"
    assert digest_of(LINES[-1])[:16] == "9439042b7dd0aeb1"
