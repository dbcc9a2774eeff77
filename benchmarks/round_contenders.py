"""The contenders of the race of rounds: the simulator, and what an expert would write instead.

Each has ``round()``, which trains, forges, delivers, aggregates and mixes once, and ``models``,
the models of the benign clients. The contenders do no work for malicious clients but draw their
noise, and have none of the simulator's checks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy

import equipoise as eq
from benchmarks import batched, naive
from benchmarks.peers import byzfl_rule
from benchmarks.round_workloads import LR, TOTAL, Setting
from benchmarks.workloads import RULES
from equipoise.rules import without_warnings

ALPHA = 0.5  # the weight of own in the mixture, the default of the simulator
# Values of all messages, (benign, k, d), up to which batched rules are used: 64 MiB of float32.
# Above, a loop over the receivers is faster, because their messages stay in the cache.
GATHERED = 1 << 24


class Contender(Protocol):
    def round(self) -> object: ...

    @property
    def models(self) -> Tensor: ...


class Ours:
    """The simulator, with its defaults and without evaluation."""

    def __init__(self, setting: Setting, rule: str, momentum: float = 0.0) -> None:
        task = setting.task
        trainer = eq.LocalSGD(
            setting.model,
            cross_entropy,
            list(zip(setting.x, setting.y, strict=True)),
            lr=LR,
            batch_size=task.batch,
            momentum=momentum,
            buffers=task.buffers,
        )
        self._benign = task.benign
        self.simulator = eq.Simulator(
            trainer,
            setting.topology,
            RULES[rule],
            setting.initial.expand(task.n, -1),
            attack=eq.attacks.Gaussian(task.std),
            malicious=setting.malicious,
            total=TOTAL,
            evaluate_every={-1},
        )

    def round(self) -> Any:
        # Krum has no guarantee with four neighbors, of which the simulator warns once per run.
        with without_warnings():
            return self.simulator.step()

    @property
    def models(self) -> Tensor:
        return self.simulator.models[: self._benign]


class PlainLoop:
    """A module and an optimizer for each benign client, and the rule for one receiver at a time."""

    def __init__(self, setting: Setting, rule: Callable[..., Tensor], channels_last: bool) -> None:
        task = setting.task
        self._setting = setting
        self._rule = rule
        self._t = 0
        layout = torch.channels_last if channels_last else torch.contiguous_format
        model = in_plain_torch(setting.model).to(memory_format=layout)
        self._modules = [deepcopy(model) for _ in range(task.benign)]
        self._tensors = [tensors_of(module) for module in self._modules]
        self._sizes = [tensor.numel() for tensor in self._tensors[0]]
        self._optimizers = [torch.optim.SGD(m.parameters(), lr=LR) for m in self._modules]
        self._x = list(setting.x[: task.benign])
        if channels_last:
            self._x = [x.contiguous(memory_format=layout) for x in self._x]
        self._senders = list(setting.senders)
        self._tolerated = setting.tolerated.tolist()
        self._sent = torch.empty(task.n, sum(self._sizes))
        self._mixed = torch.empty(task.benign, sum(self._sizes))

    def round(self) -> None:
        self._train()
        benign = self._setting.task.benign
        for row, tensors in zip(self._sent, self._tensors, strict=False):
            to_vector(tensors, row)
        self._sent[benign:].normal_(std=self._setting.task.std)
        for i in range(benign):
            own = self._sent[i]
            received = self._sent[self._senders[i]]
            inputs = {"t": self._t, "total": TOTAL, "tolerated": self._tolerated[i]}
            torch.lerp(self._rule(own, received, **inputs), own, ALPHA, out=self._mixed[i])
        with torch.no_grad():
            for row, tensors in zip(self._mixed, self._tensors, strict=True):
                from_vector(row.split(self._sizes), tensors)
        self._t += 1

    def _train(self) -> None:
        task = self._setting.task
        positions = draw_batches(task.benign, task.examples, task.batch)
        for i, module in enumerate(self._modules):
            loss = cross_entropy(module(self._x[i][positions[i]]), self._setting.y[i, positions[i]])
            self._optimizers[i].zero_grad()
            loss.backward()
            self._optimizers[i].step()

    @property
    def models(self) -> Tensor:
        return self._mixed


class Vmap:
    """Stacked parameters, trained by ``vmap(grad(loss))``; the rule for all receivers at once.

    The stacked parameters are views of the models (n, d), so nothing is flattened.
    """

    def __init__(self, setting: Setting, rule: str) -> None:
        task = setting.task
        self._setting = setting
        self._rule = rule
        self._t = 0
        self._model = in_plain_torch(setting.model)
        for module in self._model.modules():
            if isinstance(module, nn.BatchNorm2d):
                # A count that torch.func cannot update, and that is not used with a momentum.
                module.num_batches_tracked = None
        shared = dict(self._model.named_parameters())
        buffers = {name: b for name, b in self._model.named_buffers() if b.is_floating_point()}
        sizes = [tensor.numel() for tensor in (*shared.values(), *buffers.values())]
        self._sent = setting.initial.repeat(task.n, 1)
        parts = self._sent[: task.benign].split(sizes, dim=1)
        views = dict(zip((*shared, *buffers), parts, strict=True))
        self._parameters = {name: as_shape(views[name], p) for name, p in shared.items()}
        self._buffers = {name: as_shape(views[name], b) for name, b in buffers.items()}
        self._gradients = vmap(grad(self._loss, has_aux=True))
        self._senders = setting.senders
        self._tolerated = setting.tolerated
        self._each_tolerated = self._tolerated.tolist()

    def _loss(self, parameters: Any, buffers: Any, x: Tensor, y: Tensor) -> tuple[Tensor, Any]:
        # Copies, because BatchNorm updates its statistics in place.
        buffers = {name: buffer.clone() for name, buffer in buffers.items()}
        outputs = functional_call(self._model, (parameters, buffers), (x,))
        return cross_entropy(outputs, y), buffers

    def round(self) -> None:
        task = self._setting.task
        clients = torch.arange(task.benign)[:, None]
        positions = draw_batches(task.benign, task.examples, task.batch)
        x = self._setting.x[clients, positions]
        y = self._setting.y[clients, positions]
        gradients, buffers = self._gradients(self._parameters, self._buffers, x, y)
        with torch.no_grad():
            for name, gradient in gradients.items():
                self._parameters[name].sub_(gradient, alpha=LR)
            for name, buffer in buffers.items():
                self._buffers[name].copy_(buffer)
            self._sent[task.benign :].normal_(std=task.std)
            self.models.copy_(torch.lerp(self._aggregate(), self.models, ALPHA))
        self._t += 1

    def _aggregate(self) -> Tensor:
        if self._senders.numel() * self._sent.shape[1] > GATHERED:
            return torch.stack([self._aggregate_one(i) for i in range(len(self._senders))])
        inputs = {"t": self._t, "total": TOTAL, "tolerated": self._tolerated}
        return batched.RULES[self._rule](self.models, self._sent[self._senders], **inputs)

    def _aggregate_one(self, i: int) -> Tensor:
        inputs = {"t": self._t, "total": TOTAL, "tolerated": self._each_tolerated[i]}
        return naive_rule(self._rule)(self._sent[i], self._sent[self._senders[i]], **inputs)

    @property
    def models(self) -> Tensor:
        return self._sent[: self._setting.task.benign]


def in_plain_torch(model: nn.Module) -> nn.Module:
    """The same layers without the library's fused convolutions."""
    return nn.Sequential(*deepcopy(model)) if isinstance(model, nn.Sequential) else deepcopy(model)


