"""Where the key of a ring comes from: a file, a program, a key service; and what goes wrong."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from moto.server import ThreadedMotoServer

from clustor.log.errors import KeyUnavailable
from clustor.runtime.keys.kek_source import (
    kek_in_file,
    kek_of_command,
    kek_of_service,
    read_once,
)
from clustor.runtime.keys.key_service import (
    KeyService,
    ServiceAccess,
    access_from,
    sign_request,
)
from clustor.runtime.keys.store import KEYS_DIRECTORY, create_keyring, load_keyring

KEK = bytes(range(32))
ACCESS = ServiceAccess("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY")


def test_a_file_says_it_in_hex(tmp_path: Path) -> None:
    file = tmp_path / "kek.key"
    file.write_text(KEK.hex() + "\n")
    assert kek_in_file(file)() == KEK
    with pytest.raises(KeyUnavailable, match="cannot read"):
        kek_in_file(tmp_path / "none")()


def test_a_program_prints_it() -> None:
    printing = (sys.executable, "-c", f"print('{KEK.hex()}')")
    assert kek_of_command(printing)() == KEK


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (("/no/such/program",), "cannot be run"),
        ((sys.executable, "-c", "raise SystemExit(3)"), "exit_code=3"),
        ((sys.executable, "-c", "print('s3cret words')"), "64 hex digits"),
        ((), "cannot be run"),
    ],
)
def test_a_program_that_gives_no_key_is_told_without_its_words(
    command: tuple[str, ...], says: str
) -> None:
    with pytest.raises(KeyUnavailable) as refused:
        kek_of_command(command)()
    assert says.lower() in str(refused.value).lower()
    assert "s3cret" not in str(refused.value)


def test_it_is_asked_for_once() -> None:
    asked: list[int] = []

    def read() -> bytes:
        asked.append(1)
        return KEK

    once = read_once(read)
    assert (once(), once(), len(asked)) == (KEK, KEK, 1)


def test_a_ring_opens_with_a_key_from_elsewhere(tmp_path: Path) -> None:
    create_keyring(tmp_path)
    keys = tmp_path / KEYS_DIRECTORY
    kek = bytes.fromhex((keys / "kek.key").read_text())
    (keys / "kek.key").unlink()
    assert load_keyring(keys, read_kek=lambda: kek).dek_epoch == 1
    with pytest.raises(KeyUnavailable):
        load_keyring(keys, read_kek=lambda: KEK)


# The key service.


@pytest.fixture(scope="module")
def service_url() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture(scope="module")
def service_key(service_url: str) -> str:
    boto3: Any = pytest.importorskip("boto3", reason="moto brings it")
    client = boto3.client(
        "kms",
        endpoint_url=service_url,
        region_name="eu-central-1",
        aws_access_key_id=ACCESS.access_key,
        aws_secret_access_key=ACCESS.secret_key,
    )
    return str(client.create_key()["KeyMetadata"]["KeyId"])


def _service(url: str, key: str, cluster: str = "prod") -> KeyService:
    return KeyService(url, "eu-central-1", key, ACCESS, context={"quantum-cluster": cluster})


def test_a_service_opens_what_it_wrapped(
    service_url: str, service_key: str, tmp_path: Path
) -> None:
    service = _service(service_url, service_key)
    sealed = service.encrypt(KEK)
    assert KEK not in sealed
    file = tmp_path / "kek.wrapped"
    file.write_text(sealed.hex() + "\n")
    assert kek_of_service(service, file)() == KEK


def test_a_service_opens_nothing_under_another_cluster_s_name(
    service_url: str, service_key: str
) -> None:
    sealed = _service(service_url, service_key).encrypt(KEK)
    with pytest.raises(KeyUnavailable, match="refused"):
        _service(service_url, service_key, "other").decrypt(sealed)


def test_a_service_that_is_not_there_is_one_sentence() -> None:
    with pytest.raises(KeyUnavailable, match="does not answer"):
        _service("http://127.0.0.1:1", "k").decrypt(b"x")


@pytest.mark.parametrize("url", ["http://kms.example.com", "ftp://localhost", "nonsense", ""])
def test_a_service_is_asked_over_tls_alone_off_loopback(url: str) -> None:
    with pytest.raises(KeyUnavailable):
        _service(url, "k")


def test_requests_are_signed_as_botocore_signs_them() -> None:
    auth: Any = pytest.importorskip("botocore.auth", reason="moto brings it")
    requests: Any = pytest.importorskip("botocore.awsrequest")
    people: Any = pytest.importorskip("botocore.credentials")
    now = datetime(2026, 11, 17, 20, 0, 0, tzinfo=UTC)
    body, target, netloc = b'{"KeyId": "k"}', "TrentService.Decrypt", "kms.eu.example.com"
    ours = sign_request(body, target, netloc, region="eu-central-1", access=ACCESS, now=now)
    request = requests.AWSRequest(
        "POST",
        f"https://{netloc}/",
        data=body,
        headers={"content-type": ours["content-type"], "x-amz-target": target, "host": netloc},
    )
    signer = auth.SigV4Auth(
        people.Credentials(ACCESS.access_key, ACCESS.secret_key), "kms", "eu-central-1"
    )
    request.context["timestamp"] = ours["x-amz-date"]
    request.headers["x-amz-date"] = ours["x-amz-date"]
    text = signer.string_to_sign(request, signer.canonical_request(request))
    assert signer.signature(text, request) == ours["authorization"].rpartition("Signature=")[2]


def test_credentials_come_from_the_environment() -> None:
    said = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_SESSION_TOKEN": "c"}
    assert access_from(said) == ServiceAccess("a", "b", "c")
    with pytest.raises(KeyUnavailable, match="AWS_ACCESS_KEY_ID"):
        access_from({})
