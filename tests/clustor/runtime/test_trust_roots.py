"""Trust bundles that nobody could use never enter the log."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import msgspec
import pytest
from cryptography.x509.oid import ExtendedKeyUsageOID

from clustor.control import RefusalCode
from clustor.runtime.pki.identity import ClusterId, create_authority, issue_certificate, utc_now
from clustor.runtime.pki.trust_roots import mistake_in, refuse_trust


def call(**fields: object) -> bytes:
    return msgspec.json.encode({"kind": "SetTrust", "expected_version": 0, **fields})


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory: Path = tmp_path_factory.mktemp("authority")
    return create_authority(directory, ClusterId("mqtt"), utc_now()).bundle_pem.decode()


def test_what_can_be_used_may_enter(root: str) -> None:
    assert refuse_trust(call(roots=[root], revoked=["5f3a", "0A"])) is None
    assert refuse_trust(call(roots=[root + root])) is None
    assert refuse_trust(call(roots=[])) is None


@pytest.mark.parametrize(
    "bad",
    [
        "",
        "x" * 1000,
        "-----BEGIN CERTIFICATE-----",
        "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
        "\ud800",
    ],
)
def test_roots_that_cannot_be_read_may_not(root: str, bad: str) -> None:
    why = mistake_in([root, bad], ())
    assert why is not None and why.startswith("root 2 is of no use")


def test_a_root_with_a_byte_flipped_or_cut_may_not(root: str) -> None:
    assert mistake_in([root[: len(root) // 2]], ()) is not None
    at = root.index("\n", 100) + 5
    flipped = root[:at] + ("!" if root[at] != "!" else "?") + root[at + 1 :]
    assert mistake_in([flipped], ()) is not None


def test_a_client_s_certificate_is_no_authority(tmp_path: Path) -> None:
    authority = create_authority(tmp_path, ClusterId("mqtt"), utc_now())
    usages = [ExtendedKeyUsageOID.CLIENT_AUTH]
    issued = issue_certificate(
        authority, "x", [], usages, now=utc_now(), lifetime=timedelta(days=1)
    )
    assert mistake_in([issued.certificate_pem.decode()], ()) is not None


def test_serial_numbers_are_hexadecimal(root: str) -> None:
    refused = refuse_trust(call(roots=[root], revoked=["5f3a", "nope"]))
    assert refused is not None and refused.code is RefusalCode.INVALID


@pytest.mark.parametrize("other", [b"", b"{", b"[]", b'{"kind":"SetAcls"}', b'{"kind":"SetTrust"}'])
def test_other_calls_are_none_of_its_business(other: bytes) -> None:
    assert refuse_trust(other) is None
