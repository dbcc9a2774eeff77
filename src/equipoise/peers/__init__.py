"""Peers: clients that are processes of their own and exchange models over a network.

A `Peer` sends its model to its neighbors and receives theirs, by a deadline. Neighbors are not
trusted. Import this package as ``eq.peers``.
"""

from equipoise.peers.certificates import make_certificates
from equipoise.peers.credentials import Credentials
from equipoise.peers.grpc_transport import GrpcTransport
from equipoise.peers.in_memory import InMemoryNetwork
from equipoise.peers.malicious_peer import MaliciousPeer
from equipoise.peers.peer import Peer
from equipoise.peers.report import NeighborReport, Report
from equipoise.peers.transport import Endpoint, Incoming, RefusedError, Transport

__all__ = [
    "Credentials",
    "Endpoint",
    "GrpcTransport",
    "InMemoryNetwork",
    "Incoming",
    "MaliciousPeer",
    "NeighborReport",
    "Peer",
    "RefusedError",
    "Report",
    "Transport",
    "make_certificates",
]
