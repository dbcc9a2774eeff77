"""Graphs of clients: the class `Topology`, and the choice of malicious clients."""

from equipoise.topology.placement import draw_malicious
from equipoise.topology.topology import Topology

__all__ = ["Topology", "draw_malicious"]
