"""The package grpc, set up for peers before it is imported."""

from __future__ import annotations

import logging
import os
from typing import Any

from equipoise._utils.optional import import_optional

SERVICE = "equipoise.Peer"
METHOD = "Send"
SIZE = "equipoise-size"  # the key of the metadata with the number of bytes of a message


def import_grpc() -> Any:
    """The module grpc; raise ImportError with the command that installs it."""
    # gRPC writes a line to stderr for each failed handshake, so strangers could fill the disk.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    # Forked processes, such as the workers of a DataLoader, do not use the transport. The handlers
    # of gRPC would stop its threads at each fork, or complain that streams are active.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    import_optional("grpc.aio", "peers")
    # gRPC logs an error with a traceback for each stream that its sender resets before the answer.
    logging.getLogger("grpc._cython.cygrpc").addFilter(_is_not_of_a_stream)
    return import_optional("grpc", "peers")


def _is_not_of_a_stream(record: logging.LogRecord) -> bool:
    return f"/{SERVICE}/" not in record.getMessage()
