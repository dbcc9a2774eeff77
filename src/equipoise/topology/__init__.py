"""Graphs of clients."""

from equipoise.topology.topology import Topology

__all__ = ["Topology"]
