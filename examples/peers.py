"""Six peers on this machine: one is malicious, one is killed half-way and restarted.

    python -m pip install -c constraints.txt ".[peers,data,plots]"
    python examples/peers.py
    python examples/peers.py --rule FedAvg  # without a defense

Each peer is a process that runs peer.py, with a certificate of its own and mutual TLS. The table
shows them while they train. peers.png shows the test errors, and for each neighbor of each peer the
rounds in which its message was accepted, rejected or absent.
"""

from __future__ import annotations

import argparse
import json
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from matplotlib.colors import ListedColormap
from matplotlib.patches import Patch

import equipoise as eq

NAMES = ["site-a", "site-b", "site-c", "site-d", "site-e", "site-f"]
MALICIOUS = "site-f"
KILLED = "site-c"
DECISIONS = {"accepted": eq.plots.BENIGN, "rejected": eq.plots.MALICIOUS, "absent": "#DDDDDD"}
SCRIPT = Path(__file__).with_name("peer.py")


def prepare(folder):
    """Give each peer its part of the handwritten digits, and a certificate."""
    digits = eq.data.digits()
    # Non-IID: half of the examples of a digit are at one peer.
    parts = digits.split(eq.data.by_group(digits, len(NAMES), p=0.5))
    test = {"test_x": digits.test_x.flatten(1), "test_y": digits.test_y}
    for name, (x, y) in zip(NAMES, parts, strict=True):
        torch.save({"x": x.flatten(1), "y": y, **test}, folder / f"{name}-data.pt")
    eq.peers.make_certificates(folder, NAMES)


def commands(folder, rounds, rule):
    """The command that starts each peer."""
    graph = eq.Topology.regular(len(NAMES), 4, seed=0, malicious=[NAMES.index(MALICIOUS)])
    addresses = {name: f"127.0.0.1:{port}" for name, port in zip(NAMES, free_ports(), strict=True)}
    found = {}
    for i, name in enumerate(NAMES):
        neighbors = [NAMES[j] for j in graph.neighbors(i).tolist()]
        found[name] = [
            *(sys.executable, str(SCRIPT), name, "--listen", addresses[name]),
            *("--neighbors", *(f"{other}={addresses[other]}" for other in neighbors)),
            *("--folder", str(folder), "--rounds", str(rounds), "--rule", rule),
        ]
    found[MALICIOUS].append("--rehearse")
    return found


def free_ports():
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in NAMES]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


class Fleet:
    """The processes, one for each peer."""

    def __init__(self, folder, commands):
        self.folder = folder
        self.commands = commands
        self.processes = {name: self.start(name) for name in NAMES}
        self.killed_at = None

    def start(self, name):
        with open(self.folder / f"{name}.log", "a") as output:
            command = self.commands[name]
            return subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes.values():
            process.kill()
            process.wait()

    def rounds(self, name):
        """The rounds that a peer has recorded so far."""
        path = self.folder / f"{name}.jsonl"
        lines = path.read_text("utf-8").splitlines(keepends=True) if path.exists() else []
        # A process that is writing, or was killed meanwhile, leaves an incomplete line.
        return [json.loads(line) for line in lines if line.endswith("}\n")]

    def is_running(self):
        """Whether some peer trains, and none has failed."""
        codes = {name: process.poll() for name, process in self.processes.items()}
        failed = [name for name, code in codes.items() if code and (name, code) != (KILLED, -9)]
        return None in codes.values() and not failed

    def state(self, name):
        code = self.processes[name].poll()
        if code is None:
            return "malicious" if name == MALICIOUS else "running"
        return "finished" if code == 0 else f"stopped ({code})"


def train(fleet, rounds):
    """Let the peers train; kill one of them half-way, and start it again three rounds later."""
    table = Table()
    while fleet.is_running():
        histories = {name: fleet.rounds(name) for name in NAMES}
        newest = max((history[-1]["t"] for history in histories.values() if history), default=-1)
        if fleet.killed_at is None and rounds // 2 < len(histories[KILLED]) < rounds - 5:
            fleet.processes[KILLED].kill()  # SIGKILL: the process can do nothing about it
            fleet.processes[KILLED].wait()
            fleet.killed_at = histories[KILLED][-1]["t"]
        elif fleet.state(KILLED) == "stopped (-9)" and newest > fleet.killed_at + 2:
            fleet.processes[KILLED] = fleet.start(KILLED)
        table.show(histories, fleet, newest)
        time.sleep(0.1)
    histories = {name: fleet.rounds(name) for name in NAMES}
    table.show(histories, fleet, rounds)
    return histories


