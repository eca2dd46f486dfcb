"""The whole broker on simulated disks, networks and clocks: one seed is one run, byte by byte."""

from __future__ import annotations

from quantum.sim.run import BrokerReport, run_broker_seed

__all__ = ["BrokerReport", "run_broker_seed"]
