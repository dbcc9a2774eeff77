"""A rank that fails ends the run on all ranks, with one error that says why."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import equipoise as eq
from equipoise.simulation import sharded_checkpoints
from tests.simulation.sharding.small_shards import Setting

RANKS = 3
FAILING = 1
SECONDS = 5.0  # within which the other ranks must know
TIMEOUT = 120.0  # of the group: much later than that


def _play(rank: int, failure: str, store: str, pipe: Connection) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        store=dist.FileStore(store, RANKS),
        rank=rank,
        world_size=RANKS,
        timeout=timedelta(seconds=TIMEOUT),
    )
    simulator = Setting(rounds=10_000).simulator(dist.group.WORLD, RANKS)

    def fail(running: eq.Simulator) -> None:
        if rank != FAILING or running.t < 3:
            return
        pipe.send(time.time())
        if failure != "raise":
            os.kill(os.getpid(), signal.SIGKILL)
        raise KeyError("no such example")

    save = sharded_checkpoints.save_tensors

    def save_or_fail(*args: Any, **options: Any) -> None:
        fail(simulator)
        save(*args, **options)

    try:
        if failure == "kill while saving":
            sharded_checkpoints.save_tensors = save_or_fail
            simulator.run(checkpoint=f"{store}-checkpoint", save_every=3)
        else:
            simulator.run(on_round=fail)
    except Exception as error:
        pipe.send((time.time(), type(error).__name__, str(error), simulator.t))
    pipe.poll(TIMEOUT)  # a process that goes on, so that no connection closes


@pytest.mark.parametrize("failure", ["kill", "raise", "kill while saving"])
def test_all_ranks_end_within_seconds(tmp_path: Path, failure: str) -> None:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["equipoise", __name__])
    pipes = []
    processes = []
    for rank in range(RANKS):
        ours, theirs = context.Pipe()
        args = (rank, failure, str(tmp_path / "store"), theirs)
        processes.append(context.Process(target=_play, args=args))
        processes[-1].start()
        theirs.close()
        pipes.append(ours)
    try:
        assert pipes[FAILING].poll(TIMEOUT)
        failed = pipes[FAILING].recv()
        for rank in {0, 1, 2} - {FAILING}:
            assert pipes[rank].poll(SECONDS), f"rank {rank} still waits"
            when, kind, text, t = pipes[rank].recv()
            assert when - failed < SECONDS
            assert (kind, t) == ("LostRankError", 3)
            assert f"rank {rank} of 3 cannot go on" in text
            assert "go on from the last checkpoint" in text
            assert ("while it saved a checkpoint" in text) == (failure == "kill while saving")
            if failure == "raise":
                assert "rank 1: KeyError: 'no such example'" in text
    finally:
        for pipe in pipes:
            pipe.close()
        for process in processes:
            process.kill()
            process.join()