def draw_batches(clients: int, examples: int, batch: int) -> Tensor:
    """(clients, batch) positions, with replacement, which is cheaper than without.

    A batch of all examples has each of them once.
    """
    if batch == examples:
        return torch.arange(examples).expand(clients, -1)
    return torch.randint(examples, (clients, batch))


def tensors_of(module: nn.Module) -> list[Tensor]:
    """The parameters, and the floating-point buffers, which clients also exchange."""
    buffers = [buffer for buffer in module.buffers() if buffer.is_floating_point()]
    return [parameter.data for parameter in module.parameters()] + buffers


def to_vector(tensors: Sequence[Tensor], out: Tensor) -> None:
    """Like ``parameters_to_vector``, for buffers and channels-last weights as well."""
    torch.cat([tensor.reshape(-1) for tensor in tensors], out=out)


def from_vector(parts: Sequence[Tensor], tensors: Sequence[Tensor]) -> None:
    for part, tensor in zip(parts, tensors, strict=True):
        tensor.copy_(part.view(tensor.shape))


def as_shape(part: Tensor, like: Tensor) -> Tensor:
    """(n, size) as (n, *shape), without a copy."""
    return part.unflatten(1, like.shape)


def naive_rule(rule: str) -> Callable[..., Tensor]:
    """The rule of ``naive.py``; trimming is limited to what the degree allows, as in ours."""
    return trimmed_mean if rule == "TrimmedMean" else naive.RULES[rule]


def trimmed_mean(own: Tensor, received: Tensor, *, tolerated: int, **_: Any) -> Tensor:
    return naive.trimmed_mean(own, received, tolerated=min(tolerated, (len(received) - 1) // 2))


def contenders(setting: Setting, rule: str) -> dict[str, Contender]:
    """By name, all that can run this rule on this task."""
    found: dict[str, Contender] = {
        "ours": Ours(setting, rule),
        "plain": PlainLoop(setting, naive_rule(rule), channels_last=False),
    }
    if setting.task.has_images:
        found["channels-last"] = PlainLoop(setting, naive_rule(rule), channels_last=True)
    found["vmap"] = Vmap(setting, rule)
    return found
