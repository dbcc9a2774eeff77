"""Graphs of clients: the class `Topology`, and the generators of random graphs."""

from equipoise.topology.topology import Topology

__all__ = ["Topology"]
