"""One development authority takes the place of another, while everything that trusts it runs.

    begin     the new authority is trusted beside the old one; the old one still signs
    switch    the new one signs; what the old one has signed is believed to its end
    finish    the old one is trusted no more

Its directory tells how far it is, and each step can be given again where it was interrupted:

    ca.pem        the bundle: who signs first, then who is trusted as well
    ca.key        the key of the first
    ca-next.*     from `begin` to `switch`: who will sign
    ca-old.*      from `switch` to `finish`: who signed before, for its list of revocations
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Final

from cryptography import x509

from clustor.runtime.errors import CertificateUnusable
from clustor.runtime.pki.certificate_files import (
    bundle_pem,
    key_pem,
    replace_file,
)
from clustor.runtime.pki.identity import (
    AUTHORITY_FILE,
    AUTHORITY_KEY_FILE,
    REVOCATION_FILE,
    ClusterId,
    DevelopmentAuthority,
    generation_of,
    load_authority,
    new_authority,
    read_authority,
)
from clustor.runtime.pki.revocation import keep_lists_of, write_revocations

NEXT_FILE: Final = "ca-next.pem"
NEXT_KEY_FILE: Final = "ca-next.key"
OLD_FILE: Final = "ca-old.pem"
OLD_KEY_FILE: Final = "ca-old.key"


class AuthorityPhase(StrEnum):
    """How far a rollover is."""

    NONE = "None"
    BEGUN = "Begun"
    SWITCHED = "Switched"


def phase_of(directory: Path) -> AuthorityPhase:
    """Say how far the authority of a directory is."""
    if (directory / NEXT_KEY_FILE).exists():
        return AuthorityPhase.BEGUN
    return AuthorityPhase.SWITCHED if (directory / OLD_KEY_FILE).exists() else AuthorityPhase.NONE


def begin_rollover(directory: Path, cluster: ClusterId, now: datetime) -> DevelopmentAuthority:
    """Make the next authority, and trust it beside the one that signs; return it.

    Raises CertificateUnusable, also where the authority before was not taken away yet.
    """
    signing = load_authority(directory, cluster)
    if phase_of(directory) is AuthorityPhase.SWITCHED:
        raise CertificateUnusable(
            "the authority before is still trusted: finish that first", directory=str(directory)
        )
    coming = _next(directory, cluster, signing, now)
    lists = directory / REVOCATION_FILE
    if lists.exists():  # where lists are asked, an authority without one vouches for nobody
        write_revocations(coming, {}, lists, now)
    trusted = (signing.certificate, coming.certificate)
    replace_file(directory / AUTHORITY_FILE, bundle_pem(trusted), 0o644)
    return coming


def _next(
    directory: Path, cluster: ClusterId, signing: DevelopmentAuthority, now: datetime
) -> DevelopmentAuthority:
    """Make the next authority, or take up the one of an attempt that was interrupted."""
    file, key_file = directory / NEXT_FILE, directory / NEXT_KEY_FILE
    if key_file.exists() and file.exists():
        return read_authority(file, key_file, cluster)
    number = generation_of(signing.certificate, cluster)
    assert number is not None
    made = new_authority(cluster, now, number + 1)
    replace_file(file, made.bundle_pem, 0o644)
    replace_file(key_file, key_pem(made.key), 0o600)
    return made


def switch_rollover(directory: Path, cluster: ClusterId) -> DevelopmentAuthority:
    """Let the next authority sign, and go on to trust the one before; return who signs now.

    Raises CertificateUnusable where no rollover was begun.
    """
    if phase_of(directory) is not AuthorityPhase.BEGUN:
        raise CertificateUnusable("no rollover was begun here", directory=str(directory))
    coming = read_authority(directory / NEXT_FILE, directory / NEXT_KEY_FILE, cluster)
    if not (directory / OLD_KEY_FILE).exists():
        before = load_authority(directory, cluster)
        if coming.certificate not in before.others:
            raise CertificateUnusable("the next authority is not trusted yet: begin again")
        replace_file(directory / OLD_FILE, bundle_pem([before.certificate]), 0o644)
        replace_file(directory / OLD_KEY_FILE, key_pem(before.key), 0o600)
    old = read_authority(directory / OLD_FILE, directory / OLD_KEY_FILE, cluster)
    replace_file(directory / AUTHORITY_KEY_FILE, key_pem(coming.key), 0o600)
    trusted = (coming.certificate, old.certificate)
    replace_file(directory / AUTHORITY_FILE, bundle_pem(trusted), 0o644)
    (directory / NEXT_KEY_FILE).unlink()
    (directory / NEXT_FILE).unlink()
    return load_authority(directory, cluster)


def finish_rollover(directory: Path, cluster: ClusterId) -> DevelopmentAuthority:
    """Trust the authority that signs and no other; return it.

    Raises CertificateUnusable where the new one does not sign yet.
    """
    if phase_of(directory) is AuthorityPhase.BEGUN:
        raise CertificateUnusable(
            "the new authority does not sign yet: switch first", directory=str(directory)
        )
    signing = load_authority(directory, cluster)
    # The list first: for a moment the old one vouches for nobody, and soon for good.
    keep_lists_of([signing.certificate], directory / REVOCATION_FILE)
    replace_file(directory / AUTHORITY_FILE, bundle_pem([signing.certificate]), 0o644)
    (directory / OLD_KEY_FILE).unlink(missing_ok=True)
    (directory / OLD_FILE).unlink(missing_ok=True)
    return load_authority(directory, cluster)


def authority_for(
    directory: Path, cluster: ClusterId, certificate: x509.Certificate
) -> DevelopmentAuthority:  # fmt: skip
    """Return the authority that signed a certificate: the one that signs, or the one before.

    Raises CertificateUnusable for a stranger's.
    """
    signing = load_authority(directory, cluster)
    if certificate.issuer == signing.certificate.subject:
        return signing
    if phase_of(directory) is AuthorityPhase.SWITCHED:
        old = read_authority(directory / OLD_FILE, directory / OLD_KEY_FILE, cluster)
        if certificate.issuer == old.certificate.subject:
            return old
    raise CertificateUnusable("the certificate is of another authority")
