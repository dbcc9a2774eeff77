"""Hostile streams against a listening peer, for `benchmarks.hostile_peers` and the tests.

Well-formed streams come from the client of gRPC, the others from hand-made HTTP/2 frames over
plain sockets and TLS.
"""

from __future__ import annotations

import contextlib
import random
import socket
import ssl
import struct
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import torch

import equipoise as eq

METHOD = "/equipoise.Peer/Send"
SIZE = "equipoise-size"
CHUNK = 2**20
PATIENCE = 1.0  # seconds that the attacker gives to one stream

DATA, HEADERS, RESET, SETTINGS, PING, WINDOW, CONTINUATION = 0, 1, 3, 4, 6, 8, 9
END_STREAM, END_HEADERS = 1, 4
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
CHANNELS = 8  # of the attacker, each with a connection of its own
FRAME = 2**14  # the largest frame that every receiver takes


@dataclass(frozen=True)
class Target:
    """The peer under attack, and who the attacker is.

    ``folder`` has the certificates of the network and ``strangers`` those of another authority
    with the same names; None without TLS. ``now`` is the round that the peer is about to run.
    """

    host: str
    port: int
    d: int
    now: Callable[[], int]
    name: str = "m"
    other: str = "a"
    folder: Path | None = None
    strangers: Path | None = None


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def header_block(fields: Iterable[tuple[str, str]]) -> bytes:
    """Literal fields of HPACK, each without an entry in the table."""
    block = bytearray()
    for name, value in fields:
        block += bytes([0, len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
    return bytes(block)


class Connection:
    """An HTTP/2 connection that says what it is told, in or out of order."""

    def __init__(self, plain: socket.socket, context: ssl.SSLContext | None) -> None:
        self.scheme = "http" if context is None else "https"
        self.socket = plain if context is None else context.wrap_socket(plain)
        self.room = 65535  # what the receiver lets us send, over all streams
        self.window = 65535  # the same for a new stream
        self._seen = b""

    def begin(self) -> None:
        self.socket.sendall(PREFACE + frame(SETTINGS, 0, 0))
        self.listen(0.05)

    def headers(self, stream: int, size: int, method: str = METHOD, flags: int = 0) -> bytes:
        fields = [
            (":method", "POST"),
            (":scheme", self.scheme),
            (":path", method),
            (":authority", "peer"),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
            (SIZE, str(size)),
        ]
        return frame(HEADERS, END_HEADERS | flags, stream, header_block(fields))

    def listen(self, seconds: float) -> None:
        """Read what has come, for the windows only."""
        self.socket.settimeout(seconds)
        with contextlib.suppress(TimeoutError):
            self._seen += self.socket.recv(65536)
        self.socket.settimeout(PATIENCE)
        while len(self._seen) >= 9:
            length = int.from_bytes(self._seen[:3], "big")
            if len(self._seen) < 9 + length:
                break
            kind = self._seen[3]
            stream = int.from_bytes(self._seen[5:9], "big")
            payload = self._seen[9 : 9 + length]
            self._seen = self._seen[9 + length :]
            if kind == WINDOW and stream == 0:
                self.room += int.from_bytes(payload, "big")
            if kind == SETTINGS:
                for start in range(0, length, 6):
                    if payload[start : start + 2] == b"\x00\x04":
                        self.window = int.from_bytes(payload[start + 2 : start + 6], "big")

    def data(self, stream: int, payload: bytes) -> None:
        """Send bytes of a stream, as many as the windows allow."""
        end = time.monotonic() + PATIENCE / 5
        left = memoryview(payload)[: self.window]
        while left and time.monotonic() < end:
            if self.room == 0:
                self.listen(0.05)
                continue
            part = left[: min(FRAME, self.room)]
            self.socket.sendall(frame(DATA, 0, stream, bytes(part)))
            left = left[len(part) :]
            self.room -= len(part)


def grpc_message(body: bytes, length: int | None = None) -> bytes:
    """The bytes of one gRPC message, which may claim another length."""
    return b"\x00" + struct.pack(">I", len(body) if length is None else length) + body


def chunked(payload: bytes) -> list[bytes]:
    return [payload[start : start + CHUNK] for start in range(0, len(payload), CHUNK)]


class Attacker:
    """Runs hostile streams, and keeps at most ``held`` connections open meanwhile."""

    def __init__(self, target: Target, *, seed: int, held: int = 1000) -> None:
        self.target = target
        self.counts: Counter[str] = Counter()
        self.answers: Counter[str] = Counter()
        self._random = random.Random(seed)
        self._held: deque[Any] = deque()
        self._most_held = held
        self._lock = threading.Lock()
        self._channels: list[grpc.Channel] = []
        self._value = torch.randn(target.d, generator=torch.Generator().manual_seed(seed))
        self.kinds = {name.removeprefix("do_"): name for name in dir(self) if name[:3] == "do_"}
        if target.folder is None:
            for name in ("no_certificate", "certificate_of_other_authority", "garbage_in_tls"):
                del self.kinds[name]

    def run(self, streams: int, *, threads: int = 12) -> None:
        """Run so many streams of all kinds, in an order that the seed determines."""
        # A connection of its own costs more than a stream, so that these kinds are rarer.
        names = [name for name in sorted(self.kinds) for _ in range(4 if name in STREAMS else 1)]
        order = [names[i % len(names)] for i in range(streams)]
        self._random.shuffle(order)
        seeds = [self._random.getrandbits(32) for _ in order]
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(self._one, order, seeds))

    def connect(self) -> None:
        """Open the channels of the attacker, while the peer still accepts connections."""
        self._channels = [self._new_channel() for _ in range(CHANNELS)]
        for channel in self._channels:
            grpc.channel_ready_future(channel).result(PATIENCE)

    def storm(self, connections: int) -> None:
        """Open so many connections at once, every fourth with a certificate, and keep them."""
        with ThreadPoolExecutor(12) as pool:
            for i in range(connections):
                name = "idle_connection" if i % 4 == 0 else "connection_without_a_byte"
                pool.submit(self._one, name, i)

    def flood(self, connections: int, seconds: float) -> None:
        """Open so many connections, and send on all at once what their windows allow."""
        opened: list[Connection] = []

        def connect(_: int) -> None:
            with contextlib.suppress(OSError):  # the peer does not accept all of them
                opened.append(self._connection())

        with ThreadPoolExecutor(connections) as pool:
            list(pool.map(connect, range(connections)))
            list(pool.map(lambda connection: self._flood(connection, seconds), opened))
        with self._lock:
            self.counts["flood"] += connections

    def _flood(self, connection: Connection, seconds: float) -> None:
        # The first chunk of each stream is as long as allowed, the rest are empty ones.
        payload = grpc_message(bytes(2 * CHUNK - 5)) + bytes(2 * CHUNK)
        end = time.monotonic() + seconds
        first = 1
        with contextlib.suppress(OSError), connection.socket:
            while time.monotonic() < end:
                streams = range(first, first + 8, 2)
                for stream in streams:
                    connection.socket.sendall(connection.headers(stream, 100 * CHUNK))
                for stream in streams:
                    connection.listen(0.01)
                    connection.data(stream, payload)
                first += 8

    def close(self) -> None:
        """Close all connections."""
        with self._lock:
            for connection in self._held:
                connection.close()
            self._held.clear()
        for channel in self._channels:
            channel.close()

    def _one(self, name: str, seed: int) -> None:
        answer = "no answer"
        try:
            answer = getattr(self, self.kinds[name])(random.Random(seed)) or answer
        except (OSError, ssl.SSLError) as error:
            answer = type(error).__name__
        with self._lock:
            self.counts[name] += 1
            self.answers[f"{name}: {answer}"] += 1

    # Tools

    def _plain(self) -> socket.socket:
        return socket.create_connection((self.target.host, self.target.port), PATIENCE)

    def _context(self, folder: Path, *, certificate: bool = True) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        context.set_alpn_protocols(["h2"])
        if certificate:
            name = self.target.name
            context.load_cert_chain(folder / f"{name}.pem", folder / f"{name}.key")
        return context

    def _connection(self) -> Connection:
        folder = self.target.folder
        context = None if folder is None else self._context(folder)
        connection = Connection(self._plain(), context)
        connection.begin()
        return connection

    def _hold(self, connection: socket.socket) -> None:
        """Keep a connection open, and close the oldest one if there are too many."""
        with self._lock:
            self._held.append(connection)
            oldest = self._held.popleft() if len(self._held) > self._most_held else None
        if oldest is not None:
            oldest.close()

    def _channel(self) -> grpc.Channel:
        """One of the channels, all with the attacker's own name."""
        with self._lock:
            return self._channels[sum(self.counts.values()) % CHANNELS]

    def _new_channel(self) -> grpc.Channel:
        folder = self.target.folder
        address = f"{self.target.host}:{self.target.port}"
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1)]
        if folder is None:
            return grpc.insecure_channel(address, options)
        name = self.target.name
        tls = grpc.ssl_channel_credentials(
            (folder / "authority.pem").read_bytes(),
            (folder / f"{name}.key").read_bytes(),
            (folder / f"{name}.pem").read_bytes(),
        )
        return grpc.secure_channel(
            address, tls, [*options, ("grpc.ssl_target_name_override", "victim")]
        )

    def _message(self, t: int | None = None, **fields: Any) -> bytes:
        d = fields.pop("d", self.target.d)
        value = self._value if d == self.target.d else torch.ones(d)
        t = self.target.now() if t is None else t
        return eq.pack(value, round=t, **{"sender": self.target.name, **fields})

    def _start(
        self,
        chunks: list[bytes],
        size: int | None = None,
        metadata: Iterable[tuple[str, str]] = (),
        method: str = METHOD,
    ) -> Any:
        size = sum(map(len, chunks)) if size is None else size
        send = self._channel().stream_unary(method)
        return send.future(iter(chunks), PATIENCE, metadata=((SIZE, str(size)), *metadata))

    def _send(self, payload: bytes, size: int | None = None, **options: Any) -> str:
        return str(self._start(chunked(payload), size, **options).code().name)

    # Bytes that are not HTTP/2

    def do_garbage_on_the_port(self, rng: random.Random) -> None:
        with self._plain() as plain:
            plain.sendall(rng.randbytes(rng.randrange(1, 5000)))
            plain.recv(100)

    def do_garbage_in_tls(self, rng: random.Random) -> None:
        assert self.target.folder is not None
        with self._context(self.target.folder).wrap_socket(self._plain()) as stream:
            stream.sendall(rng.randbytes(rng.randrange(1, 5000)))
            stream.recv(100)

    def do_plain_http2(self, rng: random.Random) -> None:
        with self._plain() as plain:
            connection = Connection(plain, None)
            plain.sendall(PREFACE + frame(SETTINGS, 0, 0) + connection.headers(1, 5))
            plain.recv(100)

    def do_half_a_handshake(self, rng: random.Random) -> None:
        plain = self._plain()
        record = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + rng.randbytes(100)
        plain.sendall(record[: rng.randrange(1, len(record))])
        self._hold(plain)

    def do_connection_without_a_byte(self, rng: random.Random) -> None:
        self._hold(self._plain())

    def do_no_certificate(self, rng: random.Random) -> None:
        assert self.target.folder is not None
        self._request_over(self._context(self.target.folder, certificate=False))

    def do_certificate_of_other_authority(self, rng: random.Random) -> None:
        assert self.target.strangers is not None
        self._request_over(self._context(self.target.strangers))

    def _request_over(self, context: ssl.SSLContext) -> None:
        connection = Connection(self._plain(), context)
        with connection.socket:
            connection.begin()
            connection.socket.sendall(connection.headers(1, 5))
            connection.data(1, grpc_message(b"hello"))
            connection.listen(0.1)

    # Frames

    def do_idle_connection(self, rng: random.Random) -> None:
        self._hold(self._connection().socket)

    def do_silence_after_header(self, rng: random.Random) -> None:
        connection = self._connection()
        message = self._message()
        connection.socket.sendall(connection.headers(1, len(message)))
        connection.data(1, grpc_message(message[:200]))
        self._hold(connection.socket)

    def do_unfinished_chunks(self, rng: random.Random) -> None:
        connection = self._connection()
        for stream in range(1, 17, 2):
            connection.socket.sendall(connection.headers(stream, 100 * CHUNK))
            connection.data(stream, grpc_message(bytes(CHUNK - 6), CHUNK))
        self._hold(connection.socket)

    def do_byte_by_byte(self, rng: random.Random) -> None:
        connection = self._connection()
        message = self._message()
        with connection.socket as stream:
            stream.sendall(connection.headers(1, len(message)))
            for byte in message[:100]:
                connection.data(1, grpc_message(bytes([byte])))
                time.sleep(0.002)

    def do_empty_chunks(self, rng: random.Random) -> None:
        connection = self._connection()
        with connection.socket as stream:
            stream.sendall(connection.headers(1, 1000))
            connection.data(1, grpc_message(b"") * 40000)

    def do_pings(self, rng: random.Random) -> None:
        connection = self._connection()
        with connection.socket as stream:
            stream.sendall(frame(PING, 0, 0, bytes(8)) * 5000)

    def do_settings(self, rng: random.Random) -> None:
        connection = self._connection()
        with connection.socket as stream:
            stream.sendall(frame(SETTINGS, 0, 0, b"\x00\x04" + rng.randbytes(4)) * 2000)

    def do_endless_headers(self, rng: random.Random) -> None:
        connection = self._connection()
        with connection.socket as stream:
            stream.sendall(frame(HEADERS, 0, 1, header_block([("x", "y" * 100)])))
            more = header_block((f"x{i}", "y" * 100) for i in range(100))
            for _ in range(100):
                stream.sendall(frame(CONTINUATION, 0, 1, more))

    def do_rapid_resets(self, rng: random.Random) -> None:
        connection = self._connection()
        with connection.socket as stream:
            for number in range(1, 1001, 2):
                reset = frame(RESET, 0, number, struct.pack(">I", 8))
                stream.sendall(connection.headers(number, 5) + reset)

    def do_requests_without_reading(self, rng: random.Random) -> None:
        connection = self._connection()
        for number in range(1, 201, 2):
            request = connection.headers(number, 5, flags=END_STREAM)
            connection.socket.sendall(request)
        self._hold(connection.socket)

    def do_reset_of_the_connection(self, rng: random.Random) -> None:
        connection = self._connection()
        message = self._message()
        connection.socket.sendall(connection.headers(1, len(message)))
        connection.data(1, grpc_message(message[: rng.randrange(len(message))]))
        now = struct.pack("ii", 1, 0)
        connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, now)
        connection.socket.close()

    # Streams of gRPC with hostile content

    def do_garbage_message(self, rng: random.Random) -> str:
        return self._send(rng.randbytes(rng.randrange(1, 10000)))

    def do_oversized_chunk(self, rng: random.Random) -> str:
        chunk = bytes(CHUNK + rng.randrange(1, CHUNK))
        return str(self._start([chunk]).code().name)

    def do_longer_than_header(self, rng: random.Random) -> str:
        return self._send(self._message() + bytes(rng.randrange(1, 10000)))

    def do_truncated(self, rng: random.Random) -> str:
        message = self._message()
        return self._send(message[: rng.randrange(len(message))])

    def do_other_size_than_declared(self, rng: random.Random) -> str:
        return self._send(self._message(), rng.randrange(2**40))

    def do_far_future(self, rng: random.Random) -> str:
        return self._send(self._message(self.target.now() + rng.randrange(1, 10**6)))

    def do_largest_round(self, rng: random.Random) -> str:
        return self._send(self._message(2**53 - rng.randrange(2)))

    def do_past_round(self, rng: random.Random) -> str:
        return self._send(self._message(rng.randrange(self.target.now() + 1)))

    def do_other_exchange(self, rng: random.Random) -> str:
        return self._send(self._message(exchange=rng.randrange(1, 10**6)))

    def do_wrong_d(self, rng: random.Random) -> str:
        return self._send(self._message(d=rng.randrange(1, 1000)))

    def do_unknown_dtype(self, rng: random.Random) -> str:
        return self._send(self._message().replace(b'"F32"', b'"F99"', 1))

    def do_name_of_a_neighbor(self, rng: random.Random) -> str:
        return self._send(self._message(sender=self.target.other))

    def do_unknown_name(self, rng: random.Random) -> str:
        return self._send(self._message(sender=f"stranger-{rng.randrange(100)}"))

    def do_same_message_again(self, rng: random.Random) -> str:
        message = self._message(self.target.now())
        self._send(message)
        return self._send(message)

    def do_two_copies_at_once(self, rng: random.Random) -> str:
        chunks = chunked(self._message())
        calls = [self._start(chunks) for _ in range(2)]
        return "+".join(sorted(call.code().name for call in calls))

    def do_twenty_streams(self, rng: random.Random) -> str:
        chunks = chunked(self._message())
        calls = [self._start(chunks) for _ in range(20)]
        return f"{sum(call.code() is grpc.StatusCode.OK for call in calls)} of 20 taken"

    def do_huge_metadata(self, rng: random.Random) -> str:
        return self._send(b"hello", metadata=[("x", "y" * rng.randrange(4096, 10**6))])

    def do_unknown_method(self, rng: random.Random) -> str:
        return self._send(b"hello", method=f"/equipoise.Peer/{rng.randrange(100)}")

    def do_cancel_in_the_middle(self, rng: random.Random) -> str:
        call = self._start(chunked(self._message()), 100 * CHUNK)
        time.sleep(rng.uniform(0, 0.02))
        call.cancel()
        return str(call.code().name)

    def do_not_a_number(self, rng: random.Random) -> str:
        value = self._value.clone()
        value[rng.randrange(self.target.d)] = float(rng.choice(("nan", "inf", "-inf")))
        message = eq.pack(value, round=self.target.now(), sender=self.target.name)
        return self._send(message)


