"""The sending half of the gRPC transport."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any

from equipoise.peers import _grpc_options
from equipoise.peers._grpc_package import METHOD, SERVICE, SIZE
from equipoise.peers.credentials import Credentials
from equipoise.peers.transport import Endpoint

PATH = f"/{SERVICE}/{METHOD}"
LONGEST_REASON = 80
FIRST_PAUSE = 0.02  # seconds before a message is sent again
LONGEST_PAUSE = 1.0
MOST_RESENDS = 3  # of messages that were read further than their header
FAR = 2 * _grpc_options.WINDOW_BYTES  # no neighbor that reads a header only lets so much through


class GrpcClient:
    """Sends messages to neighbors, each over a channel of its own.

    All methods run in one asyncio loop.

    Args:
        grpc: the module.
        addresses: where the neighbors are; see `forget_channel` for changes.
        endpoint: told what became of each message.
        credentials: for TLS.
    """

    def __init__(
        self,
        grpc: Any,
        addresses: Mapping[str, str],
        endpoint: Endpoint,
        credentials: Credentials | None,
    ) -> None:
        self._grpc = grpc
        self._addresses = addresses
        self._endpoint = endpoint
        self._credentials = credentials
        self._channels: dict[str, Any] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        status = grpc.StatusCode
        # All other codes, busy among them, are also what a neighbor answers that is about to stop.
        self._final_codes = (
            status.INVALID_ARGUMENT,
            status.UNAUTHENTICATED,
            status.DEADLINE_EXCEEDED,
            status.UNIMPLEMENTED,
        )

    def send(self, neighbor: str, chunks: Sequence[bytes], timeout: float) -> None:
        """Begin to send a message, of which `Endpoint.sent` tells the end."""
        task = self._run(self._send(neighbor, chunks, timeout))
        # A task that is canceled before its first step never runs.
        size = sum(map(len, chunks))
        task.add_done_callback(lambda done: self._report(neighbor, size, done))

    def forget_channel(self, neighbor: str) -> None:
        """Connect to the neighbor at its present address from the next message on."""
        channel = self._channels.pop(neighbor, None)
        if channel is not None:
            self._run(channel.close())

    async def cancel(self) -> None:
        """Give up all messages."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def close(self) -> None:
        """Close all connections."""
        for channel in self._channels.values():
            await channel.close()
        self._channels.clear()

    def _run(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)  # the loop itself does not keep tasks alive
        task.add_done_callback(self._tasks.discard)
        return task

    def _report(self, neighbor: str, size: int, done: asyncio.Task[str | None]) -> None:
        self._endpoint.sent(neighbor, size, "closed" if done.cancelled() else done.result())

    async def _send(self, neighbor: str, chunks: Sequence[bytes], timeout: float) -> str | None:
        """Send the message until the neighbor has answered; return an error or None."""
        pause = FIRST_PAUSE
        resends = 0
        try:
            async with asyncio.timeout(timeout):
                while True:
                    code, reason, written = await self._try(neighbor, chunks)
                    if code is self._grpc.StatusCode.OK:
                        return None
                    # A benign neighbor that is busy refuses a message at its header. One that
                    # reads the whole message each time wants to use up the network.
                    resends += written > FAR
                    if code in self._final_codes or resends > MOST_RESENDS:
                        return f"refused: {_printable(reason)}"
                    # Two peers that were refused at the same time must not meet again.
                    await asyncio.sleep(pause * random.uniform(0.5, 1))
                    pause = min(2 * pause, LONGEST_PAUSE)
        except TimeoutError:
            ready = self._channel(neighbor).get_state() is self._grpc.ChannelConnectivity.READY
            return "timed out" if ready else "unreachable"

    async def _try(self, neighbor: str, chunks: Sequence[bytes]) -> tuple[Any, str, int]:
        """Send the message once; return the answer and how many bytes have been written."""
        channel = self._channel(neighbor)
        metadata = ((SIZE, str(sum(map(len, chunks)))),)
        written = 0
        if len(chunks) == 1:
            # On the wire, this is a stream of one chunk. It takes one step instead of five.
            call = channel.unary_unary(PATH)(chunks[0], metadata=metadata, wait_for_ready=True)
        else:
            call = channel.stream_unary(PATH)(metadata=metadata, wait_for_ready=True)
        try:
            if len(chunks) != 1:
                written = await _write(call, chunks)
            return await call.code(), await call.details() or "", written
        finally:
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


async def _write(call: Any, chunks: Sequence[bytes]) -> int:
    """Write the chunks until the neighbor has answered; return how many bytes have been written."""
    written = 0

    async def write_all() -> None:
        nonlocal written
        for chunk in chunks:
            # Returns when gRPC has room for the next chunk, so a neighbor that does not read costs
            # one chunk.
            await call.write(chunk)
            written += len(chunk)
        await call.done_writing()

    writing = asyncio.ensure_future(write_all())
    # A neighbor that refuses a message does not read the rest: the write would never return.
    call.add_done_callback(lambda _: writing.cancel())
    try:
        await asyncio.wait((writing,))
        if not writing.cancelled():
            writing.exception()  # asyncio logs those that nobody has looked at
    finally:
        writing.cancel()
    return written


def _printable(reason: str) -> str:
    # The neighbor chooses its text, which ends in logs.
    return "".join(c if c.isascii() and c.isprintable() else "?" for c in reason[:LONGEST_REASON])
