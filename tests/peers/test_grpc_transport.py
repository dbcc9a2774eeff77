import os
import socket
import subprocess
import sys
import threading
import time

import pytest

from equipoise.peers import Credentials, GrpcTransport, RefusedError, make_certificates
from equipoise.peers.transport import CHUNK_BYTES
from tests.peers.recording import Pair, RecordingEndpoint, busy

grpc = pytest.importorskip("grpc")


@pytest.fixture(scope="module")
def credentials(tmp_path_factory):
    folder = tmp_path_factory.mktemp("certificates")
    make_certificates(folder, ["a", "b", "c"])
    return {name: Credentials.load(folder, name) for name in "abc"}


@pytest.fixture(scope="module")
def strangers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("strangers")
    make_certificates(folder, ["a"])
    return {"a": Credentials.load(folder, "a")}


def local(listen="127.0.0.1:0", **options):
    return GrpcTransport("a", {"b": "127.0.0.1:1"}, listen=listen, **options)


def raw_send(address, chunks, metadata=(), compression=None):
    """Send as somebody who does not use the transport; return the code."""
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1)]
    with grpc.insecure_channel(address, options=options) as channel:
        try:
            send = channel.stream_unary("/equipoise.Peer/Send")
            send(chunks, timeout=10, metadata=metadata, compression=compression)
        except grpc.RpcError as error:
            return error.code()
    return grpc.StatusCode.OK


def test_messages_arrive_in_both_directions():
    with Pair() as pair:
        chunks = [os.urandom(CHUNK_BYTES) for _ in range(5)]
        assert pair.send(chunks) is None
        assert pair.at_b.received.get(timeout=5) == (None, b"".join(chunks))
        pair.b.send("a", [b"hello"], 5.0)
        assert pair.at_b.results.get(timeout=5) == ("a", 5, None)
        assert pair.at_a.received.get(timeout=5) == (None, b"hello")


def test_empty_message_arrives():
    with Pair() as pair:
        assert pair.send([]) is None
        assert pair.at_b.received.get(timeout=5) == (None, b"")


def test_certificate_names_the_sender(credentials):
    with Pair(credentials=credentials) as pair:
        assert pair.send([b"hello"]) is None
        assert pair.at_b.received.get(timeout=5) == ("a", b"hello")


def test_neighbor_of_another_name_is_unreachable(credentials):
    with Pair(credentials={"a": credentials["a"], "b": credentials["b"]}) as pair:
        pair.b.close()
        impostor = GrpcTransport("c", {}, listen=pair.b.address, credentials=credentials["c"])
        endpoint = RecordingEndpoint()
        impostor.start(endpoint)
        assert pair.send([b"hello"], timeout=1.0) == "unreachable"
        assert endpoint.received.empty()
        impostor.close()


def test_stranger_of_another_authority_is_not_heard(credentials, strangers):
    with Pair(credentials={"a": strangers["a"], "b": credentials["b"]}) as pair:
        assert pair.send([b"hello"], timeout=1.0) == "unreachable"
        assert pair.at_b.received.empty()


def test_busy_neighbor_is_tried_again():
    with Pair(busy(), busy(), busy()) as pair:
        assert pair.send([b"hello"]) is None
        assert pair.at_b.received.get(timeout=5) == (None, b"hello")


def test_refusal_is_final_and_printable():
    with Pair(RefusedError("no\n\x1b[31m" + "x" * 200)) as pair:
        error = pair.send([b"hello"])
        assert error.startswith("refused: no??[31mxxx")
        assert error.isprintable()
        assert len(error) <= 89


