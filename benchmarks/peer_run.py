"""One run of six peers on a network of this machine, with faults that hit them."""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from benchmarks import peer_client
from benchmarks.peer_network import Link, PeerNetwork, enter_namespace

PEERS = 6
PORT = 7000
ENDING = 60.0  # seconds after the last fault until all peers must have ended

Row = dict[str, Any]


@dataclass(frozen=True)
class Fault:
    """One fault: what happens to which clients, when, and for how many seconds.

    A kill with infinite ``seconds`` has no restart. ``value`` is the delay of packets or the share
    of lost ones.
    """

    kind: str
    clients: tuple[int, ...]
    begin: float
    seconds: float
    value: float = 0.0

    def __str__(self) -> str:
        clients = ",".join(map(str, self.clients))
        value = f" {self.value:.2g}" if self.value else ""
        return f"{self.kind}{value} {clients} {self.begin:.1f}+{self.seconds:.1f}"


class Run:
    """Six processes, the faults that hit them, and what they leave behind.

    Args:
        network: a new network.
        folder: for the logs.
        disks: an empty folder on a disk of its own for each peer.
        options: of the command line.
        malicious: the client that lies.
        attack: how it lies.
        skews: seconds by which each wall clock is wrong.
        total: rounds.
    """

    def __init__(
        self,
        network: PeerNetwork,
        folder: Path,
        disks: Sequence[Path],
        options: argparse.Namespace,
        *,
        malicious: int,
        attack: str,
        skews: Sequence[float],
        total: int,
    ) -> None:
        self.malicious = malicious
        self.names = [f"peer-{i}" for i in range(PEERS)]
        self.ended_for_good: set[int] = set()
        self.continued: list[list[float]] = [[] for _ in range(PEERS)]
        self.ends: dict[Fault, float] = {}  # when a fault was over
        self._network = network
        self._folder = folder
        self._disks = disks
        self._options = options
        self._attack = attack
        self._skews = skews
        self._total = total
        self._active: list[Fault] = []
        self._processes: dict[int, BaseProcess] = {}

    # Processes

    def start(self, client: int) -> None:
        """Start the process of a client."""
        addresses = [f"{host}:{PORT}" for host in self._network.hosts]
        neighbors = [f"{self.names[i]}={addresses[i]}" for i in range(PEERS) if i != client]
        arguments = {
            "--name": self.names[client],
            "--listen": addresses[client],
            "--certificates": self._options.certificates,
            "--total": self._total,
            "--deadline": self._options.deadline,
            "--pace": self._options.pace,
            "--d": self._options.d,
            "--max-staleness": self._options.max_staleness,
            "--checkpoint": self._disks[client] / "checkpoint.pt",
            "--log": self.log(client),
            "--clock-skew": self._skews[client],
        }
        if client == self.malicious:
            arguments["--malicious"] = self._attack
        words = [f"{key}={value}" for key, value in arguments.items()]
        self._processes[client] = get_context("forkserver").Process(
            target=run_client,
            args=(
                self._network.namespaces[client],
                [*words, "--neighbors", *neighbors],
                str(self.log(client).with_suffix(".err")),
            ),
        )
        self._processes[client].start()

    def log(self, client: int) -> Path:
        """Where a client writes a line for each round."""
        return self._folder / f"{self.names[client]}.jsonl"

    def signal(self, client: int, number: signal.Signals) -> None:
        """Send a signal to the process of a client, if it still runs."""
        process = self._processes[client]
        if process.is_alive() and process.pid is not None:
            os.kill(process.pid, number)

    # Faults

    def play(self, faults: Sequence[Fault]) -> None:
        """Start all peers, let the faults happen, and wait for the peers to end."""
        events: list[tuple[float, int, Callable[[Fault], None], Fault]] = []
        for i, fault in enumerate(faults):
            events.append((fault.begin, i, self._begin, fault))
            if math.isfinite(fault.seconds):
                events.append((fault.begin + fault.seconds, i, self._end, fault))
        try:
            for client in range(PEERS):
                self.start(client)
            started = time.monotonic()
            for when, _, action, fault in sorted(events, key=lambda event: event[:2]):
                time.sleep(max(0.0, started + when - time.monotonic()))
                action(fault)
            limit = time.monotonic() + ENDING
            for process in self._processes.values():
                process.join(max(0.0, limit - time.monotonic()))
        finally:
            for process in self._processes.values():
                process.kill()
                process.join()

    def _begin(self, fault: Fault) -> None:
        client = fault.clients[0]
        self._active.append(fault)
        # The power fails on the network first: a dying process would say goodbye.
        self._set_links()
        if fault.kind in ("kill", "power-off"):
            self.signal(client, signal.SIGKILL)
            if math.isinf(fault.seconds):
                self.ended_for_good.add(client)
        elif fault.kind == "stop":
            self.signal(client, signal.SIGSTOP)
        elif fault.kind == "full-disk":
            fill(self._disks[client] / "filler")

    def _end(self, fault: Fault) -> None:
        client = fault.clients[0]
        self._active.remove(fault)
        self._set_links()
        if fault.kind in ("kill", "power-off"):
            self._processes[client].join()
            self.start(client)
        elif fault.kind == "stop":
            self.continued[client].append(time.monotonic())
            self.signal(client, signal.SIGCONT)
        elif fault.kind == "full-disk":
            (self._disks[client] / "filler").unlink(missing_ok=True)
        self.ends[fault] = time.monotonic()

    def _set_links(self) -> None:
        """Derive the state of all links from the active faults."""
        for client in range(PEERS):
            found = [fault for fault in self._active if client in fault.clients]
            delay = sum(fault.value for fault in found if fault.kind == "delay")
            sides = [i for i, x in enumerate(self._active) if x in found and x.kind == "partition"]
            self._network.links[client] = Link(
                delay=delay,
                jitter=delay / 4,
                loss=max((fault.value for fault in found if fault.kind == "loss"), default=0.0),
                side=sum(1 << i for i in sides),
                is_down=any(fault.kind == "power-off" for fault in found),
            )

    # The records of the peers

    def lines(self, client: int) -> list[Row]:
        """The log of a client, without a line that was cut by a kill."""
        found: list[Row] = []
        if self.log(client).exists():
            for line in self.log(client).read_text().splitlines():
                with suppress(json.JSONDecodeError):
                    found.append(json.loads(line))
        return found

    def benign(self) -> list[int]:
        """All clients but the malicious one."""
        return [i for i in range(PEERS) if i != self.malicious]

    def overrun(self, client: int, line: Row) -> float:
        """Seconds that an exchange took beyond its deadline, without those of a stopped process."""
        ended = line["begun"] + line["seconds"]
        due = line["begun"] + self._options.deadline
        while_running = [x for x in self.continued[client] if line["begun"] <= x <= ended]
        return float(ended - max([due, *while_running]))

    def problems(self, client: int) -> list[str]:
        """The faults of a benign client."""
        lines = self.lines(client)
        found = []
        overrun = max((self.overrun(client, line) for line in lines), default=0.0)
        if overrun > self._options.tolerance:
            found.append(f"{overrun:.2f} s beyond a deadline")
        errors = self.log(client).with_suffix(".err")
        if errors.exists() and "Traceback" in errors.read_text():
            found.append("an exception")
        if client not in self.ended_for_good:
            if self._processes[client].exitcode != 0:
                found.append(f"exit code {self._processes[client].exitcode}")
            if not lines or lines[-1]["t"] != self._total - 1:
                found.append("last round not reached")
            elif not lines[-1]["error"] <= lines[-1]["error_alone"] + self._options.margin:
                found.append(f"error {lines[-1]['error']:.3f}")
        return [f"{self.names[client]}: {text}" for text in found]

    def silent_links(self) -> int:
        """How many links between survivors carried no message in the three rounds before the last.

        In the last round, others may have ended already.
        """
        survivors = [client for client in self.benign() if client not in self.ended_for_good]
        found = 0
        for receiver in survivors:
            lines = self.lines(receiver)[-4:-1]
            for sender in survivors:
                found += all(self.names[sender] in line["absences"] for line in lines)
        return found

    def row(self) -> Row:
        """The results of all benign clients."""
        lines = {client: self.lines(client) for client in self.benign()}
        every = [line for found in lines.values() for line in found]
        absences: Counter[str] = Counter()
        for line in every:
            absences.update(reason.partition(":")[0] for reason in line["absences"].values())
        overruns = [self.overrun(client, x) for client, found in lines.items() for x in found]
        written = {client: found for client, found in lines.items() if found}
        growth = [found[-1]["mb"] - found[len(found) // 3]["mb"] for found in written.values()]
        survivors = [x[-1] for client, x in written.items() if client not in self.ended_for_good]
        return {
            "problems": [text for client in self.benign() for text in self.problems(client)],
            "exchanges": len(every),
            "overrun": round(max(overruns, default=0.0), 3),
            "absences": dict(absences),
            "silent_links": self.silent_links(),
            "unsaved": sum(not line["is_saved"] for line in every),
            "error": round(max((x["error"] for x in survivors), default=1.0), 3),
            "error_alone": round(max((x["error_alone"] for x in survivors), default=1.0), 3),
            "growth_mb": round(max(growth, default=0.0), 1),
        }


def run_client(namespace: str, arguments: list[str], errors: str) -> None:
    """A process of one peer, in its namespace."""
    enter_namespace(namespace)
    file = os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, sys.stderr.fileno())
    peer_client.main(arguments)


def fill(path: Path) -> None:
    """Write a file until the disk is full."""
    with suppress(OSError), open(path, "wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass


@contextmanager
def small_disk(path: Path) -> Iterator[None]:
    """A disk of 256 KiB."""
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", path], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", path], check=True)


def play(options: argparse.Namespace, name: str, faults: Sequence[Fault], **named: Any) -> Run:
    """Run six peers on a new network with new disks."""
    folder = options.logs / name
    folder.mkdir(parents=True)
    disks = [folder / f"disk-{i}" for i in range(PEERS)]
    with ExitStack() as stack:
        for disk in disks:
            stack.enter_context(small_disk(disk))
        network = stack.enter_context(PeerNetwork(PEERS))
        run = Run(network, folder, disks, options, **named)
        run.play(faults)
        return run
