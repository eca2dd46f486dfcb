"""The order of clustor §12.1, case by case: OCSP, then the list, then a waiver."""

from __future__ import annotations

import itertools

import pytest

from clustor.security.revocation import MAX_STALENESS_MS, SHORT_LIVED_MS
from clustor.security.revocation_order import Evidence, Source, decide_revocation

FRESH, OLD = MAX_STALENESS_MS, MAX_STALENESS_MS + 1
CASES = {
    "both are fresh": (Evidence(ocsp_age_ms=FRESH, crl_age_ms=0), Source.OCSP, ""),
    "no answer": (Evidence(crl_age_ms=FRESH), Source.CRL, ""),
    "an old answer": (Evidence(ocsp_age_ms=OLD, crl_age_ms=0), Source.CRL, ""),
    "no list": (Evidence(ocsp_age_ms=0), Source.OCSP, ""),
    "both are old": (Evidence(ocsp_age_ms=OLD, crl_age_ms=OLD), Source.NOBODY, "is fresh"),
    "nothing": (Evidence(), Source.NOBODY, "is fresh"),
    "a waiver": (Evidence(ocsp_age_ms=OLD, waived=True), Source.WAIVER, ""),
    "a waiver is not asked": (Evidence(crl_age_ms=0, waived=True), Source.CRL, ""),
    "short-lived": (
        Evidence(waived=True, lifetime_ms=SHORT_LIVED_MS), Source.WAIVER, "short-lived"
    ),
    "short-lived, fresh": (Evidence(ocsp_age_ms=0, lifetime_ms=1), Source.OCSP, ""),
    "OCSP revokes": (Evidence(ocsp_age_ms=0, ocsp_revoked=True), Source.OCSP, "revoked"),
    "the list revokes": (
        Evidence(ocsp_age_ms=0, crl_age_ms=0, crl_revoked=True), Source.CRL, "revoked"
    ),
}  # fmt: skip


@pytest.mark.parametrize(("evidence", "source", "problem"), CASES.values(), ids=CASES.keys())
def test_the_sources_are_asked_in_order(evidence: Evidence, source: Source, problem: str) -> None:
    verdict = decide_revocation(evidence)
    assert verdict.source is source
    assert problem in verdict.problem and verdict.believed == (not problem)


def test_nothing_takes_a_revocation_back() -> None:
    ages, words = (None, 0, FRESH, OLD), (True, False)
    for ocsp, crl, waived, first in itertools.product(ages, ages, words, words):
        revoked = Evidence(
            ocsp_age_ms=ocsp,
            crl_age_ms=crl,
            waived=waived,
            ocsp_revoked=first,
            crl_revoked=not first,
        )
        assert not decide_revocation(revoked).believed
