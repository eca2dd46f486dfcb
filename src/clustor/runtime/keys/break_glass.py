"""The authorities of break-glass certificates: one for each epoch, for 45 days (clustor §12.4).

They stand below the cluster's authority and sign nothing but certificates for emergencies. That
authority lets no other stand below it, so peers do not believe them; an admin port does while they
are in its `break-glass.pem`, with the empty list that checking asks for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from clustor.log.errors import KeyUnavailable
from clustor.runtime.data_directory import write_durably
from clustor.runtime.keys.device import DeviceKey
from clustor.runtime.pki.certificate_files import bundle_pem, load_certificate
from clustor.runtime.pki.identity import GLASS_FILE, DevelopmentAuthority, new_intermediate

GLASS_CA_LIFETIME: Final = timedelta(days=45)


class GlassCertificates:
    """The certificates of these authorities, in the directory of the cluster's own."""

    def __init__(
        self,
        pki: Path,
        authority: Callable[[], DevelopmentAuthority],
        publish: Callable[[bytes], None] = lambda _bundle: None,
    ) -> None:
        """`publish` gives a bundle to every node; `authority` is who signs for the cluster."""
        self._pki = pki
        self._authority = authority
        self._publish = publish

    def certify(self, epoch: int, key: DeviceKey, now_ms: int) -> None:
        """Let the cluster's authority sign for a new one; what was signed is not replaced."""
        path = self._path(epoch)
        if not path.exists():
            now = datetime.fromtimestamp(now_ms / 1000, UTC)
            cluster = self._authority()
            name = f"{cluster.cluster_id} break-glass authority {epoch}"
            made = new_intermediate(cluster, key.public_key(), name, now, GLASS_CA_LIFETIME)
            write_durably(path, bundle_pem([made]), 0o644)

    def give(self, keys: Iterable[tuple[int, DeviceKey]], now_ms: int) -> None:
        """Let the admin ports believe these authorities, and no other."""
        bundle = b"".join(self._with_list(epoch, key, now_ms) for epoch, key in keys)
        write_durably(self._pki / GLASS_FILE, bundle, 0o644)
        self._publish(bundle)

    def _with_list(self, epoch: int, key: DeviceKey, now_ms: int) -> bytes:
        certificate = load_certificate(self._path(epoch))
        begins = min(datetime.fromtimestamp(now_ms / 1000, UTC), certificate.not_valid_after_utc)
        nothing = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(certificate.subject)
            .last_update(begins - timedelta(minutes=5))
            .next_update(certificate.not_valid_after_utc)
            .sign(key, None)
        )
        return bundle_pem([certificate]) + nothing.public_bytes(Encoding.PEM)

    def authority(self, epoch: int, key: DeviceKey, ends_by: datetime) -> DevelopmentAuthority:
        """Return who signs break-glass certificates; raises KeyUnavailable past its own end."""
        certificate = load_certificate(self._path(epoch))
        if ends_by > certificate.not_valid_after_utc:
            raise KeyUnavailable(
                "the break-glass authority ends before: `quantum keys rotate` first",
                ends=certificate.not_valid_after_utc.isoformat(),
            )
        return DevelopmentAuthority(self._authority().cluster_id, certificate, key)

    def forget(self, epoch: int) -> None:
        self._path(epoch).unlink(missing_ok=True)

    def _path(self, epoch: int) -> Path:
        return self._pki / f"break-glass-ca-{epoch}.pem"
