"""Whose word about one certificate counts: OCSP, then the list, then a waiver (clustor §12.1).

The first source that is fresh vouches for a certificate; an older one is silent. A revocation is
believed from any of them, fresh or not: nothing takes one back. Pure: ages come in.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from clustor.security.revocation import MAX_STALENESS_MS, SHORT_LIVED_MS


class Source(StrEnum):
    """Who was believed, in the order in which they are asked."""

    OCSP = "OcspStapling"
    CRL = "Crl"
    WAIVER = "Waiver"
    NOBODY = "Nobody"


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known about one certificate. An age of None: this source says nothing about it."""

    ocsp_age_ms: int | None = None
    ocsp_revoked: bool = False
    crl_age_ms: int | None = None
    crl_revoked: bool = False
    waived: bool = False
    lifetime_ms: int = SHORT_LIVED_MS + 1


@dataclass(frozen=True, slots=True)
class RevocationVerdict:
    """Whether the certificate is believed, by whom, and if not, why."""

    source: Source
    problem: str = ""

    @property
    def believed(self) -> bool:
        return not self.problem


def decide_revocation(evidence: Evidence) -> RevocationVerdict:
    """Ask the sources in order."""
    if evidence.ocsp_revoked:
        return RevocationVerdict(Source.OCSP, "its certificate was revoked")
    if evidence.crl_revoked:
        return RevocationVerdict(Source.CRL, "its certificate was revoked")
    if _is_fresh(evidence.ocsp_age_ms):
        return RevocationVerdict(Source.OCSP)
    if _is_fresh(evidence.crl_age_ms):
        return RevocationVerdict(Source.CRL)
    if not evidence.waived:
        return RevocationVerdict(Source.NOBODY, "no revocation data about it is fresh")
    # One of a day or less was made so short to need no list: nobody would have revoked it.
    if evidence.lifetime_ms <= SHORT_LIVED_MS:
        return RevocationVerdict(Source.WAIVER, "short-lived, and no revocation data is fresh")
    return RevocationVerdict(Source.WAIVER)


def _is_fresh(age_ms: int | None) -> bool:
    return age_ms is not None and age_ms <= MAX_STALENESS_MS
