"""Hostile streams against a peer that exchanges with honest neighbors; a short attack.

`benchmarks/hostile_peers.py` is the long one, in processes of their own.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import queue
import socket
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import equipoise as eq

grpc = pytest.importorskip("grpc")
pytest.importorskip("cryptography")

from benchmarks.hostile_streams import Attacker, DeafServer, Target  # noqa: E402
from equipoise.peers import GrpcTransport, _freed_memory, _grpc_options  # noqa: E402
from equipoise.peers._mailbox import MOST_STREAMS, Mailbox  # noqa: E402
from equipoise.peers.grpc_transport import CHUNK_BYTES  # noqa: E402
from tests.peers.recording import Pair, RecordingEndpoint, RecordingIncoming, busy  # noqa: E402
from tests.peers.test_grpc_transport import raw_send  # noqa: E402

DEADLINE = 1.5
D = 1000


def test_honest_neighbors_are_heard_under_attack(tmp_path):
    names = ["victim", "a", "b", "m"]
    for folder in ("network", "strangers"):
        eq.peers.make_certificates(tmp_path / folder, names)
    proofs = {name: eq.peers.Credentials.load(tmp_path / "network", name) for name in names}
    addresses = {
        name: f"127.0.0.1:{port}" for name, port in zip(names, free_ports(3), strict=False)
    }
    deaf = DeafServer()
    addresses["m"] = f"127.0.0.1:{deaf.port}"
    attack_is_over = threading.Event()
    begun = threading.Event()

    def honest(name):
        neighbors = {"victim": addresses["victim"]}
        peer = eq.Peer(name, neighbors, listen=addresses[name], credentials=proofs[name])
        with peer:
            t = 0
            while not attack_is_over.is_set():
                peer.exchange(torch.randn(D), t, deadline=2 * DEADLINE)
                t += 1

    def victim():
        neighbors = {name: addresses[name] for name in ("a", "b", "m")}
        seconds = []
        heard = []
        with eq.Peer(
            "victim", neighbors, listen=addresses["victim"], credentials=proofs["victim"]
        ) as peer:
            while not attack_is_over.is_set():
                begin = time.monotonic()
                inbox = peer.exchange(torch.randn(D), len(heard), deadline=DEADLINE)
                seconds.append(time.monotonic() - begin)
                heard.append(inbox.mask[0].tolist())
                begun.set()
        return seconds, heard

    with ThreadPoolExecutor(3) as pool:
        honest_ones = [pool.submit(honest, name) for name in ("a", "b")]
        result = pool.submit(victim)
        assert begun.wait(30)
        host, _, port = addresses["victim"].rpartition(":")
        start = time.monotonic()
        target = Target(
            host,
            int(port),
            D,
            lambda: 1 + int((time.monotonic() - start) / DEADLINE),
            folder=tmp_path / "network",
            strangers=tmp_path / "strangers",
        )
        attacker = Attacker(target, seed=0, held=100)
        attacker.connect()
        attacker.flood(20, 0.3)
        attacker.storm(40)
        attacker.run(200, threads=6)
        attack_is_over.set()
        seconds, heard = result.result()
        for one in honest_ones:
            one.result()
        attacker.close()
    deaf.close()
    # The first round is before the attack, and the neighbors may not listen yet.
    assert all(a and b for a, b, _ in heard[1:-1])
    assert max(seconds) < DEADLINE + 1.0


def free_ports(count):
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [listener.getsockname()[1] for listener in listeners]
    for listener in listeners:
        listener.close()
    return ports


def test_streams_without_names_are_bounded():
    box = Mailbox(["b", "c"], stash=1, max_staleness=0)
    opened = [box.open(None) for _ in range(2 * MOST_STREAMS)]
    with pytest.raises(eq.peers.RefusedError, match="too many streams"):
        box.open(None)
    box.open("b").close()
    opened[0].close()
    box.open(None).close()


def test_small_chunks_are_refused():
    with Pair() as pair:
        size = 1000
        chunks = iter([b"x"] * size)
        code = raw_send(pair.b.address, chunks, (("equipoise-size", str(size)),))
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert pair.at_b.closed.get(timeout=5) is None
        assert pair.at_b.received.empty()


def test_connections_are_bounded(monkeypatch):
    monkeypatch.setattr(_grpc_options, "most_connections", lambda neighbors: 3)
    transport = GrpcTransport("b", {}, listen="127.0.0.1:0")
    transport.start(RecordingEndpoint())
    host, _, port = transport.address.rpartition(":")
    connections = [socket.create_connection((host, int(port))) for _ in range(8)]
    # gRPC speaks first, to those that it accepts.
    answers = []
    for connection in connections:
        connection.settimeout(3)
        try:
            answers.append(bool(connection.recv(1)))
        except ConnectionResetError:
            answers.append(False)
        except TimeoutError:
            answers.append(True)
    assert sum(answers) == 3
    for connection in connections:
        connection.close()
    transport.close()


@pytest.mark.parametrize(("limit", "most"), [(1024, 64), (100, 50), (1, 1), (2**20, 64), (-1, 64)])
def test_half_of_the_files_remain(monkeypatch, limit, most):
    resource = pytest.importorskip("resource")
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (limit, limit))
    assert _grpc_options.most_connections(4) == most


def test_many_neighbors_have_connections():
    assert _grpc_options.most_connections(100) == 400


def test_refused_message_is_freed_at_once():
    """Bytes that gRPC has buffered of a call live as long as the exceptions that refer to it."""
    refusals = []

    def refusal():
        refused = eq.peers.RefusedError("no")
        refusals.append(weakref.ref(refused))
        return refused

    def refuse(sender):
        raise refusal()

    with Pair() as pair:
        pair.at_b.open = refuse
        gc.disable()
        try:
            assert pair.send([bytes(CHUNK_BYTES)] * 4) == "refused: no"
            end = time.monotonic() + 5
            while refusals[0]() is not None and time.monotonic() < end:
                time.sleep(0.01)
            assert refusals[0]() is None
        finally:
            gc.enable()


def test_refused_memory_goes_back(monkeypatch):
    calls = queue.Queue()
    monkeypatch.setattr(_freed_memory, "malloc_trim", lambda: calls.put)
    with Pair() as pair:

        def refuse(sender):
            raise eq.peers.RefusedError("no")

        pair.at_b.open = refuse
        assert pair.send([b"x"]) == "refused: no"
        assert calls.get(timeout=5) == 0


def test_memory_goes_back_less_and_less_often(monkeypatch):
    here = threading.current_thread()
    times = []

    def trim(_):
        # Transports of other tests may still give back theirs, in another thread.
        if threading.current_thread() is here:
            times.append(time.monotonic())

    monkeypatch.setattr(_freed_memory, "malloc_trim", lambda: trim)
    monkeypatch.setattr(_freed_memory, "PAUSE", 0.1)
    monkeypatch.setattr(_freed_memory, "LONGEST_PAUSE", 0.2)

    async def refuse():
        _freed_memory.FreedMemory().give_back_soon()
        await asyncio.sleep(1.0)

    begun = time.monotonic()
    asyncio.run(refuse())
    assert len(times) == 2
    assert times[0] - begun > 0.09
    assert times[1] - times[0] > 0.19


class ReadsAndRefuses(RecordingIncoming):
    """Takes the whole message, then says that it is busy."""

    def complete(self):
        super().complete()
        raise busy()


def test_message_is_read_a_few_times_only():
    with Pair() as pair:
        pair.at_b.open = lambda sender: ReadsAndRefuses(pair.at_b, sender)
        assert pair.send([bytes(CHUNK_BYTES)] * 10, timeout=30.0) == "refused: busy"
        assert pair.at_b.received.qsize() == 4


def test_resets_of_streams_are_not_logged(caplog):
    with Pair():
        logger = logging.getLogger("grpc._cython.cygrpc")
        logger.error("ExecuteBatchError raised in core by servicer method [/equipoise.Peer/Send]")
        logger.error("another error")
    assert caplog.messages == ["another error"]
