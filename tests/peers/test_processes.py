"""Peers as six processes of this machine, connected by gRPC."""

from __future__ import annotations

import random
import socket
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from multiprocessing import get_context
from typing import Any

import pytest
import torch
from torch import Tensor

import equipoise as eq
from tests.peers import runs

pytestmark = pytest.mark.filterwarnings("ignore::equipoise.GuaranteeWarning")


def free_ports(count: int) -> list[int]:
    """Ports that are free now, and that the system does not give to other connections."""
    found: list[int] = []
    # Ephemeral ports begin at 32768 or higher.
    for port in random.SystemRandom().sample(range(10_000, 32_000), 1_000):
        with socket.socket() as one, suppress(OSError):
            one.bind(("127.0.0.1", port))
            found.append(port)
        if len(found) == count:
            return found
    raise OSError(f"found {len(found)} free ports of {count}")


def play_all(client: int, ports: list[list[int]]) -> dict[str, Tensor]:
    """The models of one client, after a run with each rule; runs in a process of its own."""
    torch.set_num_threads(1)
    found = {}
    for (name, rule), of_run in zip(runs.EVERY.items(), ports, strict=True):
        addresses = {
            other: f"127.0.0.1:{port}" for other, port in zip(runs.NAMES, of_run, strict=True)
        }
        neighbors = {other: addresses[other] for other in runs.neighbors_of(client)}
        own = runs.NAMES[client]
        with eq.Peer(own, neighbors, listen=addresses[own], names=runs.NAMES) as peer:
            found[name] = runs.play(peer, client, rule, runs.trainer())
    return found


@pytest.fixture(scope="module")
def models() -> list[dict[str, Tensor]]:
    """By client and rule."""
    count = len(runs.NAMES)
    ports = free_ports(count * len(runs.EVERY))
    tables = [ports[start : start + count] for start in range(0, len(ports), count)]
    with ProcessPoolExecutor(count, mp_context=get_context("spawn")) as pool:
        waiting = [pool.submit(play_all, client, tables) for client in range(count)]
        return [one.result() for one in waiting]


@pytest.mark.parametrize("name", runs.EVERY)
def test_every_rule_equals_simulator(name: str, models: list[dict[str, Any]]) -> None:
    found = torch.stack([of_client[name] for of_client in models])
    torch.testing.assert_close(found, runs.simulated(runs.EVERY[name]), rtol=0, atol=0)
