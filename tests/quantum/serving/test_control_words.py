"""What a broker makes of the control plane's records: tables of words, and the plan of rings."""

from __future__ import annotations
