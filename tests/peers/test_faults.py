"""Peers survive kills, stops, full disks and neighbors that never start, on loopback."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from multiprocessing import get_context, set_forkserver_preload
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import peer_client
from equipoise.peers import InMemoryNetwork, Peer

pytest.importorskip("grpc")

PEERS = 3
TOTAL = 12
DEADLINE = 0.7  # long enough for a slow machine, as no verdict depends on it
PATIENCE = 60.0  # seconds after which a test fails


class Processes:
    """Peers that are processes of this machine, each with a checkpoint and a log."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.names = [f"peer-{i}" for i in range(PEERS)]
        self.addresses = [f"127.0.0.1:{port}" for port in free_ports()]
        self.total = TOTAL
        self.running: dict[int, BaseProcess] = {}

    def start(self, i: int) -> None:
        neighbors = [f"{self.names[j]}={self.addresses[j]}" for j in range(PEERS) if j != i]
        options = {
            "name": self.names[i],
            "listen": self.addresses[i],
            "total": self.total,
            "deadline": DEADLINE,
            "checkpoint": self.folder / f"{i}.pt",
            "log": self.folder / f"{i}.jsonl",
        }
        words = [f"--{key}={value}" for key, value in options.items()]
        self.running[i] = get_context("forkserver").Process(
            target=peer_client.main, args=([*words, "--neighbors", *neighbors],)
        )
        self.running[i].start()

    def signal(self, i: int, number: signal.Signals) -> None:
        pid = self.running[i].pid
        assert pid is not None
        os.kill(pid, number)

    def rounds(self, i: int) -> list[dict[str, Any]]:
        """The log of a peer, without a line that is still being written."""
        path = self.folder / f"{i}.jsonl"
        lines = path.read_text().split("\n")[:-1] if path.exists() else []
        return [json.loads(line) for line in lines]

    def wait_for_rounds(self, i: int, count: int) -> None:
        limit = time.monotonic() + PATIENCE
        while len(self.rounds(i)) < count:
            assert time.monotonic() < limit, f"peer {i} has not run {count} rounds"
            time.sleep(0.02)

    def join(self) -> None:
        """Wait for the end; every peer must have reached its last round with a usable model."""
        for i, process in self.running.items():
            process.join(PATIENCE)
            assert process.exitcode == 0
            last = self.rounds(i)[-1]
            assert last["t"] == self.total - 1
            assert last["error"] < 0.2

    def hears(self, i: int, j: int) -> list[bool]:
        """For each round of peer i, whether it heard peer j."""
        return [self.names[j] not in line["absences"] for line in self.rounds(i)]


def free_ports() -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(PEERS)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


@pytest.fixture
def processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Processes]:
    # Peers start from a process that has imported torch, but has not used gRPC.
    monkeypatch.setenv("GRPC_ENABLE_FORK_SUPPORT", "0")
    set_forkserver_preload(["benchmarks.peer_client"])
    found = Processes(tmp_path)
    yield found
    for process in found.running.values():
        process.kill()
        process.join()


def test_killed_peer_resumes_and_is_heard_again(processes: Processes) -> None:
    for i in range(PEERS):
        processes.start(i)
    processes.wait_for_rounds(2, 2)
    processes.signal(2, signal.SIGKILL)
    processes.running[2].join()
    before = len(processes.rounds(2))
    seen = len(processes.rounds(0))
    processes.start(2)
    processes.join()
    assert processes.rounds(2)[before]["t"] > 0
    assert any(processes.hears(0, 2)[seen + 1 :])


def test_stopped_peer_skips_to_the_others(processes: Processes) -> None:
    for i in range(PEERS):
        processes.start(i)
    processes.wait_for_rounds(2, 2)
    processes.signal(2, signal.SIGSTOP)
    processes.wait_for_rounds(0, len(processes.rounds(0)) + 4)
    processes.signal(2, signal.SIGCONT)
    processes.join()
    assert len(processes.rounds(2)) < TOTAL
    assert len(processes.rounds(0)) == TOTAL
    assert any(processes.hears(0, 2)[-4:])


def test_peer_that_never_starts_is_absent(processes: Processes) -> None:
    processes.total = 5
    processes.start(0)
    processes.start(1)
    processes.join()
    assert not any(processes.hears(0, 2))
    assert any(processes.hears(0, 1))


def test_full_disk_keeps_the_previous_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = f"--name=a --listen=127.0.0.1:0 --neighbors b=127.0.0.1:1 --total 6 --pace 0.001 \
        --deadline 0.01 --checkpoint {tmp_path}/a.pt --log {tmp_path}/a.jsonl".split()
    options = peer_client.parser().parse_args(words)
    save = torch.save

    def save_until_full(checkpoint: dict[str, Any], file: Any) -> None:
        save(checkpoint, file)
        if checkpoint["t"] in (4, 5):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if checkpoint["t"] == 6:
            assert peer_client.load_checkpoint(options.checkpoint, options.d)["t"] == 3

    monkeypatch.setattr(torch, "save", save_until_full)
    with Peer("a", ["b"], transport=InMemoryNetwork().transport("a")) as peer:
        peer_client.run(peer, options)
    saved = [json.loads(line)["is_saved"] for line in options.log.read_text().splitlines()]
    assert saved == [True, True, True, False, False, True]
    assert peer_client.load_checkpoint(options.checkpoint, options.d)["t"] == 6
