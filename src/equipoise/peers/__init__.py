"""Peers: clients that are processes of their own and exchange models over a network."""

from equipoise.peers.transport import Endpoint, Incoming, RefusedError, Transport

__all__ = ["Endpoint", "Incoming", "RefusedError", "Transport"]
