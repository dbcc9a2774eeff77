"""How often a call of each rule lets the host wait for the device, on the path of torch.

    EQUIPOISE_NATIVE=0 python -m benchmarks.host_waits

Runs on the CPU, and counts operations whose result the host must read on a GPU: numbers, and the
ids of elements, whose number is not known before. The graph is regular of degree 8, and its inbox
has served rounds before.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

import equipoise as eq
from benchmarks.workloads import FURTHER_RULES, RULES

WAITS = {
    *("_local_scalar_dense", "nonzero", "equal", "masked_select"),
    *("_unique2", "unique_dim", "bincount", "repeat_interleave"),
}
CLIENTS = (20, 400)
LENGTH = 1000  # parameters of a model
MEASURED = {**RULES, "UBAR(own)": eq.UBAR(empty="own"), "LEARN": eq.LEARN(), **FURTHER_RULES}


class Waits(TorchDispatchMode):
    """Counts the operations that the host waits for."""

    count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None):
        name = function._schema.name.removeprefix("aten::")
        # A mask as an index is turned into ids first.
        is_masked = name.startswith("index") and isinstance(args[1], list | tuple)
        is_masked = is_masked and any(x is not None and x.dtype == torch.bool for x in args[1])
        self.count += name in WAITS or is_masked
        return function(*args, **(kwargs or {}))


def waits(rule: Any, n: int) -> int:
    """The waits of the last of three rounds."""
    graph = eq.Topology.regular(n, 8, seed=0)
    models = torch.randn(n, LENGTH, generator=torch.Generator().manual_seed(0))
    inboxes: dict[int, eq.Inbox] = {}

    def exchange(sent: torch.Tensor) -> eq.Inbox:
        length = sent.shape[1]
        known = inboxes.get(length)
        inboxes[length] = graph.deliver(sent) if known is None else known.with_bank(sent.clone())
        return inboxes[length]

    for t in range(3):
        models = models + 0.01
        with Waits() as counted:
            eq.run_exchanges(
                rule,
                models,
                exchange,
                t=t,
                total=10,
                tolerated=torch.full((n,), 2),
                samples=torch.ones(n, dtype=torch.int64),
                update=models / 10,
                generator=torch.Generator().manual_seed(t),
                loss_of=lambda models, clients: models.square().mean(1),
            )
    return counted.count


def main() -> None:
    warnings.simplefilter("ignore")
    print("rule            ", *(f"{n:>5} clients" for n in CLIENTS))
    for name, rule in MEASURED.items():
        print(f"{name:16}", *(f"{waits(rule, n):>13}" for n in CLIENTS))


if __name__ == "__main__":
    main()
