"""What is kept of passwords: both ways, of older releases, and damaged."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from quantum.config.live import mistakes, read_value
from quantum.tenancy import SCRAM_256, SCRAM_512, SCRAM_MECHANISMS, derive_credential
from quantum.tenants.kept_passwords import KeptPassword, read_kept
from quantum.tenants.passwords import Passwords, hash_password, is_password, keep_password

OLD = hash_password(b"secret", bytes(16))
SCRAM = {each: derive_credential(each, b"secret", b"0123456789abcdef") for each in SCRAM_MECHANISMS}
CASES = {
    "of an older release": KeptPassword(OLD),
    "all": KeptPassword(OLD, SCRAM),
    "one mechanism": KeptPassword("", {SCRAM_512: SCRAM[SCRAM_512]}),
    "both mechanisms": KeptPassword("", SCRAM),
}


@pytest.mark.parametrize("kept", CASES.values(), ids=CASES)
def test_what_is_written_is_read_again_taken_by_the_control_plane_and_checks(
    kept: KeptPassword,
) -> None:
    text = kept.text()
    assert read_kept(text) == kept
    assert read_value("users.ann", text) == text
    assert len(text) < 1024  # what a value of the configuration may have
    assert is_password(b"secret", text) and not is_password(b"Secret", text)


def test_all_that_is_kept_of_a_password_holds_for_it_alone_and_never_says_it() -> None:
    text = keep_password(b"hunter2")
    kept = read_kept(text)
    assert "hunter2" not in text and set(kept.scram) == set(SCRAM_MECHANISMS) and kept.scrypt
    salts = {each.salt for each in kept.scram.values()}
    assert len(salts) == 2 and keep_password(b"hunter2") != text
    for mechanism, found in kept.scram.items():
        assert derive_credential(mechanism, b"hunter2", found.salt, found.iterations) == found


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text.replace("i=16384", "i=99999"),
        lambda text: text.replace("i=16384", "i=1000"),
        lambda text: text.replace("$SCRAM-SHA-256", "$SCRAM-SHA-1"),
        lambda text: text[:-9],
        lambda text: text.replace("=", "!"),
        lambda text: "$" * 40,
    ],
)
def test_a_damaged_part_lets_nobody_in(damage: object) -> None:
    text = KeptPassword("", {SCRAM_256: SCRAM[SCRAM_256]}).text()
    assert not read_kept(damage(text))  # type: ignore[operator]
    assert not is_password(b"secret", damage(text))  # type: ignore[operator]


def test_the_control_plane_takes_nothing_else() -> None:
    for text in (f"{OLD} {OLD}", f"{OLD}  ", f" {OLD}", "$SCRAM-SHA-256$i=4096$a$b"):
        assert mistakes({"users.ann": text}), text


def test_another_password_for_a_mechanism_leaves_none_of_the_old_one_in_clear() -> None:
    kept = KeptPassword(OLD, SCRAM)
    fresh = derive_credential(SCRAM_256, b"new", b"salt5678", 4096)
    after = kept.with_scram(SCRAM_256, fresh)
    assert not after.scrypt and after.scram == {SCRAM_256: fresh, SCRAM_512: SCRAM[SCRAM_512]}
    assert is_password(b"new", after.text())
    left = kept.without_scram(SCRAM_256).without_scram(SCRAM_512)
    assert left == KeptPassword(OLD) and not KeptPassword()


def test_a_decoy_s_shape_is_some_user_s_and_always_the_same_one() -> None:
    book = Passwords()
    users = {f"users.u{n}": OLD for n in range(50)}
    users["users.ann"] = KeptPassword(OLD, SCRAM).text()
    book.words = SimpleNamespace(settings=lambda _tenant: users)
    assert book.scram("blue", "ann", SCRAM_256) == SCRAM[SCRAM_256]
    assert book.scram("blue", "u1", SCRAM_256) is None and book.is_user("blue", "u1")
    assert book.scram("blue", "eve", SCRAM_256) is None and not book.is_user("blue", "eve")
    for name in ("eve", "mallory", "u1"):
        assert book.scram_like("blue", name, SCRAM_256) == SCRAM[SCRAM_256]
    book.words = None
    assert book.scram_like("blue", "eve", SCRAM_256) is None
