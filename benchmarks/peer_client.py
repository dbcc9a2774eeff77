"""One peer that trains, as a process of its own: an ordinary script, with a checkpoint and a log.

Run from the root of the repository, in a terminal for each peer:
``python -m benchmarks.peer_client --name a --listen 127.0.0.1:7000 --neighbors b=127.0.0.1:7001``.

It trains a logistic regression on examples of its own, and next to it a second one that never
exchanges, for comparison. Each round writes one line to ``--log``.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import resource
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

import equipoise as eq
from equipoise.peers import Credentials, MaliciousPeer, Peer
from equipoise.types import RoundInputs

logger = logging.getLogger("peer_client")

EXAMPLES = 1_000  # of one client
TEST_EXAMPLES = 2_000
STEPS = 3  # of gradient descent in a round
RATE = 0.5

Checkpoint = dict[str, Any]  # t, the next round; model; alone, the model without exchanges


class Problem(NamedTuple):
    """Examples of one client and of the test, with labels 0 and 1."""

    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor

    @classmethod
    def of_client(cls, name: str, d: int, seed: int) -> Problem:
        """Each client has examples of its own; a tenth of their labels are wrong."""
        common = torch.Generator().manual_seed(seed)
        truth = torch.randn(d, generator=common)
        test_x = torch.randn(TEST_EXAMPLES, d, generator=common)
        own = torch.Generator().manual_seed(int.from_bytes(name.encode()[-6:], "big") + seed)
        x = torch.randn(EXAMPLES, d, generator=own)
        is_wrong = torch.rand(EXAMPLES, generator=own) < 0.1
        y = ((x @ truth > 0) ^ is_wrong).float()
        return cls(x, y, test_x, (test_x @ truth > 0).float())

    def trained(self, model: Tensor) -> Tensor:
        """The model after one round of local training."""
        for _ in range(STEPS):
            residual = torch.sigmoid(self.x @ model) - self.y
            model = model - RATE * (self.x.T @ residual) / len(self.y)
        return model

    def error(self, model: Tensor) -> float:
        """The share of test examples with a wrong prediction; 1 for a model that is not finite."""
        if not model.isfinite().all():
            return 1.0
        is_wrong = (self.test_x @ model > 0) != (self.test_y > 0)
        return is_wrong.float().mean().item()


def load_checkpoint(path: Path, d: int) -> Checkpoint:
    """The last checkpoint, or the state before round 0."""
    if not path.exists():
        return {"t": 0, "model": torch.zeros(d), "alone": torch.zeros(d)}
    loaded: Checkpoint = torch.load(path, weights_only=True)
    return loaded


def save_checkpoint(path: Path, checkpoint: Checkpoint) -> bool:
    """Replace the checkpoint; keep the previous one and return False if it cannot be written."""
    temporary = path.with_suffix(".tmp")
    try:
        # torch.save needs an open file: given a path, it raises RuntimeError on a full disk.
        with open(temporary, "wb") as file:
            torch.save(checkpoint, file)
            file.flush()
            os.fsync(file.fileno())  # the name must not reach the disk before the content
        os.replace(temporary, path)
    except OSError as error:
        logger.warning("checkpoint not saved, the previous one stays: %s", error)
        return False
    return True


def run(peer: Peer, options: argparse.Namespace) -> None:
    """Train and exchange from the checkpoint to the last round."""
    problem = Problem.of_client(options.name, options.d, options.seed)
    rule = getattr(eq, options.rule)()
    checkpoint = load_checkpoint(options.checkpoint, options.d)
    t = checkpoint["t"]
    while t < options.total:
        next_round = time.monotonic() + options.pace
        alone = problem.trained(checkpoint["alone"])
        own = problem.trained(checkpoint["model"])
        time.sleep(max(0.0, next_round - time.monotonic()))  # a real model would take this long
        begun = time.monotonic()
        inbox = peer.exchange(own, t, deadline=options.deadline)
        seconds = time.monotonic() - begun
        out = rule(own, inbox, t=t, total=options.total, tolerated=1)
        peer.record(out)
        model = eq.mix(own, out.model, alpha=0.5)
        # A peer that was stopped or restarted skips the rounds that the others have finished.
        following = max(t + 1, peer.newest_round(tolerated=1) or 0)
        checkpoint = {"t": following, "model": model, "alone": alone}
        line = {
            "t": t,
            "begun": begun,
            "seconds": seconds,
            "absences": {peer.names[i]: reason for i, reason in inbox.absences.items()},
            "error": problem.error(model),
            "error_alone": problem.error(alone),
            "is_saved": save_checkpoint(options.checkpoint, checkpoint),
            "mb": resident_mb(),
        }
        with open(options.log, "a") as log:
            print(json.dumps(line), file=log)
        t = following


def resident_mb() -> float:
    """Memory of this process in MB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def make_peer(options: argparse.Namespace) -> Peer:
    """The peer of the command line, benign or malicious."""
    named: dict[str, Any] = {
        "listen": options.listen,
        "alarm_after": 3,
        "max_staleness": options.max_staleness,
    }
    if options.certificates is None:
        named["insecure"] = options.insecure
    else:
        named["credentials"] = Credentials.load(options.certificates, options.name)
    neighbors = dict(text.split("=", 1) for text in options.neighbors)
    if options.malicious is None:
        return Peer(options.name, neighbors, **named)
    attack = getattr(eq.attacks, options.malicious)()
    believed = getattr(eq, options.rule)()
    inputs: RoundInputs = {"total": options.total, "tolerated": 1}
    return MaliciousPeer(options.name, neighbors, attack, rule=believed, inputs=inputs, **named)


def skew_clock(seconds: float) -> None:
    """Shift the wall clock of this process as Python sees it."""
    true_time = time.time
    true_time_ns = time.time_ns
    time.time = lambda: true_time() + seconds
    time.time_ns = lambda: true_time_ns() + int(1e9 * seconds)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    found = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    found.add_argument("--name", required=True)
    found.add_argument("--listen", required=True, metavar="HOST:PORT")
    found.add_argument("--neighbors", nargs="+", required=True, metavar="NAME=HOST:PORT")
    found.add_argument("--certificates", type=Path, metavar="FOLDER")
    found.add_argument("--insecure", action="store_true", help="beyond loopback without TLS")
    found.add_argument("--malicious", metavar="ATTACK", help="lie with this attack")
    found.add_argument("--rule", default="Balance")
    found.add_argument("--total", type=int, default=30, help="rounds")
    found.add_argument("--deadline", type=float, default=0.5, help="seconds of an exchange")
    found.add_argument("--pace", type=float, default=0.1, help="least seconds of training")
    found.add_argument("--max-staleness", type=int, default=1, help="rounds, see equipoise.Peer")
    found.add_argument("--d", type=int, default=20, help="parameters of the model")
    found.add_argument("--seed", type=int, default=0)
    found.add_argument("--checkpoint", type=Path, required=True)
    found.add_argument("--log", type=Path, required=True)
    found.add_argument("--clock-skew", type=float, default=0.0, metavar="SECONDS")
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one peer to the end."""
    options = parser().parse_args(arguments)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("equipoise.peers").setLevel(logging.INFO)
    torch.set_num_threads(1)
    if options.clock_skew:
        skew_clock(options.clock_skew)
    with make_peer(options) as peer:
        run(peer, options)


if __name__ == "__main__":
    main()
