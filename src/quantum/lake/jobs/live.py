"""What a running cluster says of itself: the digests of its partitions."""

from __future__ import annotations

import http.client
import json

from clustor.runtime.admin.caller import CredentialsUnusable, DoorRefused, open_http
from clustor.runtime.peers.transport import Address
from quantum.lake.errors import SourceUnreachable

_TIMEOUT_SECONDS = 5.0


def live_digests(addresses: str) -> dict[str, tuple[int, str]]:
    """Ask the first node that answers for (index, digest) of each partition.

    Raises SourceUnreachable.
    """
    problem = "no address"
    for address in addresses.split(","):
        host, _, port = address.rpartition(":")
        if not port.isdecimal():
            problem = f"not an address: {address}"
            continue
        try:
            where = Address(host.strip("[]"), int(port))
            connection = open_http(where, seconds=_TIMEOUT_SECONDS)
        except (OSError, DoorRefused, CredentialsUnusable) as error:
            problem = str(error)
            continue
        try:
            connection.request("GET", "/v1/broker/digests")
            answer = connection.getresponse()
            rows = json.loads(answer.read())["partitions"]
            if not rows:  # a comparison with nothing would find everything equal
                problem = f"{address} serves no partition"
                continue
            return {
                f"{row['tenant']}/{row['partition']}": (int(row["index"]), row["digest"])
                for row in rows
            }
        except (OSError, http.client.HTTPException, ValueError, KeyError) as error:
            problem = str(error)
        finally:
            connection.close()
    raise SourceUnreachable("no node told its digests", addresses=addresses, cause=problem)
