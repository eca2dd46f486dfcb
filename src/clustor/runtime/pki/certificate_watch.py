"""Certificates and revocation lists that change on disk while a node runs.

A handshake uses what the files held when it began; an open connection is left alone. The files of
a pair are replaced one after the other, so for a moment they do not fit: then the old ones stay in
use, and the next look tries again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from clustor.runtime.containment import contained
from clustor.runtime.errors import CertificateUnusable, NodeError
from clustor.runtime.peers.transport import Transport
from clustor.runtime.pki.certificate_files import load_certificate, load_certificates
from clustor.runtime.pki.identity import (
    AUTHORITY_FILE,
    CERTIFICATE_FILE,
    ISSUING_SKEW,
    KEY_FILE,
    REVOCATION_FILE,
    utc_now,
)
from clustor.runtime.pki.ocsp import ASK_AFTER_MS, OCSP_DIRECTORY, OcspAsking, OcspCache, Subject
from clustor.runtime.pki.peer_trust import Shown, Trust, fingerprint_of, read_trust
from clustor.runtime.pki.revocation import lists_end
from clustor.security import (
    AuditEvent,
    AuditPort,
    Feed,
    FeedFreshness,
    RevocationFreshness,
    SecurityMisuse,
)
from clustor.security.revocation import WAIVER_MS_MAX
from clustor.security.revocation_order import Evidence, decide_revocation
from clustor.wall_clock import wall_clock_ms

LOOK_SECONDS: Final = 1.0
_WANTED_MAX: Final = 1_024

journal = logging.getLogger("clustor.rotation")

Stamp = tuple[int, int, int]
Stamps = tuple[Stamp | None, ...]


class FileWatch:
    """Calls `reload` when one of these files was replaced, until it succeeds."""

    def __init__(
        self, files: tuple[Path, ...], reload: Callable[[], None], refusals: type[Exception]
    ) -> None:
        """`refusals` is what an unusable file raises. The first look loads, and is no renewal."""
        self._files = files
        self._reload = reload
        self._refusals = refusals
        self._loaded: Stamps | None = None
        self._refused: Stamps | None = None
        self.renewals = 0

    def look(self) -> bool:
        """Return whether new content was loaded."""
        found = self._stamps()
        if found == self._loaded:
            return False
        try:
            self._reload()
        except self._refusals as error:
            if found != self._refused:
                journal.warning("new files are not used yet: %s", error)
            self._refused = found
            return False
        is_first, self._loaded = self._loaded is None, found
        self.renewals += not is_first
        return not is_first

    def _stamps(self) -> Stamps:
        return tuple(stamp_of(file) for file in self._files)


def stamp_of(file: Path) -> Stamp | None:
    """Return what tells one content of a file from another; None where there is none."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size


FILES: Final = (CERTIFICATE_FILE, KEY_FILE, AUTHORITY_FILE, REVOCATION_FILE)


