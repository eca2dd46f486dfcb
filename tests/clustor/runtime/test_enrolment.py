"""The exchange on real sockets and files: a node gets in by its token, and by nothing else."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from typer.testing import CliRunner

from clustor.runtime.development import prepare_cluster
from clustor.runtime.disk import DirectoryStorage
from clustor.runtime.errors import AuditFailed, CertificateUnusable
from clustor.runtime.keys.store import load_keyring
from clustor.runtime.peers.tls import TlsPipe
from clustor.runtime.peers.transport import Address
from clustor.runtime.pki import enrolment, enrolment_tokens
from clustor.runtime.pki.enrolment import Enroller, EnrolmentAsk, EnrolmentServer, enrol, new_key
from clustor.runtime.pki.enrolment_tokens import TokenStore, create_token, withdraw
from clustor.runtime.pki.identity import (
    ClusterId,
    NodeId,
    client_context,
    own_identity,
    server_context,
    utc_now,
)
from clustor.security import AuditReader, EnrolmentRefused, EventLine, NodeRole, decode_line
from quantum.cli.enrol import app

CLUSTER = ClusterId("dev")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "cluster"
    prepare_cluster(root, CLUSTER, nodes=1, base_port=7000, groups=1, now=utc_now())
    return root


def token(root: Path, node: int = 4, ttl_ms: int = 60_000) -> str:
    return create_token(
        root, CLUSTER, NodeId(node), NodeRole.VOTER, ttl_ms=ttl_ms, issued_by="operator"
    )


@asynccontextmanager
async def serving(root: Path) -> AsyncIterator[Address]:
    server = EnrolmentServer(root, CLUSTER)
    address = await server.listen(Address("127.0.0.1", 0))
    try:
        yield address
    finally:
        await server.close()


def audited(root: Path) -> list[tuple[str, str, str]]:
    storage = DirectoryStorage(root / "security" / "audit")
    lines = [decode_line(line) for line in AuditReader(storage).lines()]
    storage.close()
    events = [line for line in lines if isinstance(line, EventLine)]
    return [(event.what, event.outcome, event.object) for event in events]


async def refused(address: Address, given: str, directory: Path, node: int = 4) -> str:
    with pytest.raises(EnrolmentRefused) as caught:
        await enrol(address, given, NodeId(node), NodeRole.VOTER, directory)
    return caught.value.code


async def test_a_token_becomes_a_certificate_that_peers_believe(root: Path, tmp_path: Path) -> None:
    given = token(root)
    new = tmp_path / "new"
    async with serving(root) as address:
        assert await enrol(address, given, NodeId(4), NodeRole.VOTER, new) == CLUSTER
    identity = own_identity(new / "pki")
    assert (identity.cluster_id, identity.node_id) == (CLUSTER, 4)
    assert load_keyring(new / "keys").dek_epoch == load_keyring(root / "keys").dek_epoch
    client = TlsPipe(client_context(new / "pki"), server_side=False)
    server = TlsPipe(server_context(root / "node-1" / "pki"), server_side=True)
    client.start()
    for _ in range(4):
        server.receive(client.take_outgoing())
        client.receive(server.take_outgoing())
    assert client.established and server.established
    assert ("NodeEnrolled", "Done", "node/4") in audited(root)
    assert given not in (root / "security" / "tokens.json").read_text()


async def test_reuse_expiry_and_other_nodes_are_refused_and_audited(
    root: Path, tmp_path: Path
) -> None:
    once, short, withdrawn = token(root), token(root, ttl_ms=1), token(root, node=7)
    withdraw(root, NodeId(7), "operator")
    async with serving(root) as address:
        assert await refused(address, once, tmp_path / "a", node=5) == "TokenOfAnotherNode"
        await enrol(address, once, NodeId(4), NodeRole.VOTER, tmp_path / "b")
        assert await refused(address, once, tmp_path / "c") == "TokenUsed"
        assert await refused(address, short, tmp_path / "d") == "TokenExpired"
        assert await refused(address, withdrawn, tmp_path / "e", node=7) == "TokenWithdrawn"
        pin = once.rpartition(".")[0]
        assert await refused(address, f"{pin}.{'A' * 43}", tmp_path / "f") == "UnknownToken"
        with pytest.raises(EnrolmentRefused):
            await enrol(address, once, NodeId(4), NodeRole.OBSERVER, tmp_path / "g")
    outcomes = [outcome for what, outcome, _ in audited(root) if what == "NodeEnrolled"]
    assert outcomes == [
        "TokenOfAnotherNode", "Done", "TokenUsed", "TokenExpired", "TokenWithdrawn",
        "UnknownToken", "TokenOfAnotherRole",
    ]  # fmt: skip
    assert not (tmp_path / "c" / "pki" / "node.pem").exists()


async def test_a_lost_answer_is_asked_for_again_by_the_same_node(
    root: Path, tmp_path: Path
) -> None:
    given, new = token(root), tmp_path / "new"
    newcomer = new_key(new / "pki", NodeId(4))
    ask = EnrolmentAsk(given, 4, "voter", newcomer.request_pem)
    answer = Enroller(root, CLUSTER).answer(msgspec.json.encode(ask), "1.2.3.4:5")
    assert answer.certificate_pem  # and it never arrives
    async with serving(root) as address:
        await enrol(address, given, NodeId(4), NodeRole.VOTER, new)
        with pytest.raises(CertificateUnusable):
            await enrol(address, given, NodeId(4), NodeRole.VOTER, new)
        assert await refused(address, given, tmp_path / "thief") == "TokenUsed"


@pytest.mark.parametrize("broken", ["record", "sign_key"])
def test_a_crash_before_the_answer_never_lets_a_second_key_in(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    given = token(root)
    mine, thief = new_key(tmp_path / "a", NodeId(4)), new_key(tmp_path / "b", NodeId(4))

    def crash(*_arguments: object, **_options: object) -> object:
        raise AuditFailed("no power")

    def asked(request_pem: str) -> bytes:
        return msgspec.json.encode(EnrolmentAsk(given, 4, "voter", request_pem))

    with monkeypatch.context() as patched:
        patched.setattr(enrolment, broken, crash)
        with pytest.raises(AuditFailed):
            Enroller(root, CLUSTER).answer(asked(mine.request_pem), "peer")
    server = Enroller(root, CLUSTER)
    assert server.answer(asked(thief.request_pem), "peer").refused == "TokenUsed"
    assert server.answer(asked(mine.request_pem), "peer").certificate_pem


def test_a_crash_before_the_book_is_durable_lets_nobody_in(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = token(root)
    newcomer = new_key(tmp_path / "a", NodeId(4))
    message = msgspec.json.encode(EnrolmentAsk(given, 4, "voter", newcomer.request_pem))

    def crash(*_arguments: object) -> object:
        raise OSError("no power")

    with monkeypatch.context() as patched:
        patched.setattr(enrolment_tokens, "write_durably", crash)
        with pytest.raises(OSError, match="no power"):
            Enroller(root, CLUSTER).answer(message, "peer")
    assert TokenStore(root).read().tokens[0].used_at_ms is None


@pytest.mark.parametrize(
    "message",
    [b"", b"\xff\xff", b"[]", b'{"token":"x"}', b'{"token":"x","node_id":4,"role":"voter",'
     b'"request_pem":"no"}'],
)  # fmt: skip
def test_what_is_no_request_is_refused_and_audited(root: Path, message: bytes) -> None:
    assert Enroller(root, CLUSTER).answer(message, "peer").refused == "BadRequest"
    assert audited(root)[-1] == ("NodeEnrolled", "BadRequest", "node/0")


async def test_a_server_that_the_token_does_not_name_learns_nothing(
    root: Path, tmp_path: Path
) -> None:
    given = token(root)
    key = enrolment_tokens.key_pem(ec.generate_private_key(ec.SECP256R1()))
    (root / "pki" / "enrolment.key").write_bytes(key)
    (root / "pki" / "enrolment.pem").unlink()
    async with serving(root) as address:
        with pytest.raises(CertificateUnusable, match="not the one that the token names"):
            await enrol(address, given, NodeId(4), NodeRole.VOTER, tmp_path / "new")
    assert TokenStore(root).read().tokens[0].used_at_ms is None


async def test_silence_and_floods_end_by_themselves(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(enrolment, "EXCHANGE_SECONDS_MAX", 0.2)
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    async with serving(root) as address:
        for flood in (b"", b"x" * (200 << 10)):
            reader, writer = await asyncio.open_connection(address.host, address.port, ssl=context)
            writer.write(flood)
            async with asyncio.timeout(90):
                with suppress(ConnectionError):  # closed before all of a flood was read
                    assert await reader.read() == b""
            writer.close()


def test_the_command_makes_lists_and_withdraws_tokens(root: Path) -> None:
    def run(*arguments: object) -> tuple[int, str]:
        result = CliRunner().invoke(app, [str(each) for each in arguments])
        return result.exit_code, result.output

    code, made = run("token", "create", 4, "--data", root)
    assert code == 0 and made.startswith("qe1.")
    assert "4  voter  open" in run("token", "list", "--data", root)[1]
    assert run("token", "withdraw", 4, "--data", root)[1] == "withdrew 1 of node 4\n"
    assert "4  voter  withdrawn" in run("token", "list", "--data", root)[1]
    assert run("token", "create", 4, "--data", root / "nothing")[0] != 0
    code, said = run(
        "enrol", 4, "--token", made.strip(), "--server", "127.0.0.1:1", "--data", root / "n"
    )
    assert code == 12 and said.startswith("quantum: the server does not answer")
    code, said = run("enrol", 4, "--token", "x", "--server", "127.0.0.1:1", "--data", root / "n")
    assert code == 9 and "no enrolment token" in said
