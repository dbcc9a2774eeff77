"""One asyncio loop in one daemon thread for all transports of a process."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any

_LOG = logging.getLogger("equipoise.peers")
_lock = threading.Lock()
_current: BackgroundLoop | None = None


class BackgroundLoop:
    """Runs coroutines in a thread of its own."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.loop = asyncio.new_event_loop()
        self.loop.set_exception_handler(_log)
        self._thread = threading.Thread(target=self._run, name="equipoise-peers", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def is_own_thread(self) -> bool:
        """Whether the caller runs in the loop's thread, where waiting for the loop never ends."""
        return threading.current_thread() is self._thread

    def submit(self, coroutine: Coroutine[Any, Any, Any]) -> Future[Any]:
        """Run a coroutine in the loop, from any thread."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)


def background_loop() -> BackgroundLoop:
    """The loop of this process.

    There is one because gRPC wakes every loop of a process for every event, and all but one find
    nothing to read (grpc issue 25364).
    """
    global _current
    with _lock:
        # A forked process inherits the object, but not the thread.
        if _current is None or _current.pid != os.getpid():
            _current = BackgroundLoop()
        return _current


def _log(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    # asyncio writes to stderr what nobody awaits. Here it is gRPC noticing that another loop was
    # faster (see above), or a connection that ended while it was being closed.
    _LOG.debug("%s", context.get("message"), exc_info=context.get("exception"))
