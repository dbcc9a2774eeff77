"""Time of an evaluation of all clients, against the fastest loop over one module.

Run from the root of the repository: ``python -m benchmarks.evaluation``.

The loop points the parameters of one module at a client's row, and counts errors by argmax in
inference mode. It is run with batches of several sizes and, for images, with channels last in
memory as well; the fastest of these counts.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

import equipoise as eq
from benchmarks.round_workloads import resnet8
from equipoise.parameters import entries_of

Run = Callable[[], list[float]]

BATCHES = (100, 200, 500, 1_000, 2_000, 5_000, 10_000)
WARM_UP_CLIENTS = 5  # for the choice of loops
FINALISTS = 2  # loops that race
GOAL = 1.0  # times the fastest loop


def perceptron() -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 10))


@dataclass(frozen=True)
class Workload:
    """An architecture, the number of clients, and the shape of the test set."""

    make: Callable[[], nn.Module]
    n: int
    examples: int
    shape: tuple[int, ...]
    classes: int = 10
    buffers: bool = False


WORKLOADS = {
    "A: the paper's CNN": Workload(eq.models.cnn, 20, 10_000, (1, 28, 28)),
    "B: logistic, 561 to 6": Workload(
        partial(eq.models.logistic_regression, 561, 6), 30, 3_000, (561,), classes=6
    ),
    "C: logistic, 64 to 10": Workload(
        partial(eq.models.logistic_regression, 64, 10), 1_000, 400, (64,)
    ),
    "D: perceptron, 784-200-10": Workload(perceptron, 100, 10_000, (784,)),
    "E: ResNet-8, BatchNorm": Workload(
        partial(resnet8, nn.BatchNorm2d), 10, 2_000, (3, 32, 32), buffers=True
    ),
    "E: ResNet-8, GroupNorm": Workload(
        partial(resnet8, partial(nn.GroupNorm, 8)), 10, 2_000, (3, 32, 32)
    ),
}


class Evaluation:
    """The models and the test set of a workload."""

    def __init__(self, work: Workload) -> None:
        torch.manual_seed(0)
        self.buffers = work.buffers
        self.module = work.make().eval()
        like = eq.flatten(self.module, buffers=work.buffers)
        # Scaled, so that variances stay positive.
        self.models = like * (1 + 0.1 * torch.randn(work.n, len(like)))
        self.x = torch.rand(work.examples, *work.shape)
        self.y = torch.randint(work.classes, (work.examples,))
        self.ours = eq.metrics.ErrorRate(self.module, self.x, self.y, buffers=work.buffers)

    def run_ours(self) -> list[float]:
        return self.ours(self.models).tolist()  # type: ignore[no-any-return]

    def loops(self) -> Iterator[tuple[str, Run]]:
        """The loops by name."""
        layouts = {"": self.x}
        if self.x.dim() == 4:
            layouts[", channels last"] = self.x.to(memory_format=torch.channels_last)
        for batch in sorted({min(batch, len(self.y)) for batch in BATCHES}):
            for layout, x in layouts.items():
                yield f"batches of {batch:,}{layout}", partial(self._run_loop, x, batch)

    @torch.inference_mode()
    def _run_loop(self, x: Tensor, batch: int) -> list[float]:
        tensors = [entry.tensor for entry in entries_of(self.module, "module", self.buffers)]
        sizes = [tensor.numel() for tensor in tensors]
        batches = list(zip(x.split(batch), self.y.split(batch), strict=True))
        values = []
        for row in self.models:
            for tensor, part in zip(tensors, row.split(sizes), strict=True):
                tensor.data = part.view(tensor.shape)
            errors = torch.zeros((), dtype=torch.int64)
            for images, labels in batches:
                errors += (self.module(images).argmax(1) != labels).sum()
            values.append(errors.item() / len(self.y))
        return values


def milliseconds_of(run: Run) -> float:
    """CPU time: other processes do not count."""
    start = time.process_time()
    run()
    return 1e3 * (time.process_time() - start)


def race(work: Workload, repeats: int) -> dict[str, float | str]:
    """The best turn of ours and of the fastest loop, in milliseconds; they take turns."""
    evaluation = Evaluation(work)
    loops = dict(evaluation.loops())
    # The second turn counts.
    few = Evaluation(replace(work, n=min(work.n, WARM_UP_CLIENTS)))
    warm_up = {name: milliseconds_of(run) for _ in range(2) for name, run in few.loops()}
    finalists = sorted(warm_up, key=warm_up.__getitem__)[:FINALISTS]
    runs = {"ours": evaluation.run_ours} | {name: loops[name] for name in finalists}
    best: dict[str, float] = {}
    for _ in range(repeats):
        for name, run in runs.items():
            ms = milliseconds_of(run)
            best[name] = min(ms, best.get(name, ms))
    ours = best.pop("ours")
    loop = min(best, key=best.__getitem__)
    return {"ours_ms": ours, "loop_ms": best[loop], "loop": loop, "ratio": ours / best[loop]}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--workloads", nargs="*", default=["A", "B", "C", "D", "E"], choices=list("ABCDE")
    )
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    found: dict[str, dict[str, float | str]] = {}
    print("| workload | clients | examples | equipoise, ms | fastest loop, ms | ratio | loop |")
    print("|---|---:|---:|---:|---:|---:|---|")
    for name, work in WORKLOADS.items():
        if name[0] not in options.workloads:
            continue
        row = found[name] = race(work, options.repeats)
        times = f"{row['ours_ms']:.1f} | {row['loop_ms']:.1f} | {row['ratio']:.2f} | {row['loop']}"
        print(f"| {name} | {work.n:,} | {work.examples:,} | {times} |", flush=True)
    if options.json:
        options.json.write_text(json.dumps({"threads": options.threads} | found, indent=1) + "\n")
    return int(any(float(row["ratio"]) > GOAL for row in found.values()))


if __name__ == "__main__":
    sys.exit(main())
