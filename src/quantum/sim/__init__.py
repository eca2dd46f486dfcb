"""The whole broker on simulated disks, networks and clocks: one seed is one run, byte by byte."""

from __future__ import annotations

from quantum.sim.run import run_broker_scenario, run_broker_seed, run_growing_seed, run_sickly_seed
from quantum.sim.topics import run_topic_scenario, run_topic_seed

__all__ = [
    "run_broker_scenario",
    "run_broker_seed",
    "run_growing_seed",
    "run_sickly_seed",
    "run_topic_scenario",
    "run_topic_seed",
]
