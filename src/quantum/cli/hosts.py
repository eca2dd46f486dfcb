"""`quantum cluster init` and `add-host`: folders for hosts, ready to be copied there."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer

from clustor.log.errors import KeyUnavailable
from clustor.runtime.cluster_file import (
    CLUSTER_FILE,
    NodeList,
    encode_cluster_file,
    read_cluster_file,
)
from clustor.runtime.data_directory import write_durably
from clustor.runtime.errors import NodeError
from clustor.runtime.keys.key_service import KeyService, access_from
from clustor.runtime.keys.store import KEYRING_FILE, KEYS_DIRECTORY
from clustor.runtime.pki.identity import cluster_id, utc_now
from quantum.archive import ArchiveMisuse, open_objects
from quantum.cli.admin_client import AdminUnreachable, post
from quantum.cli.credentials import speak_beside, speaking
from quantum.cli.exits import Exit, fail
from quantum.cli.naming import own_command
from quantum.cli.node_exits import exit_of_node
from quantum.config import BadValue
from quantum.node.host import service_context
from quantum.node.host_folders import (
    CONFIG_FILE,
    OFFICE,
    FoundingPlan,
    HostPlace,
    add_host,
    found_cluster,
)
from quantum.tenants.broker_file import (
    BROKER_FILE,
    DEVELOPMENT_PRGS,
    PRGS_MAX,
    TenantEntry,
    read_broker_file,
)

_HOST: Final = re.compile(r"([a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?)=([A-Za-z0-9.:-]+)")
_HOSTS_MAX: Final = 9

Data = Annotated[Path, typer.Option(help="Where a host keeps its data.")]
Names = Annotated[
    list[str] | None,
    typer.Option(
        "--server-name", metavar="HOST=NAME", help="What clients call a host, too; may be repeated."
    ),
]
OwnAuthority = Annotated[
    bool,
    typer.Option("--own-ca", help="Write signing requests: your own authority certifies."),
]
KmsUrl = Annotated[
    str | None, typer.Option(help="A key service that wraps the key of the ring for each host.")
]
KmsKey = Annotated[str, typer.Option(help="That service's key.")]
KmsRegion = Annotated[str, typer.Option(help="That service's region.")]
PeerPort = Annotated[int, typer.Option(min=1, max=65_535, help="For other nodes.")]
AdminPort = Annotated[int, typer.Option(min=1, max=65_535, help="For operators.")]
MqttsPort = Annotated[int, typer.Option(min=1, max=65_535, help="For MQTT clients.")]
WssPort = Annotated[
    int, typer.Option(min=0, max=65_535, help="MQTT and AMQP over WebSocket; 0: none.")
]


@speaking
def init(
    *,
    hosts: Annotated[
        str, typer.Option(metavar="NAME=ADDRESS,…", help="The hosts, as they reach each other.")
    ],
    out: Annotated[Path, typer.Option(help="An empty directory for the folders.")],
    name: Annotated[str, typer.Option(help="The cluster's name.")] = "prod",
    tenant: Annotated[str, typer.Option(help="Its first tenant.")] = "main",
    tenant_prgs: Annotated[
        int, typer.Option(min=1, max=PRGS_MAX, help="That tenant's partitions.")
    ] = DEVELOPMENT_PRGS,
    data: Data = Path("/var/lib/quantum"),
    server_name: Names = None,
    archive: Annotated[str | None, typer.Option(metavar="URL", help="Where logs go.")] = None,
    own_ca: OwnAuthority = False,
    kms_url: KmsUrl = None,
    kms_key: KmsKey = "",
    kms_region: KmsRegion = "us-east-1",
    peer_port: PeerPort = 7001,
    admin_port: AdminPort = 9080,
    mqtts_port: MqttsPort = 8883,
    wss_port: WssPort = 8084,
    segment_mib: Annotated[int, typer.Option(min=1, max=1024, help="A log's segments.")] = 256,
    disk_override: Annotated[
        str, typer.Option(metavar="REASON", help="Take a disk that the checks refuse.")
    ] = "",
) -> None:
    """Write one folder for each host of a new cluster, and one for its operator.

    Copy OUT/a to host a (as /etc/quantum, say) and run `quantum node start --config
    /etc/quantum/quantum.toml` there. OUT/operator has the authority's key: keep it where no broker
    runs. Nothing is sent anywhere.

    Example: quantum cluster init --hosts a=10.0.0.1,b=10.0.0.2,c=10.0.0.3 --out prod

    Exit code 2: not such hosts. 3: OUT is not empty. 4: the key service refused.
    """
    ports, named = _ports(mqtts_port, wss_port), _names(server_name)
    places = [
        HostPlace(each, address, peer_port, admin_port, ports, named.get(each, ()))
        for each, address in read_hosts(hosts)
    ]
    _check_archive(archive)
    try:
        plan = FoundingPlan(
            cluster_id(name),
            TenantEntry(tenant, tenant_prgs),
            data,
            segment_bytes=segment_mib << 20,
            disk_override=disk_override,
            archive=archive,
            own_authority=own_ca,
            **_service(kms_url, kms_key, kms_region, name),  # type: ignore[arg-type]  # two fields
        )
        found_cluster(out, places, plan, utc_now())
    except KeyUnavailable as error:
        fail(str(error), Exit.WRONG_KEY)
    except NodeError as error:
        fail(str(error), exit_of_node(error))
    _tell(out, [place.name for place in places], own_ca=own_ca)


@speaking
def add_host_command(
    host: Annotated[str, typer.Argument(metavar="NAME=ADDRESS", help="The new host.")],
    *,
    data: Annotated[Path, typer.Option("--data", help="The operator's folder.")],
    out: Annotated[Path, typer.Option(help="An empty directory for the host's folder.")],
    host_data: Data = Path("/var/lib/quantum"),
    server_name: Names = None,
    own_ca: OwnAuthority = False,
    kms_url: KmsUrl = None,
    kms_key: KmsKey = "",
    kms_region: KmsRegion = "us-east-1",
    peer_port: PeerPort = 7001,
    admin_port: AdminPort = 9080,
    mqtts_port: MqttsPort = 8883,
    wss_port: WssPort = 8084,
) -> None:
    """Write the folder of one more host of a running cluster, and list it.

    The newest list of nodes and key ring are asked for first. Copy the folder, start the node
    there, and then let it become a member: `quantum cluster add-node --data OPERATOR`.

    Example: quantum cluster add-host d=10.0.0.4 --data prod/operator --out prod/d

    Exit code 3: OUT is not empty. 12: no node answers.
    """
    (name, address), *_ = read_hosts(host)
    ports = _ports(mqtts_port, wss_port)
    place = HostPlace(
        name, address, peer_port, admin_port, ports, _names(server_name).get(name, ())
    )
    try:
        refresh_office(data)
        cluster = read_cluster_file(data / CLUSTER_FILE)
        plan = FoundingPlan(
            cluster.id,
            read_broker_file(data).tenants[0],
            host_data,
            own_authority=own_ca,
            **_service(kms_url, kms_key, kms_region, cluster.cluster_id),  # type: ignore[arg-type]
        )
        number = add_host(data, out, place, plan, utc_now())
    except KeyUnavailable as error:
        fail(str(error), Exit.WRONG_KEY)
    except NodeError as error:
        fail(str(error), exit_of_node(error))
    typer.echo(f"node {number} of {cluster.id}: {out}")
    typer.echo(f"  on {name}: {own_command()} node start --config /etc/quantum/{CONFIG_FILE}")
    typer.echo(f"  then here: {own_command()} cluster add-node --data {data}")


def refresh_office(office: Path) -> None:
    """Bring the operator's folder to what the cluster knows now; fails where no node answers."""
    cluster = read_cluster_file(office / CLUSTER_FILE)
    silent = ""
    speak_beside(office)
    for entry in cluster.nodes:
        try:
            code, told = post(entry.admin, "/office", {})
        except AdminUnreachable as error:
            silent = str(error)
            continue
        if code != 200:
            silent = f"{entry.admin} answered {code}: {told.get('error') or told.get('message')}"
            continue
        fresh = msgspec.convert(told["list"], NodeList)
        if fresh.version > cluster.list_version:
            known = encode_cluster_file(cluster.listing(fresh))
            write_durably(office / CLUSTER_FILE, known, 0o644)
        write_durably(office / KEYS_DIRECTORY / KEYRING_FILE, told["keyring"].encode())
        write_durably(office / BROKER_FILE, told["broker"].encode(), 0o644)
        return
    fail(f"no node of the cluster answers: {silent}", Exit.UNREACHABLE)


