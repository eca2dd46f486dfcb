"""Clustor: the consensus core. It promises that what was acknowledged is on a quorum's disks."""
