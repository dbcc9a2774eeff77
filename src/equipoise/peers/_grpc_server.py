"""The receiving half of the gRPC transport."""

from __future__ import annotations

import asyncio
import errno
from typing import Any

from equipoise.peers import _grpc_options
from equipoise.peers._freed_memory import FreedMemory
from equipoise.peers._grpc_package import METHOD, SERVICE, SIZE
from equipoise.peers.credentials import Credentials, authenticated_name
from equipoise.peers.transport import Endpoint, RefusedError

GRACE = 0.5  # seconds, for streams that are open when the server stops
# Each chunk costs time, however small it is. The transport sends the largest ones.
SMALL_CHUNK = 1 << 16
MOST_SMALL_CHUNKS = 16


class GrpcServer:
    """Listens, and passes incoming messages to the endpoint. All methods run in one asyncio loop.

    Args:
        grpc: the module.
        endpoint: where messages go.
        credentials: for TLS.
        patience: how many seconds a message may take.
    """

    def __init__(
        self, grpc: Any, endpoint: Endpoint, credentials: Credentials | None, patience: float
    ) -> None:
        self._grpc = grpc
        self._endpoint = endpoint
        self._credentials = credentials
        self._patience = patience
        self._freed = FreedMemory()
        self._server: Any = None

    async def start(self, address: str, neighbors: int) -> int:
        """Listen at the address; return the port."""
        connections = _grpc_options.most_connections(neighbors)
        most = ("grpc.max_allowed_incoming_connections", connections)
        self._server = self._grpc.aio.server(options=[*_grpc_options.SERVER, most])
        method = self._grpc.stream_unary_rpc_method_handler(self._receive)
        handler = self._grpc.method_handlers_generic_handler(SERVICE, {METHOD: method})
        self._server.add_generic_rpc_handlers((handler,))
        try:
            port = self._bind(address)
        except RuntimeError:
            port = 0
        if port == 0:
            raise OSError(errno.EADDRINUSE, f"cannot listen on {address}")
        await self._server.start()
        return port

    def _bind(self, address: str) -> int:
        if self._credentials is None:
            return int(self._server.add_insecure_port(address))
        own = self._credentials
        tls = self._grpc.ssl_server_credentials(
            [(own.key, own.certificate)], own.authority, require_client_auth=True
        )
        return int(self._server.add_secure_port(address, tls))

    async def stop(self) -> None:
        """Stop listening. Answers on their way get through.

        A neighbor that misses the answer to its last message would send it again, to nobody.
        """
        if self._server is not None:
            await self._server.stop(GRACE)

    async def _receive(self, _: object, context: Any) -> bytes:
        code, reason = await self._answer(context)
        if code is not self._grpc.StatusCode.OK:
            # Not context.abort: its exception refers to the call and the call to it, so that what
            # the neighbor has sent would stay in memory until Python looks for such cycles.
            context.set_code(code)
            context.set_details(reason)
            # Not after messages that were taken: the next ones use the same memory again.
            self._freed.give_back_soon()
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
        """Pass the message of a stream to the endpoint."""
        incoming = self._endpoint.open(sender)
        received = 0
        room = MOST_SMALL_CHUNKS
        try:
            # Not up to the end of the stream: a broken connection looks like one, and waiting for
            # it takes one more step.
            while received < size:
                # Not the iterator of gRPC: it refers to itself, and so it keeps what has not been
                # read.
                chunk = await context.read()
                if chunk is self._grpc.aio.EOF:
                    raise RefusedError("truncated")
                received += len(chunk)
                room += len(chunk) // SMALL_CHUNK - 1
                if room < 0:
                    raise RefusedError("malformed: too many small chunks")
                incoming.write(chunk)
            if received > size:
                raise RefusedError("malformed: longer than its size")
            incoming.complete()
        finally:
            incoming.close()


def _declared_size(context: Any) -> int:
    declared = str(dict(context.invocation_metadata()).get(SIZE, ""))
    # Python takes quadratic time for long numbers.
    if not (declared.isascii() and declared.isdigit() and len(declared) <= 18):
        raise RefusedError("no size")
    return int(declared)
