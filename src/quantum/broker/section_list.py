"""The sections that every partition of this build has."""

from __future__ import annotations

from typing import Final

from quantum.broker.queues import TransactingSection
from quantum.broker.sections import SectionFactory
from quantum.broker.streams.section import StreamSection

SECTIONS: Final[tuple[SectionFactory, ...]] = (StreamSection, TransactingSection)
