"""How a simulation in two processes compares with one, at one thread per process.

    python -m benchmarks.scaling --json benchmarks/scaling.json            # all workloads
    python -m benchmarks.scaling cnn mlp --json benchmarks/scaling.json    # some, others are kept

``cnn`` is the paper's network with 20 clients, ``mlp`` a perceptron of 784, 200 and 10 units with
100. A round is one step of gradient descent, or ten. The two numbers of processes take turns, a few
rounds at a time, so that other load on the machine meets both. ``large`` is one simulation of
100,000 clients in two processes: its memory and its time per client are what a plan for more
machines needs.
"""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import json
import multiprocessing
import os
import platform
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

import equipoise as eq
from benchmarks.round_workloads import mlp

RANKS = 2
DEGREE = 10
LARGE = 100_000  # clients
TURNS = 5
SECONDS = 2.0  # of each turn, in one process


def simulator(
    group: Any,
    model: nn.Module,
    shape: tuple[int, ...],
    n: int,
    *,
    examples: int = 64,
    batch: int = 32,
    steps: int = 1,
) -> eq.Simulator:
    """Clients with random images, which take as long to learn from as others."""

    def load(client: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(client)
        x = torch.rand(examples, *shape, generator=generator)
        return x, torch.randint(10, (examples,), generator=generator)

    return eq.Simulator(
        eq.LocalSGD(
            model,
            torch.nn.functional.cross_entropy,
            eq.training.LazyClients(n, load),
            lr=0.01,
            batch_size=batch,
            steps=steps,
        ),
        eq.Topology.regular(n, min(DEGREE, n - 1), seed=0, connected=n < LARGE),
        eq.Balance(),
        eq.flatten(model).expand(n, -1),
        total=1_000_000,
        evaluate_every=[],
        group=group,
    )


IMAGE = (1, 28, 28)


def cnn(group: Any, n: int = 20) -> eq.Simulator:
    return simulator(group, eq.models.cnn(IMAGE, 10), IMAGE, n)


def cnn_10(group: Any, n: int = 20) -> eq.Simulator:
    return simulator(group, eq.models.cnn(IMAGE, 10), IMAGE, n, steps=10)


def perceptron(group: Any, n: int = 100) -> eq.Simulator:
    return simulator(group, nn.Sequential(nn.Flatten(), mlp()), IMAGE, n)


def perceptron_10(group: Any, n: int = 100) -> eq.Simulator:
    return simulator(group, nn.Sequential(nn.Flatten(), mlp()), IMAGE, n, steps=10)


def large(group: Any, n: int = LARGE) -> eq.Simulator:
    model = eq.models.logistic_regression(64, 10)
    return simulator(group, model, (64,), n, examples=16, batch=16)


@dataclass(frozen=True)
class Job:
    """Rounds of one simulation, or of one of half the size in each process."""

    make: Callable[..., eq.Simulator]
    rounds: int
    ranks: int = RANKS
    apart: bool = False

    @property
    def key(self) -> tuple[str, int, bool]:
        return self.make.__name__, self.ranks, self.apart

    def start(self, own: Any, world: Any) -> eq.Simulator:
        if not self.apart:
            return self.make(own if self.ranks == 1 else world)
        clients = inspect.signature(self.make).parameters["n"].default
        return self.make(own, clients // RANKS)


def measure(job: Job, running: eq.Simulator, group: Any) -> dict[str, Any]:
    """The time of some rounds, and what the ranks sent."""
    before = running.part.ranks.bytes_sent
    dist.barrier(group)
    start = time.perf_counter()
    for _ in range(job.rounds):
        running.step()
    dist.barrier(group)
    return {
        "seconds": (time.perf_counter() - start) / job.rounds,
        "bytes": (running.part.ranks.bytes_sent - before) / job.rounds,
        "rows": running.cut().rows,
        "edges": running.cut().edges,
        "d": running.models.shape[1],
        "phases": dict(running.history[-1].seconds),
        "peak_rss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def _serve(rank: int, store: str, pipe: Connection) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        store=dist.FileStore(store, RANKS),
        rank=rank,
        world_size=RANKS,
        timeout=timedelta(minutes=10),
    )
    alone = [dist.new_group([other]) for other in range(RANKS)]
    world = dist.new_group(list(range(RANKS)))
    imported = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    kept: dict[tuple[str, int, bool], eq.Simulator] = {}
    for job in iter(pipe.recv, None):
        if job.key not in kept:
            kept[job.key] = job.start(alone[rank], world)
            kept[job.key].step()
        found = measure(job, kept[job.key], alone[rank] if job.ranks == 1 else world)
        pipe.send(found | {"imported_rss": imported})


class Ranks:
    """Processes that simulate when they are told to."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        store = str(Path(tempfile.mkdtemp()) / "store")
        self._pipes = []
        for rank in range(RANKS):
            ours, theirs = context.Pipe()
            context.Process(target=_serve, args=(rank, store, theirs), daemon=True).start()
            self._pipes.append(ours)

    def run(self, job: Job) -> list[Any]:
        for pipe in self._pipes[: job.ranks]:
            pipe.send(job)
        return [pipe.recv() for pipe in self._pipes[: job.ranks]]

    def close(self) -> None:
        for pipe in self._pipes:
            pipe.send(None)


def race(make: Callable[..., eq.Simulator]) -> dict[str, Any]:
    """Rounds in one process, in two, and in two that know nothing of each other, by turns."""
    ranks = Ranks()
    rounds = max(1, round(SECONDS / ranks.run(Job(make, 1, ranks=1))[0]["seconds"]))
    jobs = [Job(make, rounds, ranks=1), Job(make, rounds), Job(make, rounds, apart=True)]
    for job in jobs:
        ranks.run(dataclasses.replace(job, rounds=1))
    turns = []
    for _ in range(TURNS):
        found = [ranks.run(job) for job in jobs]
        turns.append([each[0]["seconds"] for each in found])
    ranks.close()
    two = found[1]
    expected = two[0]["rows"] * two[0]["d"] * 4
    medians = [1e3 * statistics.median(times) for times in zip(*turns, strict=True)]
    speedups = [one / two for one, two, _ in turns]
    limits = [one / apart for one, _, apart in turns]
    return {
        "rounds_per_turn": rounds,
        "ms_one_process": medians[0],
        "ms_two_processes": medians[1],
        "ms_two_apart": medians[2],
        "speedup": statistics.median(speedups),
        "speedups": [round(each, 3) for each in speedups],
        "speedup_apart": statistics.median(limits),
        "speedups_apart": [round(each, 3) for each in limits],
        "d": two[0]["d"],
        "cut_edges": two[0]["edges"],
        "cut_rows": two[0]["rows"],
        "bytes_per_round": sum(x["bytes"] for x in two),
        "bytes_over_cut_rows": sum(x["bytes"] for x in two) / expected,
        "phases_ms": {name: value * 1e3 for name, value in two[0]["phases"].items()},
        "phases_ms_one_process": {
            name: value * 1e3 for name, value in found[0][0]["phases"].items()
        },
    }


def measure_large() -> dict[str, Any]:
    """One simulation of many small clients in two processes."""
    ranks = Ranks()
    start = time.perf_counter()
    ranks.run(Job(large, 1))
    prepared = time.perf_counter() - start
    found = ranks.run(Job(large, 5))
    ranks.close()
    mine = LARGE / RANKS
    return {
        "clients": LARGE,
        "degree": DEGREE,
        "d": found[0]["d"],
        "seconds_to_prepare": prepared,
        "seconds_per_round": found[0]["seconds"],
        "us_per_client_and_round": found[0]["seconds"] / mine * 1e6,
        "cut_rows": found[0]["rows"],
        "bytes_per_round": sum(x["bytes"] for x in found),
        "bytes_over_cut_rows": sum(x["bytes"] for x in found)
        / (found[0]["rows"] * found[0]["d"] * 4),
        "peak_rss_gib": [x["peak_rss"] / 2**30 for x in found],
        "kib_per_client": max(x["peak_rss"] - x["imported_rss"] for x in found) / mine / 2**10,
        "phases_ms": {name: value * 1e3 for name, value in found[0]["phases"].items()},
    }


WORKLOADS: dict[str, Callable[[], dict[str, Any]]] = {
    "cnn": lambda: race(cnn),
    "mlp": lambda: race(perceptron),
    "cnn-10-steps": lambda: race(cnn_10),
    "mlp-10-steps": lambda: race(perceptron_10),
    "large": measure_large,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("workloads", nargs="*", choices=[*WORKLOADS, []])
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    results: dict[str, Any] = {}
    if arguments.json and arguments.json.exists():
        results = json.loads(arguments.json.read_text())
    results["settings"] = {
        "torch": torch.__version__,
        "equipoise": eq.__version__,
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "threads_per_process": 1,
    }
    for name in arguments.workloads or WORKLOADS:
        results[name] = WORKLOADS[name]()
        print(name, json.dumps(results[name], indent=1), flush=True)
        if arguments.json:
            arguments.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
