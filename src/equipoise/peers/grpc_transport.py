"""Messages between peers over gRPC."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import socket
import threading
import weakref
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from equipoise._utils.validation import check_flag, check_number, describe
from equipoise.peers._addresses import checked_address, host_and_port, is_loopback
from equipoise.peers._background_loop import BackgroundLoop, background_loop
from equipoise.peers._freed_memory import keep_freed_memory
from equipoise.peers._grpc_client import GrpcClient
from equipoise.peers._grpc_package import import_grpc
from equipoise.peers._grpc_server import GrpcServer
from equipoise.peers.credentials import Credentials, check_peer_name
from equipoise.peers.transport import CHUNK_BYTES, Endpoint

_CLOSING = 2.0  # seconds


class _Running(NamedTuple):
    """The parts of a transport that exist from its start on."""

    background: BackgroundLoop
    server: GrpcServer
    client: GrpcClient


class GrpcTransport:
    """Carries messages over gRPC, each as one stream of chunks of at most ``CHUNK_BYTES``.

    Args:
        name: the name of this peer.
        neighbors: the address of each neighbor, ``"host:port"``.
        listen: where this peer listens, ``"host:port"``. Port 0 picks a free one, see `address`.
        credentials: proof of the name, for mutual TLS. Both ends of a connection must present a
            certificate of the same authority, and the one that accepts it must be the neighbor that
            the other end wanted to reach.
        insecure: allow addresses beyond this machine without credentials: all others on the network
            can read the messages, change them and send them in the name of a neighbor.
        patience: how many seconds an incoming message may take.

    Without credentials, only loopback addresses are allowed, unless ``insecure``.

    Others cannot use up this process: it accepts at most 64 connections, or four per neighbor if
    that is more, and at most half as many as the files that it may open. A stream holds at most
    4 MiB that are not read yet, and has to arrive in chunks of 64 KiB or more on average, besides
    the first 16. A neighbor that reads a long message and asks for it again gets it four times.

    >>> from equipoise.peers import GrpcTransport
    >>> transport = GrpcTransport("a", {"b": "127.0.0.1:7001"}, listen="127.0.0.1:7000")
    >>> transport.address
    '127.0.0.1:7000'
    """

    def __init__(
        self,
        name: str,
        neighbors: Mapping[str, str],
        *,
        listen: str,
        credentials: Credentials | None = None,
        insecure: bool = False,
        patience: float = 60.0,
    ) -> None:
        check_flag("insecure", insecure)
        check_number("patience", patience, positive=True)
        if credentials is not None:
            _check_credentials(credentials, name)
        self._local_only = credentials is None and not insecure
        self._credentials = credentials
        self._patience = patience
        self._address = self._checked("listen", listen, free=True)
        self._addresses: dict[str, str] = {}
        for neighbor, address in neighbors.items():
            if credentials is not None:
                # No certificate states another name, so the neighbor would be absent for ever.
                check_peer_name("each neighbor", neighbor)
            self._addresses[neighbor] = self._checked(f"the address of {neighbor!r}", address)
        self._grpc = import_grpc()
        self._lock = threading.Lock()
        self._state = "new"
        self._running: _Running | None = None

    @property
    def address(self) -> str:
        """Where the transport listens. A port of 0 becomes the true one in `start`."""
        return self._address

    def set_address(self, neighbor: str, address: str) -> None:
        """Reach a neighbor at another address from the next message on."""
        self._check_neighbor(neighbor)
        self._addresses[neighbor] = self._checked(f"the address of {neighbor!r}", address)
        running = self._running
        if running is not None and running.background.pid == os.getpid():
            loop = running.background.loop
            loop.call_soon_threadsafe(running.client.forget_channel, neighbor)

    def start(self, endpoint: Endpoint) -> None:
        """Listen, and pass incoming messages to the endpoint until `close`.

        Raises:
            OSError: the address is taken or is not one of this machine.
            RuntimeError: the transport was started before.
        """
        with self._lock:
            if self._state != "new":
                raise RuntimeError(f"a transport starts once, this one is {self._state}")
            _check_free(self._address)
            keep_freed_memory()
            own = self._credentials
            running = self._running = _Running(
                background_loop(),
                GrpcServer(self._grpc, endpoint, own, self._patience),
                GrpcClient(self._grpc, self._addresses, endpoint, own),
            )
            self._state = "started"
        _open_transports.add(self)
        try:
            listening = running.server.start(self._address, len(self._addresses))
            port = running.background.submit(listening).result()
            self._address = f"{self._address.rpartition(':')[0]}:{port}"
        except BaseException:
            self.close()
            raise

    def send(self, neighbor: str, chunks: Sequence[bytes], timeout: float) -> None:
        """Send the chunks as one message, in the background, within ``timeout`` seconds.

        While the neighbor cannot be reached or is busy, the transport tries again. In the end it
        calls `Endpoint.sent` once, with one of the errors "unreachable", "timed out", "closed" and
        "refused: " with the neighbor's reason.
        """
        self._check_neighbor(neighbor)
        check_number("timeout", timeout)
        longest = max(map(len, chunks), default=0)
        if longest > CHUNK_BYTES:
            raise ValueError(f"chunks must have at most {CHUNK_BYTES} bytes, found {longest}")
        with self._lock:
            running = self._running
            if self._state != "started" or running is None:
                raise RuntimeError(f"only a started transport sends, this one is {self._state}")
            if running.background.pid != os.getpid():
                raise RuntimeError("a transport sends only in the process that started it")
            loop = running.background.loop
            loop.call_soon_threadsafe(running.client.send, neighbor, chunks, timeout)

    def close(self) -> None:
        """Stop listening and sending, within a few seconds. A second call does nothing."""
        with self._lock:
            running = self._running
            was_open = self._state == "started"
            self._state = "closed"
        _open_transports.discard(self)
        # The process that forked this one closes the connections.
        if not was_open or running is None or running.background.pid != os.getpid():
            return
        # Without the lock: the endpoint may use the transport meanwhile.
        done = running.background.submit(_stop(running))
        if not running.background.is_own_thread():
            with contextlib.suppress(TimeoutError):
                done.result(timeout=2 * _CLOSING)

    def _check_neighbor(self, neighbor: str) -> None:
        if neighbor not in self._addresses:
            known = ", ".join(self._addresses)
            raise ValueError(f"neighbor must be one of {known}, found {neighbor!r}")

    def _checked(self, argument: str, address: object, *, free: bool = False) -> str:
        checked = checked_address(argument, address, free=free)
        if self._local_only and not is_loopback(checked):
            raise ValueError(
                f"{argument} must be a loopback address without credentials, found {address!r}: "
                "pass credentials (equipoise peers certificates makes them), or insecure=True if "
                "all machines of the network are trusted"
            )
        return checked


def _check_credentials(credentials: object, name: str) -> None:
    """Raise unless they are the credentials of this peer."""
    if not isinstance(credentials, Credentials):
        expected = f"Credentials, as Credentials.load(folder, {name!r}) reads them"
        # Only the type: it may be a key.
        raise ValueError(f"credentials must be {expected}, found {describe(credentials)}")
    if credentials.name != name:
        raise ValueError(f"credentials must be of {name!r}, found those of {credentials.name!r}")


async def _stop(running: _Running) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_CLOSING):
            await running.client.cancel()
            await running.server.stop()
            await running.client.close()


_open_transports: weakref.WeakSet[GrpcTransport] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for transport in list(_open_transports):
        transport.close()


def _check_free(address: str) -> None:
    """Raise an OSError with its true cause; gRPC has none."""
    host, port = host_and_port(address)
    try:
        family, _, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            # As gRPC does: the port of a peer that was killed is free at once.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(place)
    except OSError as error:
        raise OSError(error.errno, f"cannot listen on {address}: {error.strerror}") from error
