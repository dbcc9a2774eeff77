"""Hostile streams against a listening peer that exchanges models with honest neighbors.

    python -m benchmarks.hostile_peers --streams 10000 --json benchmarks/hostile_peers.json

Five processes: the victim, an `eq.Peer`; two honest neighbors, which exchange a model with it in
each round; and an attacker, which is two more neighbors of it. With certificates, the attacker has
its own, valid ones, and everything holds that the verdict lists. Without, anybody can speak in the
name of a neighbor, so that only time, memory and survival are promised.

The exit code is 1 if a promise is broken. Linux only: memory and descriptors are read from /proc.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import resource
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import equipoise as eq

if TYPE_CHECKING:
    from benchmarks.hostile_streams import RefusingServer

HONEST = ["a", "b"]
MALICIOUS = ["m", "u"]  # m is deaf, u answers for ever that it is about to stop
TOLERANCE = 0.25  # seconds beyond the deadline, for a machine whose cores are shared
QUIET = 12.0  # seconds after the attack, for descriptors and threads to come back
MIB = 2**20
# MiB of gRPC for one neighbor: 4 streams, each 4 MiB ahead of its reader and with two copies of a
# chunk of 2 MiB.
BUFFERS = 32
KEPT = 64  # MiB of freed memory that the allocator may keep, see `keep_freed_memory`
# MiB of an open connection: 4 that nobody has read yet, and 0.6 of its own after half of a chunk;
# before, 0.1, or 0.25 with TLS.
CONNECTION = 4 + 0.6


def setting(path: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(path).read_text())
    return found


def credentials_of(options: dict[str, Any], name: str) -> eq.peers.Credentials | None:
    folder = options["folder"]
    return None if folder is None else eq.peers.Credentials.load(folder, name)


def beginning(options: dict[str, Any]) -> float:
    """When the first round begins; waits until that is known."""
    path = Path(options["begin"])
    while not path.exists():
        time.sleep(0.05)
    return float(path.read_text())


def rounds(options: dict[str, Any]) -> Iterator[int]:
    """Rounds that begin at the same time in all processes, as they do after equal training."""
    begin = beginning(options)
    t = 0
    while not Path(options["stop"]).exists():
        time.sleep(max(0.0, begin + t * options["period"] - time.monotonic()))
        yield t
        # A process that the system has not run for a while goes on where the others are.
        t = max(t + 1, int((time.monotonic() - begin) / options["period"]))


def run_peer(name: str, options: dict[str, Any]) -> None:
    """The victim or an honest neighbor; prints a line for each round, and one at the end."""
    torch.set_num_threads(1)
    logging.basicConfig(level=logging.INFO, filename=options["log"] + name)
    neighbors = dict(options["addresses"])
    listen = neighbors.pop(name)
    if name != "victim":
        neighbors = {"victim": neighbors["victim"]}
    own = torch.randn(options["d"])
    proof = credentials_of(options, name)
    peer = eq.Peer(name, neighbors, listen=listen, credentials=proof, max_staleness=0)
    with peer:
        print(json.dumps("ready"), flush=True)
        for t in rounds(options):
            begin = time.monotonic()
            inbox = peer.exchange(own, t, deadline=options["deadline"])
            seconds = time.monotonic() - begin
            reasons = {peer.names[i]: reason for i, reason in inbox.absences.items()}
            print(json.dumps({"t": t, "seconds": seconds, "absences": reasons}), flush=True)
        report = peer.report()
        latency = {name: of.latency for name, of in report.neighbors.items()}
        refused = {name: dict(of.refused) for name, of in report.neighbors.items()}
        print(json.dumps({"latency": latency, "refused": refused}), flush=True)
        # Let the connections of the attacker end, before the descriptors are counted.
        time.sleep(QUIET)


def run_attacker(options: dict[str, Any]) -> None:
    """The streams, from an honest start on; prints what was sent and what came back."""
    from benchmarks.hostile_streams import Attacker, Target

    torch.set_num_threads(1)
    first = beginning(options)
    host, _, port = options["addresses"]["victim"].rpartition(":")
    target = Target(
        host,
        int(port),
        options["d"],
        lambda: max(0, int((time.monotonic() - first) / options["period"])),
        folder=None if options["folder"] is None else Path(options["folder"]),
        strangers=None if options["folder"] is None else Path(options["strangers"]),
    )
    attacker = Attacker(target, seed=options["seed"])
    # The attack begins when the victim has seen some quiet rounds.
    time.sleep(max(0.0, first + 5 * options["period"] - time.monotonic()))
    begin = time.monotonic()
    attacker.connect()
    attacker.flood(min(300, options["streams"] // 10), 5.0)
    attacker.storm(min(1000, options["streams"] // 10))
    attacker.run(options["streams"] - sum(attacker.counts.values()))
    seconds = time.monotonic() - begin
    attacker.close()
    print(json.dumps({"seconds": seconds, "counts": attacker.counts, "answers": attacker.answers}))
    sys.stdout.flush()
    os._exit(0)  # threads of gRPC may still wait for streams that nobody ends


class Observer:
    """Watches memory, descriptors and threads of a process."""

    def __init__(self, pid: int) -> None:
        self._folder = Path(f"/proc/{pid}")
        self.before = self.look()
        self.most = dict(self.before)
        self.memory: list[float] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def look(self) -> dict[str, float]:
        status = dict(
            line.split(":", 1) for line in (self._folder / "status").read_text().splitlines()
        )
        return {
            "MiB": round(int(status["VmRSS"].split()[0]) / 1024, 1),
            "descriptors": len(list((self._folder / "fd").iterdir())),
            "threads": int(status["Threads"]),
        }

    def _watch(self) -> None:
        while not self._ended.wait(0.1):
            try:
                now = self.look()
            except OSError:
                return
            self.memory.append(now["MiB"])
            self.most = {key: max(value, self.most[key]) for key, value in now.items()}

    def end(self) -> dict[str, Any]:
        after = self.look()
        self._ended.set()
        every = max(1, len(self.memory) // 40)
        return {
            "before": self.before,
            "most": self.most,
            "after": after,
            "MiB over time": self.memory[::every],
        }


@contextmanager
def processes(folder: Path, options: dict[str, Any]) -> Iterator[dict[str, subprocess.Popen[str]]]:
    """The peers and the attacker, once all peers listen."""
    path = folder / "options.json"
    path.write_text(json.dumps(options))
    started: dict[str, subprocess.Popen[str]] = {}
    try:
        for role in ("victim", *HONEST, "attacker"):
            command = [sys.executable, "-m", "benchmarks.hostile_peers", "--role", role]
            with (
                (folder / f"{role}.out").open("w") as out,
                (folder / f"{role}.err").open("w") as error,
            ):
                started[role] = subprocess.Popen(
                    [*command, "--options", str(path)], stdout=out, stderr=error, text=True
                )
        while not all((folder / f"{role}.out").read_text() for role in ("victim", *HONEST)):
            time.sleep(0.1)
        yield started
    finally:
        for process in started.values():
            process.kill()
            process.wait()


def free_ports(count: int) -> list[int]:
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [listener.getsockname()[1] for listener in listeners]
    for listener in listeners:
        listener.close()
    return ports


def measure(streams: int, seed: int, d: int, deadline: float, *, secure: bool) -> dict[str, Any]:
    """One attack, and what the victim and its neighbors have seen of it."""
    from benchmarks.hostile_streams import DeafServer, RefusingServer

    with tempfile.TemporaryDirectory() as root:
        folder = Path(root)
        certificates = folder / "certificates" if secure else None
        if secure:
            names = ["victim", *HONEST, *MALICIOUS]
            eq.peers.make_certificates(folder / "certificates", names)
            eq.peers.make_certificates(folder / "strangers", names)
        deaf = DeafServer()
        refusing = RefusingServer(certificates, "u")
        peers = ["victim", *HONEST]
        ports = dict(zip(peers, free_ports(len(peers)), strict=True))
        ports |= {"m": deaf.port, "u": refusing.port}
        options = {
            "addresses": {name: f"127.0.0.1:{port}" for name, port in ports.items()},
            "folder": str(certificates) if secure else None,
            "strangers": str(folder / "strangers"),
            "stop": str(folder / "stop"),
            "log": str(folder / "log-"),
            "begin": str(folder / "begin"),
            "period": deadline + 0.25,
            "deadline": deadline,
            "streams": streams,
            "seed": seed,
            "d": d,
        }
        with processes(folder, options) as started:
            observer = Observer(started["victim"].pid)
            late = Path(options["begin"] + ".new")
            late.write_text(str(time.monotonic() + 1))
            late.rename(options["begin"])
            started["attacker"].wait()
            time.sleep(2 * options["period"])
            Path(options["stop"]).touch()
            time.sleep(0.7 * QUIET + 2 * deadline)
            alive = all(started[name].poll() is None for name in peers)
            seen = observer.end()
            started["victim"].wait(2 * QUIET)
        refusing.close()
        deaf.close()
        return judged(folder, seen, alive, refusing, deadline=deadline, d=d, secure=secure)


def lines(path: Path) -> list[dict[str, Any]]:
    """The output of a process so far."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def judged(
    folder: Path,
    seen: dict[str, Any],
    alive: bool,
    refusing: RefusingServer,
    *,
    deadline: float,
    d: int,
    secure: bool,
) -> dict[str, Any]:
    _, *victim, summary = lines(folder / "victim.out")
    (attack,) = lines(folder / "attacker.out")
    absences = Counter(
        f"{name}: {reason}"
        for line in victim
        for name, reason in line["absences"].items()
        if name in HONEST
    )
    unheard = Counter(
        f"{name}: {reason}"
        for name in HONEST
        for line in lines(folder / f"{name}.out")[1:-1]
        if line["t"] <= victim[-1]["t"]  # the victim stops first
        for reason in line["absences"].values()
    )
    slowest = max(line["seconds"] for line in victim)
    logged = (folder / "log-victim").read_text().splitlines()
    k = len(HONEST) + len(MALICIOUS)
    model = 4 * d / MIB
    # The bound of `Peer`, the bank and the messages to the neighbors, and what gRPC holds.
    connections = seen["most"]["descriptors"] * CONNECTION
    bound = (k * 3 + k + 2) * model + k * BUFFERS + connections + KEPT
    growth = seen["most"]["MiB"] - seen["before"]["MiB"]
    verdict = {
        "every exchange ends by its deadline": slowest <= deadline + TOLERANCE,
        "memory stays within the bound": growth <= bound,
        "all processes survive": alive,
        "nothing on stderr": (folder / "victim.err").read_text() == "",
        "descriptors come back": seen["after"]["descriptors"] <= seen["before"]["descriptors"] + 8,
        "threads come back": seen["after"]["threads"] <= seen["before"]["threads"] + 4,
        "at most 20 lines in the log": len(logged) <= 20,
    }
    if secure:
        verdict["honest neighbors are heard in every round"] = not absences
        verdict["honest neighbors hear the victim in every round"] = not unheard
    return {
        "certificates": secure,
        "streams": sum(attack["counts"].values()),
        "seconds": round(attack["seconds"], 1),
        "rounds": len(victim),
        "slowest exchange, seconds": round(slowest, 3),
        "deadline, seconds": deadline,
        "latency, ms": {x: round(1e3 * y, 1) for x, y in summary["latency"].items() if x in HONEST},
        "absent honest neighbors": dict(absences),
        "victim unheard": dict(unheard),
        "memory": seen,
        "memory growth, MiB": round(growth, 1),
        "memory bound, MiB": round(bound, 1),
        "log": logged[-20:],
        "stderr": (folder / "victim.err").read_text()[:2000],
        "complete models read by the refusing neighbor": refusing.streams,
        "refused": summary["refused"],
        "counts": dict(sorted(attack["counts"].items())),
        "answers": dict(sorted(attack["answers"].items())),
        "verdict": verdict,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", type=int, default=10000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--d", type=int, default=100000)
    parser.add_argument("--deadline", type=float, default=1.0)
    parser.add_argument("--only", choices=("certificates", "insecure"))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--role", help=argparse.SUPPRESS)
    parser.add_argument("--options", help=argparse.SUPPRESS)
    found = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
    if found.role == "attacker":
        run_attacker(setting(found.options))
        return 0
    if found.role:
        run_peer(found.role, setting(found.options))
        return 0
    results = []
    for secure in (True, False):
        if found.only == ("insecure" if secure else "certificates"):
            continue
        result = measure(found.streams, found.seed, found.d, found.deadline, secure=secure)
        results.append(result)
        print(json.dumps({k: v for k, v in result.items() if k != "memory"}, indent=2))
        print({k: v for k, v in result["memory"].items() if k != "MiB over time"})
        if found.json:
            found.json.write_text(json.dumps(results, indent=2) + "\n")
    return 0 if all(all(result["verdict"].values()) for result in results) else 1


if __name__ == "__main__":
    raise SystemExit(main())
