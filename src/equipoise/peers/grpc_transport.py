"""Messages between peers over gRPC."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import errno
import logging
import os
import random
import socket
import threading
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from equipoise._utils.optional import import_optional
from equipoise._utils.validation import check_flag, check_number
from equipoise.peers import _grpc_options
from equipoise.peers._addresses import checked_address, host_and_port, is_loopback
from equipoise.peers._background_loop import BackgroundLoop, background_loop
from equipoise.peers._freed_memory import FreedMemory, keep_freed_memory
from equipoise.peers.credentials import Credentials, authenticated_name
from equipoise.peers.transport import CHUNK_BYTES, Endpoint, RefusedError

_SERVICE = "equipoise.Peer"
_SIZE = "equipoise-size"
_LONGEST_REASON = 80
_CLOSING = 2.0  # seconds
_GRACE = 0.5  # seconds, for streams that are open
# Each chunk costs time, however small it is. The transport sends the largest ones.
_SMALL_CHUNK = 1 << 16
_MOST_SMALL_CHUNKS = 16
_MOST_RESENDS = 3  # of messages that were read further than their header
_FAR = 2 * _grpc_options.WINDOW_BYTES  # no neighbor that reads a header only lets so much through


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

    Others cannot use up this process: it accepts at most 1,000 connections, and at most half as
    many as the files that it may open. A stream holds at most 4 MiB that are not read yet, and has
    to arrive in chunks of 64 KiB or more on average, besides the first 16. A neighbor that reads a
    long message and asks for it again gets it four times.

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
        if credentials is not None and credentials.name != name:
            raise ValueError(
                f"credentials must be of {name!r}, found those of {credentials.name!r}"
            )
        self._local_only = credentials is None and not insecure
        self._credentials = credentials
        self._patience = patience
        self._address = self._checked("listen", listen, free=True)
        self._addresses: dict[str, str] = {}
        for neighbor, address in neighbors.items():
            self._addresses[neighbor] = self._checked(f"the address of {neighbor!r}", address)
        self._grpc = _import_grpc()
        self._lock = threading.Lock()
        self._state = "new"
        self._background: BackgroundLoop | None = None
        self._freed = FreedMemory()
        self._endpoint: Endpoint | None = None
        self._server: Any = None
        self._channels: dict[str, Any] = {}
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def address(self) -> str:
        """Where the transport listens. A port of 0 becomes the true one in `start`."""
        return self._address

    def set_address(self, neighbor: str, address: str) -> None:
        """Reach a neighbor at another address from the next message on."""
        self._check_neighbor(neighbor)
        self._addresses[neighbor] = self._checked(f"the address of {neighbor!r}", address)
        background = self._background
        if background is not None and background.pid == os.getpid():
            background.loop.call_soon_threadsafe(self._forget_channel, neighbor)

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
            self._endpoint = endpoint
            self._background = background_loop()
            self._state = "started"
        _open_transports.add(self)
        try:
            self._background.submit(self._start()).result()
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
            if self._state != "started" or self._background is None:
                raise RuntimeError(f"only a started transport sends, this one is {self._state}")
            if self._background.pid != os.getpid():
                raise RuntimeError("a transport sends only in the process that started it")
            self._background.loop.call_soon_threadsafe(self._begin_send, neighbor, chunks, timeout)

    def close(self) -> None:
        """Stop listening and sending, within a few seconds. A second call does nothing."""
        with self._lock:
            started = self._state == "started"
            self._state = "closed"
        _open_transports.discard(self)
        background = self._background
        # The process that forked this one closes the connections.
        if not started or background is None or background.pid != os.getpid():
            return
        # Without the lock: the endpoint may use the transport meanwhile.
        done = background.submit(self._stop())
        if not background.is_own_thread():
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

    # All methods below run in the background loop.

    async def _start(self) -> None:
        aio = self._grpc.aio
        connections = _grpc_options.most_connections(len(self._addresses))
        most = ("grpc.max_allowed_incoming_connections", connections)
        self._server = aio.server(options=[*_grpc_options.SERVER, most])
        method = self._grpc.stream_unary_rpc_method_handler(self._receive)
        handler = self._grpc.method_handlers_generic_handler(_SERVICE, {"Send": method})
        self._server.add_generic_rpc_handlers((handler,))
        try:
            port = self._bind()
        except RuntimeError:
            port = 0
        if port == 0:
            raise OSError(errno.EADDRINUSE, f"cannot listen on {self._address}")
        self._address = f"{self._address.rpartition(':')[0]}:{port}"
        await self._server.start()

    def _bind(self) -> int:
        if self._credentials is None:
            return int(self._server.add_insecure_port(self._address))
        own = self._credentials
        tls = self._grpc.ssl_server_credentials(
            [(own.key, own.certificate)], own.authority, require_client_auth=True
        )
        return int(self._server.add_secure_port(self._address, tls))

    async def _stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSING):
                await asyncio.gather(*self._tasks, return_exceptions=True)
                if self._server is not None:
                    # Replies on their way get through: a neighbor that misses the reply to its
                    # last message would send it again, to nobody.
                    await self._server.stop(_GRACE)
                for channel in self._channels.values():
                    await channel.close()
        self._server = None
        self._channels.clear()

    async def _receive(self, _: object, context: Any) -> bytes:
        code, reason = await self._answer(context)
        # Not context.abort: its exception refers to the call and the call to it, so that what the
        # neighbor has sent would stay in memory until Python looks for such cycles.
        context.set_code(code)
        context.set_details(reason)
        if code is not self._grpc.StatusCode.OK:
            # Not after messages that were taken: the next ones use the same memory again.
            self._freed.give_back()
        return b""

    async def _answer(self, context: Any) -> tuple[Any, str]:
        status = self._grpc.StatusCode
        sender = None
        if self._credentials is not None:
            sender = authenticated_name(context.auth_context())
            if sender is None:
                return status.UNAUTHENTICATED, "unauthenticated"
        try:
            async with asyncio.timeout(self._patience):
                await self._read(sender, context, _declared_size(context))
        except RefusedError as refused:
            code = status.RESOURCE_EXHAUSTED if refused.busy else status.INVALID_ARGUMENT
            return code, refused.reason
        except TimeoutError:
            return status.DEADLINE_EXCEEDED, "too slow"
        return status.OK, ""

    async def _read(self, sender: str | None, context: Any, size: int) -> None:
        assert self._endpoint is not None
        incoming = self._endpoint.open(sender)
        received = 0
        room = _MOST_SMALL_CHUNKS
        try:
            # Not the iterator of gRPC: it refers to itself, and so it keeps what has not been read.
            while (chunk := await context.read()) is not self._grpc.aio.EOF:
                received += len(chunk)
                room += len(chunk) // _SMALL_CHUNK - 1
                if room < 0:
                    raise RefusedError("malformed: too many small chunks")
                incoming.write(chunk)
            # A broken connection ends the iteration in the same way as the last chunk, so only the
            # size tells them apart.
            if received != size:
                raise RefusedError("truncated")
            incoming.complete()
        finally:
            incoming.close()

    def _begin_send(self, neighbor: str, chunks: Sequence[bytes], timeout: float) -> None:
        task = asyncio.get_running_loop().create_task(self._send(neighbor, chunks, timeout))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        # A task that is canceled before its first step never runs.
        size = sum(map(len, chunks))
        task.add_done_callback(lambda done: self._report(neighbor, size, done))

    def _report(self, neighbor: str, size: int, done: asyncio.Task[str | None]) -> None:
        assert self._endpoint is not None
        self._endpoint.sent(neighbor, size, "closed" if done.cancelled() else done.result())

    async def _send(self, neighbor: str, chunks: Sequence[bytes], timeout: float) -> str | None:
        pause = 0.02
        resends = 0
        try:
            async with asyncio.timeout(timeout):
                while True:
                    code, reason, written = await self._try(neighbor, chunks)
                    if code is self._grpc.StatusCode.OK:
                        return None
                    # A benign neighbor that is busy refuses a message at its header. One that
                    # reads the whole message each time wants to use up the network.
                    resends += written > _FAR
                    if code in self._final_codes() or resends > _MOST_RESENDS:
                        return f"refused: {_printable(reason)}"
                    # Two peers that were refused at the same time must not meet again.
                    await asyncio.sleep(pause * random.uniform(0.5, 1))
                    pause = min(2 * pause, 1.0)
        except TimeoutError:
            ready = self._channel(neighbor).get_state() is self._grpc.ChannelConnectivity.READY
            return "timed out" if ready else "unreachable"

    def _final_codes(self) -> frozenset[Any]:
        # All other codes, busy among them, are also what a neighbor answers that is about to stop.
        status = self._grpc.StatusCode
        return frozenset(
            (
                status.INVALID_ARGUMENT,
                status.UNAUTHENTICATED,
                status.DEADLINE_EXCEEDED,
                status.UNIMPLEMENTED,
            )
        )

    async def _try(self, neighbor: str, chunks: Sequence[bytes]) -> tuple[Any, str, int]:
        """Send the message once; return the answer and how many bytes have been written."""
        written = 0
        size = str(sum(map(len, chunks)))
        send = self._channel(neighbor).stream_unary(f"/{_SERVICE}/Send")
        call = send(metadata=((_SIZE, size),), wait_for_ready=True)

        async def write() -> None:
            nonlocal written
            for chunk in chunks:
                # Returns when gRPC has room for the next chunk, so a neighbor that does not read
                # costs one chunk.
                await call.write(chunk)
                written += len(chunk)
            await call.done_writing()
            await call

        writing = asyncio.ensure_future(write())
        # A neighbor that refuses a message does not read the rest: the write would never return.
        call.add_done_callback(lambda _: writing.cancel())
        try:
            await asyncio.wait((writing,))
            if not writing.cancelled():
                writing.exception()  # asyncio logs those that nobody has looked at
            return await call.code(), await call.details() or "", written
        finally:
            writing.cancel()
            call.cancel()

    def _channel(self, neighbor: str) -> Any:
        if neighbor not in self._channels:
            self._channels[neighbor] = self._new_channel(neighbor)
        return self._channels[neighbor]

    def _new_channel(self, neighbor: str) -> Any:
        address = self._addresses[neighbor]
        if self._credentials is None:
            return self._grpc.aio.insecure_channel(address, options=_grpc_options.CHANNEL)
        own = self._credentials
        tls = self._grpc.ssl_channel_credentials(own.authority, own.key, own.certificate)
        # The certificate at this address must be the neighbor's, whatever the address is.
        options = [*_grpc_options.CHANNEL, ("grpc.ssl_target_name_override", neighbor)]
        return self._grpc.aio.secure_channel(address, tls, options=options)

    def _forget_channel(self, neighbor: str) -> None:
        channel = self._channels.pop(neighbor, None)
        if channel is not None:
            task = asyncio.get_running_loop().create_task(channel.close())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)


_open_transports: weakref.WeakSet[GrpcTransport] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for transport in list(_open_transports):
        transport.close()


def _import_grpc() -> Any:
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
    return f"/{_SERVICE}/" not in record.getMessage()


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


def _declared_size(context: Any) -> int:
    declared = str(dict(context.invocation_metadata()).get(_SIZE, ""))
    # Python takes quadratic time for long numbers.
    if not (declared.isascii() and declared.isdigit() and len(declared) <= 18):
        raise RefusedError("no size")
    return int(declared)


def _printable(reason: str) -> str:
    # The neighbor chooses its text, which ends in logs.
    return "".join(c if c.isascii() and c.isprintable() else "?" for c in reason[:_LONGEST_REASON])
