"""Peers: clients that are processes of their own and exchange models over a network."""

from equipoise.peers.certificates import make_certificates
from equipoise.peers.credentials import Credentials
from equipoise.peers.grpc_transport import GrpcTransport
from equipoise.peers.transport import Endpoint, Incoming, RefusedError, Transport

__all__ = [
    "Credentials",
    "Endpoint",
    "GrpcTransport",
    "Incoming",
    "RefusedError",
    "Transport",
    "make_certificates",
]
