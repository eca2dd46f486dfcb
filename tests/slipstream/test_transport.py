"""The transport on real object stores: a pointer that only rises, payloads that stay fetchable."""

from __future__ import annotations

import asyncio
import io
import tarfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import obstore
import pytest
from obstore.store import LocalStore, MemoryStore, S3Store

from slipstream.artifact import (
    ExportLease,
    ExportManifest,
    ExportRequest,
    PublishOutcome,
    RoundOutcome,
    export_to,
    import_remote,
    run_export_round,
)
from slipstream.artifact.pointer import decode_pointer, encode_pointer
from slipstream.artifact.transport import ObjectStoreTransport
from slipstream.errors import (
    ArtifactInvalid,
    ArtifactMissing,
    ConditionalPutUnsupported,
    Misuse,
    PointerContention,
    PointerForeign,
)
from slipstream.folds import AppendLogSnapshot, SnapshotStore
from slipstream.types import WatchCursor
from tests.slipstream.conftest import Bucket, MemoryLab
from tests.slipstream.fold_cases import FOLDS, at, contents, put
from tests.slipstream.servers import S3Server


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    server = S3Server()
    yield server
    server.stop()


@pytest.fixture
def s3_store(s3_server: S3Server, request: pytest.FixtureRequest) -> S3Store:
    name = f"bucket-{abs(hash(request.node.nodeid))}"
    with urlopen(Request(f"{s3_server.url}/{name}", method="PUT")) as answer:
        assert answer.status == 200
    return S3Store(
        name,
        endpoint=s3_server.url,
        access_key_id="id",
        secret_access_key="secret",
        region="us-east-1",
        client_options={"allow_http": True},
    )


