"""The least time of one round's training on this machine, for comparison with what it takes.

Three measurements: the multiply-adds at the rate of `machine_limits.c`; one copy of the trained
models, since each is read and written once; and torch's own products for the same layers, without
autograd, losses and updates, and without the functions between them. Nothing that is built on
torch's products is faster than the last. The C code for convolutions is, because pooling leaves
only one of four gradients to multiply.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from benchmarks.limits import measured_limits
from benchmarks.round_workloads import Setting, Task

Run = Callable[[], object]


@dataclass(frozen=True)
class Limit:
    """Milliseconds that the training of the benign clients takes at least in one round."""

    arithmetic: float | None  # None if there is no compiler
    memory: float
    products: float


@dataclass(frozen=True)
class Layer:
    """A layer with the inputs of one client, whether its inputs need gradients, and pooling."""

    module: nn.Conv2d | nn.Linear
    x: Tensor
    y: Tensor
    first: bool
    pooled: int | None = None  # sums that a pooling after the layer reads, if there is one

    @property
    def multiply_adds(self) -> float:
        """Those of a step; pooling passes a gradient to one of four sums."""
        each = self.module.weight[0].numel()
        forward = (self.y.numel() if self.pooled is None else self.pooled) * each
        backward = forward * (1 if self.first else 2)
        return forward + backward * (1 if self.pooled is None else 0.25)

    def products(self, clients: int) -> Run:
        """All products of torch for a step of some clients."""
        weight = self.module.weight.detach()
        if isinstance(self.module, nn.Linear):
            weights = weight.repeat(clients, 1, 1)
            x = self.x.repeat(clients, 1, 1)
            delta = self.y.repeat(clients, 1, 1).mT.contiguous()
            return lambda: linear_products(weights, x, delta, self.first)
        options = (self.module.stride, self.module.padding, self.module.dilation, False, (0, 0), 1)
        mask = (not self.first, True, False)

        def convolve() -> None:
            for _ in range(clients):
                torch.ops.aten.convolution(self.x, weight, None, *options)
                torch.ops.aten.convolution_backward(self.y, self.x, weight, None, *options, mask)

        return convolve


def linear_products(weight: Tensor, x: Tensor, delta: Tensor, first: bool) -> None:
    """Outputs and gradients of stacked linear layers, in the fastest order of torch."""
    torch.bmm(weight, x.mT)
    torch.bmm(delta, x)
    if not first:
        torch.bmm(weight.mT, delta)


def layers_of(model: nn.Module, x: Tensor) -> list[Layer]:
    """The layers that multiply, in their order, for one batch ``x``."""
    found: list[Layer] = []

    def see(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        if isinstance(module, nn.MaxPool2d):
            last = found.pop()
            found.append(Layer(last.module, last.x, last.y, last.first, 4 * output.numel()))
        elif isinstance(module, nn.Conv2d | nn.Linear):
            found.append(Layer(module, inputs[0], output, first=not found))

    hooks = [module.register_forward_hook(see) for module in model.modules()]
    with torch.no_grad():
        model(x)
    for hook in hooks:
        hook.remove()
    return found


def measure_limit(task: Task, turns: int) -> Limit:
    setting = Setting(task)
    x = setting.x[0, : task.batch]
    if task.has_images:
        x = x.contiguous(memory_format=torch.channels_last)
    layers = layers_of(setting.model, x)
    models = setting.initial.repeat(task.benign, 1)
    copies = torch.empty_like(models)
    runs = [layer.products(task.benign) for layer in layers]
    rates = measured_limits()
    work = task.benign * sum(layer.multiply_adds for layer in layers)
    return Limit(
        arithmetic=None if rates is None else 1e-6 * work / rates["products"],
        memory=best_ms(lambda: copies.copy_(models), turns),
        products=best_ms(lambda: [run() for run in runs], turns),
    )


def best_ms(run: Run, turns: int) -> float:
    """CPU milliseconds of the best turn, after one that does not count."""
    times = []
    for _ in range(turns + 1):
        start = time.process_time()
        run()
        times.append(1e3 * (time.process_time() - start))
    return min(times[1:])
