"""How fast peers exchange models, next to raw sockets in the same pattern.

    python -m benchmarks.peer_speed                # exchanges of large and of small models
    python -m benchmarks.peer_speed --many 50      # peers on this machine, 100 rounds

One client exchanges a model with each of its neighbors, processes of their own, in both directions
at once. Raw sockets and peers take turns. Both begin with a float32 tensor and end with a bank of
one row per neighbor: sockets send from the tensor and receive into the row, without any check.
For small models, bare gRPC shows what its calls take, in as many processes.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import resource
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from benchmarks.peer_exchanges import (
    LIMIT,
    Exchange,
    Graph,
    grpc_exchange,
    name_of,
    peer_exchange,
    socket_exchange,
)
from equipoise.peers import make_certificates
from equipoise.peers.transport import CHUNK_BYTES

_FORK = multiprocessing.get_context("fork")


class Group:
    """Clients in processes of their own, which exchange when told to."""

    def __init__(self, make: Callable[..., Exchange], graph: Graph, d: int) -> None:
        ports = free_ports(len(graph))
        self._pipes = []
        for i in range(len(graph)):
            here, there = _FORK.Pipe()
            target = partial(make, i, graph, ports, d)
            _FORK.Process(target=serve, args=(target, there), daemon=True).start()
            self._pipes.append(here)
        for pipe in self._pipes:
            receive(pipe)
        self._t = 0

    def exchange(self, rounds: int = 1) -> tuple[float, list[dict[str, float]]]:
        """Seconds until all clients are done, and what each client has measured."""
        begin = time.perf_counter()
        found = self._ask((self._t, rounds))
        self._t += rounds
        return time.perf_counter() - begin, found

    def memory(self) -> list[dict[str, float]]:
        """The bytes of each client."""
        return self._ask(None)

    def _ask(self, task: tuple[int, int] | None) -> list[dict[str, float]]:
        for pipe in self._pipes:
            pipe.send(task)
        return [receive(pipe) for pipe in self._pipes]


def receive(pipe: Connection) -> Any:
    if not pipe.poll(LIMIT):
        raise RuntimeError(f"a client must answer within {LIMIT} seconds, found silence")
    return pipe.recv()


def serve(make: Callable[[], Exchange], pipe: Connection) -> None:
    """Be a client until the main process ends this one."""
    torch.set_num_threads(1)
    exchange = make()
    pipe.send(True)
    while True:
        task = pipe.recv()
        # Not after each exchange: to add up the pages of a process takes 3 ms.
        pipe.send(memory() if task is None else timed(exchange, *task))


def timed(exchange: Exchange, start: int, rounds: int) -> dict[str, float]:
    used = time.process_time()
    begin = time.perf_counter()
    for t in range(start, start + rounds):
        exchange(t)
    return {"seconds": time.perf_counter() - begin, "cpu": time.process_time() - used}


def memory() -> dict[str, float]:
    """The largest memory of this process so far, and what it does not share with others."""
    # In KiB on Linux.
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    private = sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))
    return {"peak": peak, "private": 1024 * private}


def free_ports(count: int) -> list[int]:
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


def star(neighbors: int) -> Graph:
    """Client 0 in the center."""
    return [list(range(1, neighbors + 1))] + [[0] for _ in range(neighbors)]


def circulant(n: int) -> Graph:
    """Each client has the two before it and the two behind it as neighbors."""
    return [sorted({(i + step) % n for step in (-2, -1, 1, 2)}) for i in range(n)]


def measure_star(d: int, neighbors: int, repeats: int) -> dict[str, object]:
    """Median milliseconds of an exchange of each kind, and of the ratio of neighboring ones."""
    graph = star(neighbors)
    with tempfile.TemporaryDirectory() as folder:
        make_certificates(Path(folder), [name_of(i) for i in range(len(graph))])
        groups = {
            "sockets": Group(socket_exchange, graph, d),
            **({"grpc": Group(grpc_exchange, graph, d)} if 4 * d <= CHUNK_BYTES else {}),
            "peers": Group(peer_exchange, graph, d),
            "peers_tls": Group(partial(peer_exchange, folder=folder), graph, d),
        }
    for _ in range(2):  # connections and memory
        for group in groups.values():
            group.exchange()
    times: dict[str, list[float]] = {kind: [] for kind in groups}
    center: dict[str, list[dict[str, float]]] = {kind: [] for kind in groups}
    others: dict[str, list[float]] = {kind: [] for kind in groups}
    for _ in range(repeats):
        for kind, group in groups.items():
            seconds, clients = group.exchange()
            times[kind].append(seconds)
            center[kind].append(clients[0])
            others[kind].append(statistics.mean(client["cpu"] for client in clients[1:]))
    found: dict[str, object] = {"d": d, "neighbors": neighbors, "repeats": repeats}
    for kind in groups:
        ratios = [raw / other for raw, other in zip(times["sockets"], times[kind], strict=True)]
        found[kind] = {
            "milliseconds": _middle(times[kind], 1e3),
            "milliseconds_of_center": _middle([x["seconds"] for x in center[kind]], 1e3),
            "cpu_milliseconds_of_center": _middle([x["cpu"] for x in center[kind]], 1e3),
            "cpu_milliseconds_of_neighbor": _middle(others[kind], 1e3),
            "share_of_sockets": _middle(ratios, 1.0),
        }
    return found


def _middle(values: list[float], factor: float) -> dict[str, float]:
    quarters = statistics.quantiles(values, n=4)
    names = ("quarter", "median", "three_quarters")
    return {name: round(x * factor, 3) for name, x in zip(names, quarters, strict=True)}


def measure_many(n: int, d: int, rounds: int) -> dict[str, object]:
    """Seconds of many rounds of n peers; a round with an absence fails."""
    group = Group(peer_exchange, circulant(n), d)
    seconds, _ = group.exchange(rounds)
    clients = group.memory()
    return {
        "peers": n,
        "degree": 4,
        "d": d,
        "rounds": rounds,
        "absences": 0,
        "seconds": round(seconds, 2),
        "peak_mib_of_peer": round(max(x["peak"] for x in clients) / 2**20, 1),
        "private_mib_of_peer": round(max(x["private"] for x in clients) / 2**20, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parameters", type=int, nargs=2, default=[11_000_000, 1000])
    parser.add_argument("--neighbors", type=int, nargs=2, default=[5, 10])
    parser.add_argument("--repeats", type=int, nargs=2, default=[9, 101])
    parser.add_argument("--many", type=int, help="so many peers, and no other measurement")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--json", type=Path, help="append the results to this file")
    options = parser.parse_args()
    if options.many:
        results = [measure_many(options.many, 10_000, options.rounds)]
    else:
        cases = zip(options.parameters, options.neighbors, options.repeats, strict=True)
        results = [measure_star(*case) for case in cases]
    record = {
        "command": "python -m benchmarks.peer_speed " + " ".join(sys.argv[1:]),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cores": len(os.sched_getaffinity(0)),
        "load": [round(x, 1) for x in os.getloadavg()],
        "results": results,
    }
    print(json.dumps(record, indent=1))
    if options.json:
        known = json.loads(options.json.read_text()) if options.json.exists() else []
        options.json.write_text(json.dumps([*known, record], indent=1) + "\n")


if __name__ == "__main__":
    main()