@pytest.fixture(params=["s3", "memory", "local"])
def transport(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStoreTransport:
    """Each store; a local directory only by saying that its pointer is not atomic."""
    if request.param == "s3":
        return ObjectStoreTransport(request.getfixturevalue("s3_store"), "fleet/folds")
    if request.param == "memory":
        return ObjectStoreTransport(MemoryStore(), "fleet/folds")
    (tmp_path / "store").mkdir()
    store = LocalStore(tmp_path / "store")
    return ObjectStoreTransport(store, "fleet/folds", allow_non_atomic_pointer=True)


def artifact_at(
    revision: int,
    directory: Path,
    backend: type[SnapshotStore] = AppendLogSnapshot,
    store: bytes = b"",
    value: bytes = b"v",
) -> Path:
    """Export a fold that stands at a revision."""
    directory.mkdir()
    with backend.load(directory / "fold") as fold:
        cursor = WatchCursor(at(revision).position, store, b"", 1 if store else 0)
        fold.apply([put(f"k.{n}", value, n + 1) for n in range(revision)], cursor)
        export_to(fold, directory / "artifact")
    return directory / "artifact"


@pytest.mark.parametrize("backend", FOLDS.values(), ids=FOLDS.keys())
async def test_what_is_published_bootstraps_another_node(
    transport: ObjectStoreTransport, tmp_path: Path, backend: type[SnapshotStore]
) -> None:
    published = await transport.upload("edge", artifact_at(40, tmp_path / "a", backend))
    assert published.outcome is PublishOutcome.PUBLISHED
    assert await transport.pointer("edge") == published.manifest
    manifest = await import_remote(transport, "edge", tmp_path / "second", backend)
    assert manifest == published.manifest
    with backend.load(tmp_path / "second") as second:
        assert second.cursor == at(40)
        assert len(contents(second)) == 40
    assert not list(tmp_path.glob(".*"))


async def test_a_payload_larger_than_a_part_travels_in_parts(
    transport: ObjectStoreTransport, tmp_path: Path
) -> None:
    artifact = artifact_at(20, tmp_path / "a", value=bytes(1_000_000))
    await transport.upload("edge", artifact)
    await import_remote(transport, "edge", tmp_path / "second", AppendLogSnapshot)
    with AppendLogSnapshot.load(tmp_path / "second") as second:
        assert {len(value) for value in contents(second).values()} == {1_000_000}


async def test_a_slow_exporter_is_superseded_and_never_takes_the_pointer_back(
    transport: ObjectStoreTransport, tmp_path: Path
) -> None:
    slow = artifact_at(10, tmp_path / "slow")
    quick = artifact_at(20, tmp_path / "quick")
    assert (await transport.upload("edge", quick)).outcome is PublishOutcome.PUBLISHED
    late = await transport.upload("edge", slow)
    assert late.outcome is PublishOutcome.SUPERSEDED_BY_NEWER
    pointer = await transport.pointer("edge")
    assert pointer is not None
    assert pointer.rank == 20
    again = await transport.upload("edge", quick)
    assert again.outcome is PublishOutcome.PUBLISHED, "the same one again is harmless"


async def test_a_crash_between_payload_and_pointer_leaves_the_old_one_fetchable(
    transport: ObjectStoreTransport, tmp_path: Path
) -> None:
    await transport.upload("edge", artifact_at(10, tmp_path / "old"))
    new = artifact_at(20, tmp_path / "new")
    manifest = ExportManifest.decode((new / "MANIFEST.json").read_bytes())
    await asyncio.to_thread(transport.put_payload, "edge", new, manifest)
    fetched = await import_remote(transport, "edge", tmp_path / "second", AppendLogSnapshot)
    assert fetched.rank == 10
    outcome = await asyncio.to_thread(transport.swap_pointer, "edge", manifest)
    assert outcome is PublishOutcome.PUBLISHED


async def test_prune_deletes_strictly_below_the_pointer_after_its_grace(
    s3_store: S3Store, tmp_path: Path
) -> None:
    now = datetime.now(UTC)
    transport = ObjectStoreTransport(s3_store, "p", clock=lambda: now)
    twin = artifact_at(20, tmp_path / "twin", value=b"other")
    twin_manifest = ExportManifest.decode((twin / "MANIFEST.json").read_bytes())
    for name, revision in [("a", 10), ("b", 20)]:
        await transport.upload("edge", artifact_at(revision, tmp_path / name))
    await asyncio.to_thread(transport.put_payload, "edge", twin, twin_manifest)
    obstore.put(s3_store, "p/edge.payloads/garbage.tar", b"not a tar at all" * 100)
    obstore.put(s3_store, "p/other.payloads/kept.tar", b"another key's")
    assert len(payloads(s3_store)) == 4
    assert await transport.prune("edge", 3600) == 0
    now += timedelta(hours=2)
    assert await transport.prune("edge", 3600) == 1
    # The target, its equal in rank, and what cannot be read stay.
    assert len(payloads(s3_store)) == 3
    await import_remote(transport, "edge", tmp_path / "second", AppendLogSnapshot)
    assert await transport.prune("unknown", 0) == 0


def payloads(store: Any) -> list[str]:
    return [item["path"] for chunk in obstore.list(store, "p/edge.payloads") for item in chunk]


async def test_a_corrupt_pointer_is_replaced_and_prunes_nothing(
    s3_store: S3Store, tmp_path: Path
) -> None:
    transport = ObjectStoreTransport(s3_store, "p")
    await transport.upload("edge", artifact_at(10, tmp_path / "a"))
    obstore.put(s3_store, "p/edge.manifest.json", b"garbage")
    with pytest.raises(ArtifactInvalid):
        await import_remote(transport, "edge", tmp_path / "second", AppendLogSnapshot)
    assert await transport.prune("edge", 0) == 0
    outcome = (await transport.upload("edge", artifact_at(5, tmp_path / "b"))).outcome
    assert outcome is PublishOutcome.PUBLISHED


async def test_the_same_manifest_published_twice_is_two_versions_to_a_stale_writer(
    s3_store: S3Store, tmp_path: Path
) -> None:
    """An ETag is the MD5 of the bytes: without the nonce, A→B→A would let a stale swap pass."""
    transport = ObjectStoreTransport(s3_store, "p")
    first = artifact_at(10, tmp_path / "a")
    await transport.upload("edge", first)
    before = obstore.head(s3_store, "p/edge.manifest.json")["e_tag"]
    await transport.upload("edge", first)
    assert obstore.head(s3_store, "p/edge.manifest.json")["e_tag"] != before
    raw = b"same bytes"
    stale = obstore.put(s3_store, "p/pinned", raw)["e_tag"]
    obstore.put(s3_store, "p/pinned", b"other bytes")
    obstore.put(s3_store, "p/pinned", raw)
    assert stale is not None
    obstore.put(s3_store, "p/pinned", b"took it", mode={"e_tag": stale})  # The store's habit.


class Rivals(ObjectStoreTransport):
    """A transport whose pointer is moved by others after each look at it."""

    def __init__(self, store: Any, artifact: ExportManifest, rivals: int) -> None:
        super().__init__(store, "p")
        self._rival, self._left = artifact, rivals
        self.looks = 0

    def _observe(self, key: str) -> Any:
        observed = super()._observe(key)
        self.looks += 1
        if self._left > 0:
            self._left -= 1
            moved = encode_pointer(self._rival.encode(), f"rival {self._left}")
            obstore.put(self._store, "p/edge.manifest.json", moved)
        return observed


@pytest.mark.parametrize("rivals", [8, 9])
async def test_a_swap_is_tried_again_eight_times_and_then_gives_up(
    s3_store: S3Store, tmp_path: Path, rivals: int
) -> None:
    rival = ExportManifest.decode(
        (artifact_at(10, tmp_path / "rival") / "MANIFEST.json").read_bytes()
    )
    transport = Rivals(s3_store, rival, rivals)
    ours = artifact_at(20, tmp_path / "ours")
    if rivals > 8:
        with pytest.raises(PointerContention):
            await transport.upload("edge", ours)
        assert transport.looks == 9
    else:
        assert (await transport.upload("edge", ours)).outcome is PublishOutcome.PUBLISHED


async def test_a_rival_that_published_something_newer_meanwhile_wins(
    s3_store: S3Store, tmp_path: Path
) -> None:
    newer = ExportManifest.decode(
        (artifact_at(30, tmp_path / "newer") / "MANIFEST.json").read_bytes()
    )
    transport = Rivals(s3_store, newer, 1)
    published = await transport.upload("edge", artifact_at(20, tmp_path / "ours"))
    assert published.outcome is PublishOutcome.SUPERSEDED_BY_NEWER


async def test_a_store_without_conditional_put_fails_closed(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    transport = ObjectStoreTransport(LocalStore(tmp_path / "store"), "p")
    with pytest.raises(ConditionalPutUnsupported):
        await transport.upload("edge", artifact_at(10, tmp_path / "a"))
    assert not list((tmp_path / "store").rglob("*.*")), "nothing was sent"
    manifest = ExportManifest.decode((tmp_path / "a/artifact/MANIFEST.json").read_bytes())
    transport.swap_pointer("edge", manifest)  # A first one can be created atomically,
    with pytest.raises(ConditionalPutUnsupported):  # and no store of this kind can swap it.
        transport.swap_pointer("edge", manifest)


async def test_revisions_of_two_lives_of_a_bucket_are_not_compared(tmp_path: Path) -> None:
    transport = ObjectStoreTransport(MemoryStore(), "p")
    await transport.upload("edge", artifact_at(20, tmp_path / "old", store=b"life-one"))
    with pytest.raises(PointerForeign):
        await transport.upload("edge", artifact_at(30, tmp_path / "new", store=b"life-two"))


def forged_tar(members: list[tuple[str, bytes]]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, data in members:
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()


FORGERIES: dict[str, Callable[[bytes, bytes], bytes]] = {
    "another manifest": lambda manifest, data: forged_tar(
        [("MANIFEST.json", manifest[:-1] + b" "), ("data/snapshot.log", data)]
    ),
    "no manifest": lambda manifest, data: forged_tar([("data/snapshot.log", data)]),
    "another file": lambda manifest, data: forged_tar(
        [("MANIFEST.json", manifest), ("data/snapshot.log", data), ("data/more", b"x")]
    ),
    "a path outside": lambda manifest, data: forged_tar(
        [("MANIFEST.json", manifest), ("data/../../escape", data)]
    ),
    "a missing file": lambda manifest, data: forged_tar([("MANIFEST.json", manifest)]),
    "a flipped byte": lambda manifest, data: forged_tar(
        [("MANIFEST.json", manifest), ("data/snapshot.log", data[:-1] + b"\xff")]
    ),
    "torn": lambda manifest, data: forged_tar(
        [("MANIFEST.json", manifest), ("data/snapshot.log", data)]
    )[:1300],
    "empty": lambda manifest, data: b"",
}


@pytest.mark.parametrize("forge", FORGERIES.values(), ids=FORGERIES.keys())
async def test_a_payload_that_is_not_the_pointers_is_refused(
    tmp_path: Path, forge: Callable[[bytes, bytes], bytes]
) -> None:
    store = MemoryStore()
    transport = ObjectStoreTransport(store, "p")
    artifact = artifact_at(10, tmp_path / "a")
    published = await transport.upload("edge", artifact)
    path = f"p/edge.payloads/{published.manifest.address}.tar"
    data = (artifact / "data/snapshot.log").read_bytes()
    obstore.put(store, path, forge(published.manifest.encode(), data))
    with pytest.raises(ArtifactInvalid):
        await import_remote(transport, "edge", tmp_path / "second", AppendLogSnapshot)
    assert not (tmp_path / "second").exists()
    assert not (tmp_path / "escape").exists()
    assert not list(tmp_path.glob(".*"))
    obstore.delete(store, path)
    with pytest.raises(ArtifactInvalid, match="not there"):
        await import_remote(transport, "edge", tmp_path / "second", AppendLogSnapshot)


async def test_nothing_published_is_said_and_a_bad_key_is_refused(tmp_path: Path) -> None:
    transport = ObjectStoreTransport(MemoryStore(), "")
    assert await transport.pointer("edge") is None
    with pytest.raises(ArtifactMissing):
        await import_remote(transport, "edge", tmp_path / "second", AppendLogSnapshot)
    with pytest.raises(Misuse):
        await transport.pointer("a/b")


def test_a_pointer_round_trips_and_its_nonce_makes_it_unique() -> None:
    manifest = ExportManifest(1, "sqlite", 1, at(7).encode().hex(), ())
    one, two = (encode_pointer(manifest.encode(), nonce) for nonce in ("1", "2"))
    assert one != two
    assert decode_pointer(one) == decode_pointer(two) == (manifest.encode(), manifest)


# Rounds


@pytest.fixture
async def bucket(memory_lab: MemoryLab) -> Bucket:
    return await memory_lab.bucket()


async def serve_exports(queue: asyncio.Queue[ExportRequest], fold: SnapshotStore) -> None:
    """Answer export requests as `watch_applied` does."""
    while True:
        request = await queue.get()
        request.reply.set_result(export_to(fold, request.directory))


async def test_a_round_publishes_completes_and_cleans_up(
    transport: ObjectStoreTransport, bucket: Bucket, tmp_path: Path
) -> None:
    exports: asyncio.Queue[ExportRequest] = asyncio.Queue()
    work = tmp_path / "work"
    lease = ExportLease(bucket.reader, bucket.writer, "lease", "node-1")
    other = ExportLease(bucket.reader, bucket.writer, "lease", "node-2")
    with AppendLogSnapshot.load(tmp_path / "fold") as fold:
        fold.apply([put("a", b"1", 1)], at(1))
        serving = asyncio.ensure_future(serve_exports(exports, fold))
        outcome = await run_export_round(
            lease, exports, transport, key="edge", work_directory=work, ttl_seconds=60
        )
        assert outcome.outcome is RoundOutcome.PUBLISHED
        again = await run_export_round(
            other, exports, transport, key="edge", work_directory=work, ttl_seconds=60
        )
        assert again.outcome is RoundOutcome.NOT_OURS
        serving.cancel()
    record = await lease.read()
    assert record is not None
    assert record.completed_cursor_hex == at(1).encode().hex()
    assert not list(work.rglob("*"))


async def test_a_superseded_round_frees_the_lease(
    transport: ObjectStoreTransport, bucket: Bucket, tmp_path: Path
) -> None:
    await transport.upload("edge", artifact_at(50, tmp_path / "newer"))
    exports: asyncio.Queue[ExportRequest] = asyncio.Queue()
    lease = ExportLease(bucket.reader, bucket.writer, "lease", "node-1")
    with AppendLogSnapshot.load(tmp_path / "fold") as fold:
        fold.apply([put("a", b"1", 1)], at(1))
        serving = asyncio.ensure_future(serve_exports(exports, fold))
        outcome = await run_export_round(
            lease, exports, transport, key="edge", work_directory=tmp_path / "w", ttl_seconds=60
        )
        serving.cancel()
    assert outcome.outcome is RoundOutcome.SUPERSEDED
    assert await lease.read() is None
    assert not list((tmp_path / "w").rglob("*"))


async def test_a_failed_upload_frees_the_lease_and_is_raised(
    bucket: Bucket, tmp_path: Path
) -> None:
    (tmp_path / "store").mkdir()
    transport = ObjectStoreTransport(LocalStore(tmp_path / "store"), "p")  # It fails closed.
    exports: asyncio.Queue[ExportRequest] = asyncio.Queue()
    lease = ExportLease(bucket.reader, bucket.writer, "lease", "node-1")
    with AppendLogSnapshot.load(tmp_path / "fold") as fold:
        serving = asyncio.ensure_future(serve_exports(exports, fold))
        with pytest.raises(ConditionalPutUnsupported):
            await run_export_round(
                lease, exports, transport, key="e", work_directory=tmp_path / "w", ttl_seconds=60
            )
        serving.cancel()
    assert await lease.read() is None
    assert not list((tmp_path / "w").rglob("*"))
