"""Whom the admin port believes: certificates, authorities and lists may change while it is open."""

from __future__ import annotations

import logging
import ssl
from dataclasses import replace
from pathlib import Path
from typing import Final

from clustor.runtime.admin.server import AdminServer
from clustor.runtime.errors import NodeError
from clustor.runtime.pki.certificate_files import load_certificates
from clustor.runtime.pki.certificate_watch import FILES, FileWatch
from clustor.runtime.pki.identity import AUTHORITY_FILE, GLASS_FILE, REVOCATION_FILE, admin_context
from clustor.runtime.pki.peer_trust import Disbelief, Shown, Trust, fingerprint_of, read_trust
from clustor.security import AuditEvent, AuditPort
from clustor.wall_clock import wall_clock_ms

ENDED: Final = "AdminConnectionEnded"

journal = logging.getLogger("clustor.rotation")


class AdminTrust:
    """The TLS of an admin port, looked at again and again.

    The loop's server keeps the context that it was given, and a context forgets no authority. So
    `context` is only a door: each handshake goes on with one that was made of the newest files.
    """

    def __init__(self, pki: Path, server: AdminServer, audit: AuditPort | None) -> None:
        """Raises CertificateUnusable."""
        self._pki = pki
        self._server = server
        self._audit = audit
        self.context = admin_context(pki)
        self._newest = admin_context(pki)
        self._trust = self._read()
        self.context.sni_callback = self._choose
        files = tuple(pki / name for name in (*FILES, GLASS_FILE))
        self._watch = FileWatch(files, self._renew, NodeError)
        self._watch.look()

    def look(self) -> None:
        """Take changed files into use; end the connections of whom they refuse."""
        if self._watch.look():
            journal.info("the admin port uses new certificates for connections to come")
        self._end_refused(self._trust)

    def _renew(self) -> None:
        newest, trust = admin_context(self._pki), self._read()
        self._newest, self._trust = newest, trust
        self.context.verify_flags = newest.verify_flags  # these stay those of the first context

    def _read(self) -> Trust:
        found = read_trust(self._pki / AUTHORITY_FILE, self._pki / REVOCATION_FILE)
        glass = self._pki / GLASS_FILE
        if not glass.exists():
            return found
        more = {fingerprint_of(each) for each in load_certificates(glass)}
        return replace(found, anchors=found.anchors | more)

    def _choose(self, tls: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        tls.context = self._newest

    def _end_refused(self, trust: Trust) -> None:
        now_ms = wall_clock_ms()
        for shown in self._server.end_where(lambda each: trust.disbelief(each, now_ms) is not None):
            why = trust.disbelief(shown, now_ms)
            assert why is not None
            note_ended(self._audit, shown, why)


def note_ended(audit: AuditPort | None, shown: Shown, why: Disbelief) -> None:
    """Tell the journal and the audit log that a caller was shown out."""
    journal.warning("ended an admin connection of certificate %x: %s", shown.serial, why.value)
    if audit is not None:
        serial = f"certificate/{shown.serial:x}"
        audit.note(
            AuditEvent(
                who="(node)", what=ENDED, outcome=why.name, at_ms=wall_clock_ms(), object=serial
            )
        )
