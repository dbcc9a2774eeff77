"""Graphs of clients: the class `Topology`, and the choice of malicious clients."""

from equipoise.topology.gossip_weights import KINDS as GOSSIP_KINDS
from equipoise.topology.gossip_weights import GossipKind
from equipoise.topology.placement import draw_malicious
from equipoise.topology.topology import Topology

__all__ = ["GOSSIP_KINDS", "GossipKind", "Topology", "draw_malicious"]