class Table:
    """A table that is drawn again in a terminal, and a row for every ten rounds otherwise."""

    def __init__(self):
        self.drawn = 0
        self.shown = -10

    def show(self, histories, fleet, newest):
        if sys.stdout.isatty():
            self.draw(histories, fleet)
        elif newest - self.shown >= 10:
            if self.shown < 0:
                print("Test error rate of each peer; - until its first round ends")
                print("  ".join(["round", *histories]))
            self.shown = newest
            errors = [f"{x[-1]['error']:6.2f}" if x else f"{'-':>6}" for x in histories.values()]
            print("  ".join([f"{newest:5}", *errors]), flush=True)

    def draw(self, histories, fleet):
        columns = ("round", "test error", *DECISIONS)
        lines = ["  ".join(["peer  ", *columns, "state"])]
        for name, history in histories.items():
            found = ["-"] * len(columns)  # its first round has not ended
            if history:
                last = history[-1]
                decisions = list(last["neighbors"].values())
                counts = [decisions.count(kind) for kind in DECISIONS]
                found = [last["t"], f"{last['error']:.2f}", *counts]
            cells = [f"{x:>{len(column)}}" for x, column in zip(found, columns, strict=True)]
            lines.append("  ".join([name, *cells, fleet.state(name)]))
        up = f"\x1b[{self.drawn}A" if self.drawn else ""
        self.drawn = len(lines)
        print(up + "\n".join(f"\x1b[2K{line}" for line in lines), flush=True)


def draw(histories, killed_at, path):
    """Draw the test errors, and what became of each message."""
    figure, (top, bottom) = plt.subplots(
        2, figsize=(7, 5.6), sharex=True, layout="constrained", height_ratios=[1, 1.5]
    )
    benign = {name: history for name, history in histories.items() if name != MALICIOUS}
    draw_errors(top, benign, killed_at)
    draw_decisions(bottom, benign)
    for ax in (top, bottom):
        ax.spines[["top", "right"]].set_visible(False)
        ax.tick_params(labelsize=7, width=0.5, length=2.5)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def draw_errors(ax, histories, killed_at):
    for i, (name, history) in enumerate(histories.items()):
        errors = torch.full((history[-1]["t"] + 1,), torch.nan)  # skipped rounds are gaps
        for entry in history:
            errors[entry["t"]] = entry["error"]
        style = {"color": eq.plots.COLORS[i], "marker": eq.plots.MARKERS[i], "markersize": 3}
        ax.plot(errors.numpy(), linewidth=1, markevery=(i, 6), label=name, **style)
    heard = (e["t"] for e in histories[KILLED] if set(e["neighbors"].values()) != {"absent"})
    back = next((t for t in heard if t > killed_at), killed_at)
    ax.axvspan(killed_at, back, color="#DDDDDD", linewidth=0)
    note = {"xycoords": ("data", "axes fraction"), "fontsize": 7, "va": "top"}
    ax.annotate(f"{KILLED} is killed ", (killed_at, 1), ha="right", **note)
    ax.annotate(" and is back", (back, 1), ha="left", **note)
    ax.set_ylim(0, 1)
    ax.set_ylabel("test error rate", fontsize=8)
    place_legend(ax, len(histories))


def draw_decisions(ax, histories):
    """A row for each edge, a column for each round; the rows of a receiver are together."""
    rounds = 1 + max(history[-1]["t"] for history in histories.values())
    kinds = list(DECISIONS)
    rows, labels = [], []
    for receiver, history in histories.items():
        for sender in history[0]["neighbors"]:
            row = torch.full((rounds,), torch.nan)
            for entry in history:
                row[entry["t"]] = kinds.index(entry["neighbors"][sender])
            rows.append(row)
            labels.append((len(rows) - 1, f"{receiver} ← {sender}"))
        rows.append(torch.full((rounds,), torch.nan))  # a gap
    colors = ListedColormap(list(DECISIONS.values()))
    image = torch.stack(rows[:-1]).numpy()
    ax.imshow(image, cmap=colors, vmin=-0.5, vmax=2.5, aspect="auto", interpolation="nearest")
    ax.set_yticks([y for y, _ in labels], [label for _, label in labels])
    for label in ax.get_yticklabels():
        label.set_color(eq.plots.MALICIOUS if label.get_text().endswith(MALICIOUS) else "black")
    ax.set_xlabel("round", fontsize=8)
    ax.set_ylabel("receiver ← sender", fontsize=8)
    handles = [Patch(color=color, label=kind) for kind, color in DECISIONS.items()]
    place_legend(ax, len(handles), handles=handles)


def place_legend(ax, columns, **entries):
    """Put the legend above the axes, where it covers nothing."""
    place = {"loc": "lower left", "bbox_to_anchor": (0, 1)}
    ax.legend(ncols=columns, fontsize=7, frameon=False, **place, **entries)


def main(rounds=80, rule="Balance", output=Path("peers.png")):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder)
        with Fleet(folder, commands(folder, rounds, rule)) as fleet:
            histories = train(fleet, rounds)
            states = {name: fleet.state(name) for name in NAMES}
        print("\nWhat site-b has logged:")
        print((folder / "site-b.log").read_text("utf-8"), end="")
    if set(states.values()) != {"finished"}:
        raise SystemExit(f"not all peers finished: {states}")
    draw(histories, fleet.killed_at, output)
    print(f"saved {output}")
    return histories


def parsed():
    parser = argparse.ArgumentParser(description="Run six peers on this machine.")
    parser.add_argument("--rounds", type=int, default=80)
    parser.add_argument("--rule", default="Balance", choices=["Balance", "FedAvg"])
    parser.add_argument("--output", type=Path, default=Path("peers.png"))
    return parser.parse_args()


if __name__ == "__main__":
    main(**vars(parsed()))