STREAMS = frozenset(
    name.removeprefix("do_")
    for name, method in vars(Attacker).items()
    if name[:3] == "do_" and method.__annotations__["return"] == "str"
)
"""The kinds of well-formed streams, which share a few connections."""


class DeafServer:
    """Takes connections at a port and never reads from them."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]

    def close(self) -> None:
        """Stop listening."""
        self._listener.close()


class RefusingServer:
    """Reads each message to its end and answers that it is about to stop, for ever."""

    def __init__(self, folder: Path | None, name: str) -> None:
        self.streams = 0
        self.bytes = 0
        handler = grpc.stream_unary_rpc_method_handler(self._refuse)
        generic = grpc.method_handlers_generic_handler("equipoise.Peer", {"Send": handler})
        self._server = grpc.server(ThreadPoolExecutor(4), handlers=(generic,))
        if folder is None:
            self.port = self._server.add_insecure_port("127.0.0.1:0")
        else:
            own = [(folder / f"{name}.{end}").read_bytes() for end in ("key", "pem")]
            authority = (folder / "authority.pem").read_bytes()
            tls = grpc.ssl_server_credentials([(own[0], own[1])], authority, True)
            self.port = self._server.add_secure_port("127.0.0.1:0", tls)
        self._server.start()

    def _refuse(self, chunks: Iterable[bytes], context: Any) -> bytes:
        self.bytes += sum(map(len, chunks))
        self.streams += 1
        context.abort(grpc.StatusCode.UNAVAILABLE, "try again")
        return b""

    def close(self) -> None:
        """Stop listening."""
        self._server.stop(0).wait()