def read_hosts(text: str) -> list[tuple[str, str]]:
    """Read NAME=ADDRESS,…; ends with one sentence for what is none."""
    found = [_HOST.fullmatch(each.strip()) for each in text.split(",")]
    hosts = [(each[1], each[2]) for each in found if each is not None]
    names = {name for name, _ in hosts}
    if len(hosts) != len(found) or len(names) != len(hosts) or OFFICE in names:
        fail(f"hosts are NAME=ADDRESS, each once, with commas between them: {text}", Exit.USAGE)
    if len({address for _, address in hosts}) != len(hosts):
        fail(f"two hosts have one address: {text}", Exit.USAGE)
    if len(hosts) > _HOSTS_MAX:
        fail(f"a cluster begins with {_HOSTS_MAX} hosts at most", Exit.USAGE)
    return hosts


def _names(said: list[str] | None) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for each in said or ():
        host, has_name, name = each.partition("=")
        if not has_name:
            fail(f"--server-name is HOST=NAME: {each}", Exit.USAGE)
        found[host] = (*found.get(host, ()), name)
    return found


def _ports(mqtts: int, wss: int) -> dict[str, int]:
    return {"mqtts": mqtts, **({"wss": wss} if wss else {})}


def _check_archive(url: str | None) -> None:
    if url is not None:
        try:
            open_objects(url)
        except (ArchiveMisuse, BadValue) as error:
            fail(str(error), Exit.USAGE)


def _service(url: str | None, key: str, region: str, cluster: str) -> dict[str, object]:
    """Return what a plan says of a key service; nothing where there is none."""
    if url is None:
        return {}
    if not key:
        fail("--kms-url needs --kms-key", Exit.USAGE)
    access = access_from(os.environ)
    service = KeyService(url, region, key, access, context=service_context(cluster))
    lines = {"kms_url": url, "kms_region": region, "kms_key": key}
    return {"service": service, "service_lines": lines}


def _tell(out: Path, names: list[str], *, own_ca: bool) -> None:
    ours = own_command()
    typer.echo(f"made {', '.join(str(out / name) for name in (*names, OFFICE))}")
    if own_ca:
        typer.echo("  sign every *.csr, and put the .pem and your ca.pem beside it; then")
    typer.echo(f"  check each:      {ours} config check {out / names[0] / CONFIG_FILE}")
    typer.echo("  copy each to its host as /etc/quantum, and there:")
    typer.echo(f"                   {ours} node start --config /etc/quantum/{CONFIG_FILE}")
    typer.echo(f"  look at it:      {ours} cluster status --data {out / OFFICE}")
    typer.echo(f"  a client's certificate: {ours} cert issue NAME --data {out / OFFICE}")
    typer.echo(f"  keep {out / OFFICE} where no broker runs: it has the authorities' keys")