def test_neighbor_that_restarts_gets_the_message():
    with Pair() as pair:
        listener = socket.create_server(("127.0.0.1", 0))
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        listener.close()
        pair.a.set_address("b", address)
        first = GrpcTransport("b", {}, listen=address)
        endpoint = RecordingEndpoint()
        endpoint.open = lambda sender: Stalled()
        first.start(endpoint)
        pair.a.send("b", [bytes(CHUNK_BYTES)] * 20, 10.0)
        Stalled.began.wait(5)
        first.close()
        second = GrpcTransport("b", {}, listen=address)
        heir = RecordingEndpoint()
        second.start(heir)
        assert pair.at_a.results.get(timeout=10)[2] is None
        assert len(heir.received.get(timeout=5)[1]) == 20 * CHUNK_BYTES
        second.close()


class Stalled:
    """Refuses a message half-way, as one that may come later."""

    began = threading.Event()

    def write(self, chunk):
        self.began.set()
        raise busy()

    def close(self):
        pass


def test_silent_port_is_unreachable_in_time():
    with Pair() as pair:
        pair.b.close()
        begin = time.monotonic()
        assert pair.send([b"hello"], timeout=0.5) == "unreachable"
        assert time.monotonic() - begin < 1.5


def test_neighbor_that_stays_busy_times_out():
    with Pair(*(busy() for _ in range(100))) as pair:
        assert pair.send([b"hello"], timeout=0.5) == "timed out"


def test_oversized_chunk_is_cut():
    with Pair() as pair:
        size = 2 * CHUNK_BYTES
        metadata = (("equipoise-size", str(size)),)
        code = raw_send(pair.b.address, iter([bytes(size)]), metadata)
        assert code is not grpc.StatusCode.OK
        assert pair.at_b.received.empty()
        with pytest.raises(ValueError, match="chunks must have at most"):
            pair.a.send("b", [bytes(size)], 1.0)


@pytest.mark.parametrize("compression", [grpc.Compression.Gzip, grpc.Compression.Deflate])
def test_compressed_chunk_is_refused(compression):
    """A few bytes could become a chunk of any length."""
    with Pair() as pair:
        metadata = (("equipoise-size", str(CHUNK_BYTES)),)
        code = raw_send(pair.b.address, iter([bytes(CHUNK_BYTES)]), metadata, compression)
        assert code is grpc.StatusCode.UNIMPLEMENTED
        assert pair.at_b.received.empty()


@pytest.mark.parametrize("declared", ["", "-5", "5.0", "9" * 100, "4", "6"])
def test_size_must_be_declared_and_true(declared):
    with Pair() as pair:
        metadata = (("equipoise-size", declared),)
        code = raw_send(pair.b.address, iter([b"hello"]), metadata)
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert pair.at_b.received.empty()


def test_neighbor_that_never_reads_costs_its_stream_only():
    with Pair() as pair, socket.create_server(("127.0.0.1", 0)) as deaf:
        pair.a._addresses["c"] = f"127.0.0.1:{deaf.getsockname()[1]}"
        pair.a.send("c", [bytes(CHUNK_BYTES)] * 50, 1.0)
        assert pair.send([b"hello"], timeout=1.0) is None
        assert pair.at_a.results.get(timeout=3)[2] == "unreachable"


def test_dripping_sender_is_cut():
    def drip():
        while True:
            yield b"x"
            time.sleep(0.05)

    with Pair(patience=0.5) as pair:
        begin = time.monotonic()
        code = raw_send(pair.b.address, drip(), (("equipoise-size", "1000"),))
        assert code is grpc.StatusCode.DEADLINE_EXCEEDED
        assert time.monotonic() - begin < 2
        pair.at_b.closed.get(timeout=1)


def test_garbage_on_the_port_changes_nothing():
    with Pair() as pair:
        host, _, port = pair.b.address.rpartition(":")
        connections = [socket.create_connection((host, int(port))) for _ in range(200)]
        for connection in connections:
            connection.sendall(os.urandom(1000))
        assert pair.send([b"hello"]) is None
        for connection in connections:
            connection.close()


def test_taken_port_is_an_error_with_the_address():
    with Pair() as pair:
        second = local(pair.b.address)
        with pytest.raises(OSError, match=pair.b.address):
            second.start(RecordingEndpoint())
        second.close()