class NodeTrust:
    """What a node's transport believes: renewed certificates, revoked peers, its own quarantine."""

    def __init__(
        self,
        transport: Transport,
        pki: Path,
        audit: AuditPort | None,
        now_ms: Callable[[], int],
        ocsp_url: str = "",
    ) -> None:
        """`now_ms` is the monotonic clock; `ocsp_url` is a responder that may be asked."""
        self._transport = transport
        self._pki = pki
        self._audit = audit
        self._now_ms = now_ms
        self._watch = FileWatch(
            tuple(pki / name for name in FILES),
            transport.renew,
            NodeError,
        )
        self._trust: Trust | None = None
        self._trust_stamps: Stamps = ()
        self._refused_stamps: Stamps = ()
        self._listed_ms: int | None = None
        self._lists_end: datetime | None = None
        """When the first list of the file ends, after which it is no answer."""
        self._ocsp = OcspCache(pki / OCSP_DIRECTORY, now_ms)
        self._asking = OcspAsking(ocsp_url, pki / OCSP_DIRECTORY) if ocsp_url else None
        self._wanted: set[Subject] = set()
        """Whose certificates a responder is asked about."""
        # Without any source at the start nothing is checked: development clusters begin that way.
        is_checked = (pki / REVOCATION_FILE).exists() or self._ocsp.is_used or bool(ocsp_url)
        self.freshness = RevocationFreshness(now_ms()) if is_checked else None
        self.waivers: Callable[[], Iterable[tuple[str, int]]] = tuple
        """Who waives fresh revocation data now, and for how many ms; asked before a quarantine."""
        transport.disbelief = self.disbelief
        self.look()

    @property
    def renewals(self) -> int:
        """How often new files were taken into use."""
        return self._watch.renewals

    def look(self) -> None:
        """Take what changed into use; end what is no longer believed."""
        if self._watch.look():
            journal.info("new certificates are in use for connections to come")
            self._note("CertificateRenewed", "Done", str(self._pki))
        self._read_list()
        self._read_answers()
        if self.freshness is not None:
            self._take_waiver(self.freshness)
            self._judge(self.freshness)
        self._end_refused()

    def waive(self, waiver_id: str, ttl_ms: int) -> None:
        """Go on without fresh revocation data for a while; raises SecurityMisuse.

        A node that checks none has nothing to waive.
        """
        if self.freshness is None:
            raise SecurityMisuse("this node checks no revocation data")
        self.freshness.on_waiver(waiver_id, ttl_ms, self._now_ms())
        journal.warning("revocation data is waived for %d s by %s", ttl_ms // 1_000, waiver_id)
        self._note("RevocationWaived", "Done", waiver_id)
        self._judge(self.freshness)

    def _take_waiver(self, freshness: RevocationFreshness) -> None:
        """Use a waiver that was not used yet, if one is needed to go on."""
        if freshness.status(self._now_ms()).freshness is not FeedFreshness.QUARANTINED:
            return
        for waiver_id, ttl_ms in self.waivers():
            if ttl_ms > 0 and not freshness.was_used(waiver_id):
                self.waive(waiver_id, min(ttl_ms, WAIVER_MS_MAX))
                return

    def _read_list(self) -> None:
        """Ask the feed. The file is the distribution point, and its answer is of now."""
        bundle, lists = self._pki / AUTHORITY_FILE, self._pki / REVOCATION_FILE
        stamps = stamp_of(bundle), stamp_of(lists)
        if stamps != self._trust_stamps:
            try:
                self._trust = self._newest(read_trust(bundle, lists))
                self._lists_end = lists_end(lists)
            except CertificateUnusable as error:
                if stamps != self._refused_stamps:
                    journal.warning("a trust bundle or its lists are not used: %s", error)
                self._refused_stamps = stamps
                return
            self._trust_stamps = stamps
        if stamps[1] is None:
            return  # a feed that does not answer: its silence is what counts
        if self._lists_end is None or utc_now() < self._lists_end:
            self.freshness = self.freshness or RevocationFreshness(self._now_ms())
            self._listed_ms = self._now_ms()
            self.freshness.on_feed(Feed.CRL, 0, self._listed_ms)

    def _read_answers(self) -> None:
        """Take what the responder said, before the list is asked; let it be asked in time."""
        if self._asking is None and not self._ocsp.is_used:
            return
        try:
            authorities = load_certificates(self._pki / AUTHORITY_FILE)
            own = load_certificate(self._pki / CERTIFICATE_FILE)
        except CertificateUnusable:
            return  # said elsewhere, and the next look tries again
        self._ocsp.look(authorities)
        age_ms = self._ocsp.newest_age_ms()
        if age_ms is not None:
            self.freshness = self.freshness or RevocationFreshness(self._now_ms())
            self.freshness.on_feed(Feed.OCSP, age_ms, self._now_ms())
        if self._asking is not None:
            by_print = {fingerprint_of(each): each for each in authorities}
            issuer = next((e for e in authorities if e.subject == own.issuer), None)
            ours = {Subject(fingerprint_of(issuer), own.serial_number)} if issuer else set()
            due = [each for each in self._wanted | ours if self._is_due(each)]
            self._asking.ask((by_print[e.issuer], e.serial) for e in due if e.issuer in by_print)

    def _is_due(self, subject: Subject) -> bool:
        age_ms = self._ocsp.age_ms(subject)
        return age_ms is None or age_ms >= ASK_AFTER_MS

    def _newest(self, found: Trust) -> Trust:
        """A list that went missing takes nothing back of what it said."""
        if self._trust is None or (self._pki / REVOCATION_FILE).exists():
            return found
        return replace(found, revoked=self._trust.revoked)

    def _judge(self, freshness: RevocationFreshness) -> None:
        status = freshness.status(self._now_ms())
        is_shut = status.freshness is FeedFreshness.QUARANTINED
        if is_shut and self._transport.quarantined is None:
            journal.critical("quarantine: %s", status.reason)
            self._note("RevocationQuarantine", "Entered", status.reason)
            self._transport.quarantine(status.reason)
        elif not is_shut and self._transport.quarantined is not None:
            journal.warning("quarantine has ended: %s", status.freshness)
            self._note("RevocationQuarantine", "Left", status.freshness.value)
            self._transport.lift()

    def _end_refused(self) -> None:
        refused = self._transport.end_where(lambda shown: self.disbelief(shown) is not None)
        for peer in refused:
            self._note("PeerConnectionEnded", "CertificateRefused", f"node/{peer}")

    def disbelief(self, shown: Shown) -> str | None:
        """Say why a peer is not believed now; None: it is.

        OCSP is asked first, then the list, then a waiver (clustor §12.1).
        """
        why = None if self._trust is None else self._trust.disbelief(shown, wall_clock_ms())
        if why is not None:
            return why.value
        freshness, now_ms = self.freshness, self._now_ms()
        if freshness is None:
            return None
        subject = Subject(shown.issuer, shown.serial)
        if len(self._wanted) >= _WANTED_MAX:
            self._wanted.clear()  # those that are still there are named again within a second
        self._wanted.add(subject)
        evidence = Evidence(
            ocsp_age_ms=self._ocsp.age_ms(subject),
            ocsp_revoked=self._ocsp.is_revoked(subject),
            crl_age_ms=self._list_age_ms(),
            waived=freshness.status(now_ms).freshness is FeedFreshness.WAIVED,
            lifetime_ms=shown.lifetime_ms - ISSUING_SKEW // timedelta(milliseconds=1),
        )
        return decide_revocation(evidence).problem or None

    def _list_age_ms(self) -> int | None:
        """Say how long ago the list was there to be asked; None: it never was."""
        return None if self._listed_ms is None else self._now_ms() - self._listed_ms

    def _note(self, what: str, outcome: str, target: str) -> None:
        if self._audit is not None:
            self._audit.note(
                AuditEvent(
                    who="(node)", what=what, outcome=outcome, at_ms=wall_clock_ms(), object=target
                )
            )


class RepeatedCall:
    """Calls something again and again, in the loop, until it is stopped."""

    def __init__(self, call: Callable[[], None], seconds: float = LOOK_SECONDS) -> None:
        self._call = call
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(seconds, self._run)

    def _run(self) -> None:
        self._timer = self._loop.call_later(self._seconds, self._run)
        contained.run("duty", getattr(self._call, "__qualname__", ""), self._call)

    def stop(self) -> None:
        self._timer.cancel()
