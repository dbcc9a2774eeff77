"""The options of gRPC that the transport sets, and why."""

from __future__ import annotations

import sys

from equipoise.peers.transport import CHUNK_BYTES

WINDOW_BYTES = 2 * CHUNK_BYTES
"""How far a stream may be ahead of its reader."""

CONNECTIONS = 64
"""How many connections a server with few neighbors accepts.

Each can hold a window of data that nobody reads, until its streams are refused: 256 MiB in all. An
idle one takes about 150 KB.
"""

CONNECTIONS_PER_NEIGHBOR = 4  # the old one may seem open when a neighbor connects again

Options = list[tuple[str, int | str]]

_SECOND = 1000  # milliseconds

_COMMON: Options = [
    # gRPC refuses a longer chunk when it has read its length, before it is in memory.
    ("grpc.max_receive_message_length", CHUNK_BYTES),
    ("grpc.max_send_message_length", CHUNK_BYTES),
    # 16 KiB is the default: 128 headers and system calls per chunk.
    ("grpc.http2.max_frame_size", 2 * CHUNK_BYTES),
    # A stream may be this far ahead of its reader: enough for 32 ms at 1 Gbit/s, and the bound of
    # what one stream can hold in memory. Probing would raise it with the delay of the network.
    ("grpc.http2.lookahead_bytes", WINDOW_BYTES),
    ("grpc.http2.bdp_probe", 0),
    # The next chunk waits in the kernel's queue while Python prepares the one after.
    ("grpc.http2.write_buffer_size", CHUNK_BYTES),
    ("grpc.optimization_target", "throughput"),
    ("grpc.experimental.tcp_read_chunk_size", CHUNK_BYTES // 2),
    ("grpc.experimental.tcp_min_read_chunk_size", CHUNK_BYTES // 8),
    ("grpc.experimental.tcp_max_read_chunk_size", 2 * CHUNK_BYTES),
    # Names, sizes and a short reason need no more; the default lets 8 KiB through.
    ("grpc.max_metadata_size", 4096),
    ("grpc.absolute_max_metadata_size", 4096),
    # Models do not compress, and a short compressed chunk may be a long one: only "identity".
    ("grpc.default_compression_algorithm", 0),
    ("grpc.compression_enabled_algorithms_bitset", 1),
    # A neighbor that disappeared without a word is noticed within 10 + 5 seconds.
    ("grpc.keepalive_time_ms", 10 * _SECOND),
    ("grpc.keepalive_timeout_ms", 5 * _SECOND),
    ("grpc.http2.max_pings_without_data", 0),
]

SERVER: Options = [
    *_COMMON,
    # A second process on the same port would silently take half of the connections.
    ("grpc.so_reuseport", 0),
    # A neighbor sends one message at a time. The others are retries, which overlap with the end of
    # the stream before.
    ("grpc.max_concurrent_streams", 4),
    # A connection that does not speak HTTP/2 or TLS is cut after 5 seconds instead of 120.
    ("grpc.server_handshake_timeout_ms", 5 * _SECOND),
    # Allow the pings above; the default of 5 minutes would end the connections of our own clients.
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5 * _SECOND),
]

CHANNEL: Options = [
    *_COMMON,
    # Each channel has its own connection, which ends with it.
    ("grpc.use_local_subchannel_pool", 1),
    # The transport itself tries again, as the retries of gRPC keep a copy of the message.
    ("grpc.enable_retries", 0),
    # Peers are addressed directly; a proxy of the environment is for other traffic.
    ("grpc.enable_http_proxy", 0),
    # A restarted neighbor is found within 2 seconds; gRPC itself adds jitter of 20 %.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2 * _SECOND),
    # The least time for one attempt, with its TLS handshake.
    ("grpc.min_reconnect_backoff_ms", 3 * _SECOND),
]


def most_connections(neighbors: int) -> int:
    """How many connections a server with so many neighbors accepts.

    Half of the files that the process may open remain for training: without a bound, connections
    of strangers would use up all of them.
    """
    wanted = max(CONNECTIONS, CONNECTIONS_PER_NEIGHBOR * neighbors)
    if sys.platform == "win32":
        return wanted
    import resource

    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return wanted
    return min(wanted, max(1, limit // 2))