def test_starting_twice_is_an_error():
    with Pair() as pair, pytest.raises(RuntimeError, match="starts once"):
        pair.a.start(RecordingEndpoint())


def test_closing_ends_a_send():
    with Pair() as pair, socket.create_server(("127.0.0.1", 0)) as deaf:
        pair.a.set_address("b", f"127.0.0.1:{deaf.getsockname()[1]}")
        pair.a.send("b", [bytes(CHUNK_BYTES)] * 50, 60.0)
        time.sleep(0.1)
        begin = time.monotonic()
        closer = threading.Thread(target=pair.a.close)
        closer.start()
        closer.join()
        assert time.monotonic() - begin < 2
        assert pair.at_a.results.get(timeout=1)[2] == "closed"
        with pytest.raises(RuntimeError, match="closed"):
            pair.a.send("b", [], 1.0)


@pytest.mark.parametrize("address", ["0.0.0.0:7000", "example.org:7000", "[2001:db8::1]:7000"])
def test_network_needs_credentials(address):
    with pytest.raises(ValueError, match=r"pass credentials .* or insecure=True"):
        local(address)
    with pytest.raises(ValueError, match="the address of 'b' must be a loopback address"):
        GrpcTransport("a", {"b": address}, listen="127.0.0.1:0")
    local(address, insecure=True)


def test_credentials_are_not_a_folder():
    expected = r"must be Credentials, as Credentials.load\(folder, 'a'\) reads them, found str"
    with pytest.raises(ValueError, match=expected):
        local(credentials="certs")


@pytest.mark.parametrize("address", ["127.0.0.1", "::1:7000", "127.0.0.1:70000", "a b:1", 7000, ""])
def test_malformed_address_is_an_error(address):
    with pytest.raises(ValueError, match="listen must"):
        local(address)


@pytest.mark.parametrize("address", ["localhost:7000", "[::1]:7000", "127.0.0.2:7000"])
def test_loopback_needs_no_credentials(address):
    assert local(address).address == address


@pytest.mark.parametrize("name", ["B", "b.", "*", "site b", "authority"])
def test_neighbors_have_names_of_certificates(credentials, name):
    with pytest.raises(ValueError, match="each neighbor must be"):
        GrpcTransport(
            "a", {name: "127.0.0.1:1"}, listen="127.0.0.1:0", credentials=credentials["a"]
        )


def test_name_must_be_that_of_the_certificate(credentials):
    with pytest.raises(ValueError, match="credentials must be of 'a', found those of 'b'"):
        local(credentials=credentials["b"])


SCRIPT = """
import sys
import threading
import time

import torch

import equipoise.peers

if __name__ == "__main__":
    assert "grpc" not in sys.modules
    from tests.peers.recording import Pair

    pair = Pair().__enter__()
    results = []
    done = threading.Event()

    def stream():
        while not done.is_set():
            results.append(pair.send([bytes(1 << 20)] * 2, timeout=60.0))
            time.sleep(0.05)  # leaves the cores to the workers

    sender = threading.Thread(target=stream)
    sender.start()
    while not results:
        time.sleep(0.01)
    data = torch.utils.data.TensorDataset(torch.arange(8.0))
    loader = torch.utils.data.DataLoader(
        data, num_workers=1, multiprocessing_context=sys.argv[1], timeout=100
    )
    assert sum(float(x) for (x,) in loader) == 28
    done.set()
    sender.join()
    assert set(results) == {None}, results
    # The script ends while both transports are open and one sends.
    pair.a.send("b", [bytes(1 << 20)] * 1000, 60.0)
"""


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_data_loader_works_next_to_streams(tmp_path, method):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([".", *sys.path])}
    command = [sys.executable, str(script), method]
    # Most of the time goes to importing torch, once more in a spawned worker.
    done = subprocess.run(command, env=environment, capture_output=True, timeout=120, text=True)
    assert (done.returncode, done.stderr) == (0, "")
