"""Random faults on a network of six peers, one of them malicious; needs root and Linux.

Run from the root of the repository: ``python -m benchmarks.peer_faults --schedules 100``.

Each schedule draws faults from its number: processes are killed, with or without a restart, lose
their power (no packet says so), are stopped and continued; links are delayed, lossy or cut; disks
are full; clocks are wrong. The verdict is about each benign peer that was not killed for good: it
ran every exchange within its deadline, reached the last round, and ended with a model that is not
worse than training alone. ``--recovery`` measures instead how long after a single fault the
messages of each neighbor arrive again.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from multiprocessing import set_forkserver_preload
from pathlib import Path

from benchmarks.peer_run import PEERS, Fault, Row, play
from equipoise.peers import make_certificates

ATTACKS = ("Gaussian", "SignFlip", "NonFinite", "Mimic", "TrimAttack")
KINDS = ("kill", "power-off", "stop", "partition", "delay", "loss", "full-disk")


def drawn_faults(draw: random.Random, malicious: int) -> list[Fault]:
    """Three to six faults at random times, mostly of benign clients."""
    benign = [i for i in range(PEERS) if i != malicious]
    # A process has one fault of its own at most; links and disks may have several.
    processes = draw.sample(benign, len(benign))
    faults = []
    for _ in range(draw.randint(3, 6)):
        kind = draw.choice(KINDS)
        begin = draw.uniform(0.5, 4.0)
        seconds = draw.uniform(0.5, 3.0)
        clients: tuple[int, ...] = (draw.choice(benign),)
        value = 0.0
        if kind in ("kill", "power-off", "stop"):
            if not processes:
                continue
            clients = (processes.pop(),)
            if kind == "kill" and draw.random() < 1 / 3:
                seconds = math.inf
        elif kind == "partition" and draw.random() < 0.5:
            clients = tuple(sorted(draw.sample(range(PEERS), PEERS // 2)))
        elif kind == "delay":
            value = draw.uniform(0.05, 0.2)
        elif kind == "loss":
            value = draw.uniform(0.01, 0.2)
        faults.append(Fault(kind, clients, begin, seconds, value))
    return faults


def run_schedule(options: argparse.Namespace, schedule: int) -> Row:
    """The results of one random schedule."""
    draw = random.Random(f"{options.seed} {schedule}")
    malicious = draw.randrange(PEERS)
    attack = draw.choice(ATTACKS)
    skews = [draw.choice([0.0, draw.uniform(-86400, 86400)]) for _ in range(PEERS)]
    faults = drawn_faults(draw, malicious)
    begun = time.monotonic()
    run = play(
        options,
        f"schedule-{schedule}",
        faults,
        malicious=malicious,
        attack=attack,
        skews=skews,
        total=options.total,
    )
    found = run.row()
    return {
        "schedule": schedule,
        "verdict": "failed" if found["problems"] else "passed",
        "malicious": f"{attack} {malicious}",
        "faults": [str(fault) for fault in faults],
        "skewed": sum(map(bool, skews)),
        **found,
        "seconds": round(time.monotonic() - begun, 1),
    }


def summary(rows: Sequence[Row]) -> Row:
    """All schedules in one row."""
    absences: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    for row in rows:
        absences.update(row["absences"])
        kinds.update(fault.split()[0] for fault in row["faults"])
    return {
        "schedules": len(rows),
        "passed": sum(row["verdict"] == "passed" for row in rows),
        "exchanges": sum(row["exchanges"] for row in rows),
        "overrun": max(row["overrun"] for row in rows),
        "absences": dict(absences),
        "silent_links": sum(row["silent_links"] for row in rows),
        "faults": dict(kinds),
        "seconds": round(sum(row["seconds"] for row in rows), 1),
    }


def recovery(options: argparse.Namespace, fault: Fault) -> Row:
    """How long after a fault the messages between its clients and the others arrive again."""
    # Rounds take their deadline while the fault lasts. Then they are fast, and there are enough for
    # a recovery that takes as long as the fault.
    slow_rounds = fault.seconds / (options.pace + options.deadline)
    total = options.total + math.ceil(slow_rounds + (fault.seconds + 8) / (2 * options.pace))
    run = play(
        options,
        f"{fault.kind}-{len(fault.clients)}-{fault.seconds:g}",
        [fault],
        malicious=PEERS - 1,
        attack="Gaussian",
        skews=[0.0] * PEERS,
        total=total,
    )
    healed = run.ends[fault]
    seconds: list[float] = []
    rounds: list[int] = []
    for receiver in run.benign():
        lines = [x for x in run.lines(receiver) if x["begun"] + x["seconds"] > healed]
        for sender in run.benign():
            if (sender in fault.clients) == (receiver in fault.clients):
                continue
            heard = [i for i, x in enumerate(lines) if run.names[sender] not in x["absences"]]
            first = lines[heard[0]] if heard else {"begun": math.inf, "seconds": 0.0}
            seconds.append(first["begun"] + first["seconds"] - healed)
            rounds.append(heard[0] + 1 if heard else len(lines))
    return {
        "fault": str(fault),
        "links": len(seconds),
        "seconds": [round(statistics.median(seconds), 1), round(max(seconds), 1)],
        "rounds": [round(statistics.median(rounds)), max(rounds)],
        "problems": run.row()["problems"],
    }


SINGLE_FAULTS = [
    *(Fault("partition", (1,), 2.0, seconds) for seconds in (1.0, 2.0, 4.0, 8.0)),
    *(Fault("partition", (0, 1, 2), 2.0, seconds) for seconds in (4.0, 8.0)),
    Fault("kill", (1,), 2.0, 2.0),
    *(Fault("power-off", (1,), 2.0, seconds) for seconds in (2.0, 8.0)),
    *(Fault("stop", (1,), 2.0, seconds) for seconds in (2.0, 8.0)),
]


def store(path: Path, rows: Sequence[Row], recoveries: Sequence[Row]) -> None:
    """Replace the file of results, with one line for each run."""
    found = {"summary": [summary(rows)] if rows else [], "recovery": recoveries, "schedules": rows}
    parts = []
    for name, content in found.items():
        lines = ",\n".join(json.dumps(row) for row in content)
        parts.append(f'"{name}": [\n{lines}\n]')
    temporary = path.with_suffix(".part")
    temporary.write_text("{" + ",\n".join(parts) + "}\n")
    os.replace(temporary, path)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    found = argparse.ArgumentParser(description="Random faults on a network of six peers.")
    found.add_argument("--schedules", type=int, default=100)
    found.add_argument("--first", type=int, default=0, help="number of the first schedule")
    found.add_argument("--jobs", type=int, default=1, help="schedules at a time")
    found.add_argument("--recovery", action="store_true", help="measure single faults instead")
    found.add_argument("--seed", type=int, default=0)
    found.add_argument("--total", type=int, default=30, help="rounds")
    found.add_argument("--deadline", type=float, default=0.5, help="seconds of an exchange")
    found.add_argument("--tolerance", type=float, default=0.25, help="seconds beyond the deadline")
    found.add_argument("--margin", type=float, default=0.05, help="error beyond training alone")
    found.add_argument("--pace", type=float, default=0.1, help="least seconds of training")
    found.add_argument("--max-staleness", type=int, default=1, help="rounds, see equipoise.Peer")
    found.add_argument("--d", type=int, default=20, help="parameters of the model")
    found.add_argument("--json", type=Path, help="file of results, written after each schedule")
    found.add_argument("--resume", action="store_true", help="keep the results in the file")
    found.add_argument("--logs", type=Path, help="folder that keeps the logs of all peers")
    return found


def main() -> int:
    """Run the schedules; return 1 if one failed."""
    options = parser().parse_args()
    # However this process ends, it removes its networks and disks first.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    rows: list[Row] = []
    recoveries: list[Row] = []
    if options.resume and options.json is not None and options.json.exists():
        stored = json.loads(options.json.read_text())
        rows = stored["schedules"]
        recoveries = stored["recovery"]
    # gRPC reads these when it is imported. Peers are forked before any of them uses it.
    os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
    os.environ["GRPC_VERBOSITY"] = "NONE"
    set_forkserver_preload(["benchmarks.peer_client", "benchmarks.peer_run", "grpc.aio"])
    with tempfile.TemporaryDirectory() as folder:
        options.logs = options.logs or Path(folder) / "logs"
        options.certificates = Path(folder) / "certificates"
        make_certificates(options.certificates, [f"peer-{i}" for i in range(PEERS)])
        if options.recovery:
            with ThreadPoolExecutor(options.jobs) as pool:
                recoveries = list(pool.map(partial(recovery, options), SINGLE_FAULTS))
            for row in recoveries:
                print(json.dumps(row))
            if options.json is not None:
                store(options.json, rows, recoveries)
            return 0
        known = {row["schedule"] for row in rows}
        wanted = range(options.first, options.first + options.schedules)
        missing = [schedule for schedule in wanted if schedule not in known]
        with ThreadPoolExecutor(options.jobs) as pool:
            for row in pool.map(partial(run_schedule, options), missing):
                rows.append(row)
                print(json.dumps(row), flush=True)
                if options.json is not None:
                    store(options.json, rows, recoveries)
    print(json.dumps(summary(rows)))
    return int(any(row["problems"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
