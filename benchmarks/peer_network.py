"""A network on this machine whose links delay, lose and separate; needs root and Linux.

Each peer has a network namespace of its own, with a veth link to a switch. The switch is a thread
that forwards Ethernet frames: it does the work of ``tc netem`` on kernels that come without it.
Namespaces have no names, so the kernel removes them with the last process that uses them, whatever
way the run ends.
"""

from __future__ import annotations

import ctypes
import heapq
import os
import random
import selectors
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fcntl import ioctl
from itertools import count
from types import TracebackType
from typing import Self

CLONE_NEWNET = 0x40000000
ALL_PROTOCOLS = 0x0003  # ETH_P_ALL
SOL_PACKET = 263
PACKET_IGNORE_OUTGOING = 23
SIOCETHTOOL = 0x8946
ETHTOOL_STXCSUM = 0x17

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Link:
    """The condition of one peer's link, in both directions.

    Args:
        delay: seconds that a frame takes.
        jitter: the delay of each frame is uniform in ``delay - jitter`` to ``delay + jitter``.
            Frames may overtake each other, as with netem.
        loss: the share of frames that are lost.
        side: frames pass between links of the same side only.
        is_down: no frame passes.
    """

    delay: float = 0.0
    jitter: float = 0.0
    loss: float = 0.0
    side: int = 0
    is_down: bool = False


class PeerNetwork:
    """Namespaces of ``n`` peers, with the addresses 10.0.0.1 to 10.0.0.n.

    Assign to ``links[i]`` to change the condition of a link. A process moves to namespace ``i``
    by `enter_namespace` with ``namespaces[i]``.
    """

    def __init__(self, n: int) -> None:
        if os.geteuid() != 0:
            raise PermissionError("network namespaces need root; run this command with sudo")
        self.links = [Link()] * n
        self.hosts = [f"10.0.0.{i + 1}" for i in range(n)]
        self._files: list[int] = []  # of the namespaces, that of the switch first
        self._ports: list[socket.socket] = []
        self._thread = threading.Thread(target=self._forward, name="switch", daemon=True)
        self._is_closed = threading.Event()

    @property
    def namespaces(self) -> list[str]:
        """The paths of the namespaces, as long as this process lives."""
        return [f"/proc/{os.getpid()}/fd/{file}" for file in self._files[1:]]

    def __enter__(self) -> Self:
        try:
            self._files = [_new_namespace() for _ in range(len(self.links) + 1)]
            for i in range(len(self.links)):
                self._connect(i)
        except BaseException:
            self.close()
            raise
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Remove the links and the namespaces. Processes within them lose their network."""
        self._is_closed.set()
        if self._thread.is_alive():
            self._thread.join()
        while self._ports:
            self._ports.pop().close()
        if self._files:
            with suppress(subprocess.CalledProcessError), _within(self._files[0]):
                for i in range(len(self.links)):
                    _ip(f"link delete port{i}")
        while self._files:
            os.close(self._files.pop())

    def _connect(self, i: int) -> None:
        """Make the link of one peer."""
        with _within(self._files[0]):
            address = f"02:00:00:00:00:{i:02x}"
            peer = f"name eth0 address {address} netns {self.namespaces[i]}"
            _ip(f"link add port{i} type veth peer {peer}")
            _ip(f"link set port{i} up")
            port = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL_PROTOCOLS))
            port.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
            port.bind((f"port{i}", ALL_PROTOCOLS))
            port.setblocking(False)
            self._ports.append(port)
        with _within(self._files[i + 1]):
            _ip(f"address add {self.hosts[i]}/24 dev eth0")
            _ip("link set lo up")
            _ip("link set eth0 up")
            _disable_offload("eth0")

    # The switch

    def _forward(self) -> None:
        selector = selectors.DefaultSelector()
        for i, port in enumerate(self._ports):
            selector.register(port, selectors.EVENT_READ, i)
        numbers = count()
        flying: list[tuple[float, int, int, bytes]] = []  # arrival, number, receiver, frame
        while not self._is_closed.is_set():
            pause = flying[0][0] - time.monotonic() if flying else 0.1
            for key, _ in selector.select(min(max(pause, 0.0), 0.1)):
                for frame in _frames(self._ports[key.data]):
                    for to in self._receivers(key.data, frame):
                        arrival = time.monotonic() + self._delay(key.data) + self._delay(to)
                        heapq.heappush(flying, (arrival, next(numbers), to, frame))
            while flying and flying[0][0] <= time.monotonic():
                _, _, to, frame = heapq.heappop(flying)
                with suppress(OSError):  # a full queue loses frames
                    self._ports[to].send(frame)
        selector.close()

    def _receivers(self, sender: int, frame: bytes) -> list[int]:
        """The ports to which a frame gets."""
        is_broadcast = frame[0] & 1
        others = [i for i in range(len(self.links)) if i != sender]
        wanted = others if is_broadcast else [i for i in others if i == frame[5]]
        return [i for i in wanted if self._passes(self.links[sender], self.links[i])]

    def _passes(self, one: Link, other: Link) -> bool:
        if one.is_down or other.is_down or one.side != other.side:
            return False
        return random.random() >= one.loss and random.random() >= other.loss

    def _delay(self, port: int) -> float:
        link = self.links[port]
        return link.delay + link.jitter * random.uniform(-1, 1)


def enter_namespace(path: str) -> None:
    """Move the calling thread, and the threads that it starts later, to a namespace."""
    file = os.open(path, os.O_RDONLY)
    try:
        _set_namespace(file)
    finally:
        os.close(file)


def _frames(port: socket.socket) -> Iterator[bytes]:
    with suppress(BlockingIOError):
        while True:
            yield port.recv(65536)


def _new_namespace() -> int:
    """A file descriptor that keeps a new network namespace alive."""
    with _own_namespace() as _:
        if _libc.unshare(CLONE_NEWNET) != 0:
            raise _last_error()
        return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


@contextmanager
def _own_namespace() -> Iterator[int]:
    """Return to the namespace of this thread in the end."""
    own = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield own
    finally:
        _set_namespace(own)
        os.close(own)


@contextmanager
def _within(namespace: int) -> Iterator[None]:
    with _own_namespace():
        _set_namespace(namespace)
        yield


def _set_namespace(file: int) -> None:
    if _libc.setns(file, CLONE_NEWNET) != 0:
        raise _last_error()


def _last_error() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))


def _ip(command: str) -> None:
    subprocess.run(["ip", *command.split()], check=True, capture_output=True, text=True)


def _disable_offload(device: str) -> None:
    """Let the kernel complete checksums and cut segments before frames reach the switch."""
    value = ctypes.create_string_buffer(struct.pack("II", ETHTOOL_STXCSUM, 0))
    request = struct.pack("16sP", device.encode(), ctypes.addressof(value))
    with socket.socket() as any_socket:
        ioctl(any_socket, SIOCETHTOOL, request.ljust(40, b"\0"))
