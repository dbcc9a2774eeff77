"""The contenders of the race of rounds: the simulator, and what an expert would write instead.

Each has ``round()``, which trains, forges, delivers, aggregates and mixes once, and ``models``,
the models of the benign clients. The contenders have none of the simulator's checks. Most scripts
train all clients, and then replace the messages of the malicious ones. ``benign_only`` contenders
do no work for malicious clients but draw their noise, as the simulator does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import cache
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector, vector_to_parameters

import equipoise as eq
from benchmarks import batched, naive
from benchmarks.peers import byzfl_rule
from benchmarks.round_workloads import LR, TOTAL, Setting
from benchmarks.workloads import RULES
from equipoise.rules import without_warnings

ALPHA = 0.5  # the weight of own in the mixture, the default of the simulator
# Values of all messages, (benign, k, d), up to which batched rules are used: 64 MiB of float32.
# Above, a loop over the receivers is faster.
GATHERED = 1 << 24
# Values of the messages of one chunk of receivers: 1 MiB, which stays in the cache, was the best
# of several sizes.
IN_CACHE = 1 << 18


class Contender(Protocol):
    def round(self) -> object: ...

    @property
    def models(self) -> Tensor: ...


class Ours:
    """The simulator, with its defaults and without evaluation."""

    def __init__(self, setting: Setting, rule: Any, momentum: float = 0.0) -> None:
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
            rule,
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
    """A module and an optimizer for each client, and the rule for one receiver at a time."""

    def __init__(
        self,
        setting: Setting,
        rule: Callable[..., Tensor],
        layout: torch.memory_format = torch.contiguous_format,
        *,
        benign_only: bool = False,
    ) -> None:
        task = setting.task
        self._task = task
        self._count = task.benign if benign_only else task.n
        self._rule = rule
        self._t = 0
        model = in_plain_torch(setting.model).to(memory_format=layout)
        self._modules = [deepcopy(model) for _ in range(self._count)]
        self._tensors = [tensors_of(module) for module in self._modules]
        self._optimizers = [torch.optim.SGD(m.parameters(), lr=LR) for m in self._modules]
        self._x = list(setting.x)
        if layout is torch.channels_last:
            self._x = [x.contiguous(memory_format=layout) for x in self._x]
        self._y = list(setting.y)
        self._senders = list(setting.senders)
        self._tolerated = setting.tolerated.tolist()

    def round(self) -> None:
        self._train()
        with torch.no_grad():
            self._exchange()
        self._t += 1

    def _train(self) -> None:
        task = self._task
        positions = draw_batches(self._count, task.examples, task.batch)
        for i, module in enumerate(self._modules):
            loss = cross_entropy(module(self._x[i][positions[i]]), self._y[i][positions[i]])
            self._optimizers[i].zero_grad()
            loss.backward()
            self._optimizers[i].step()

    def _exchange(self) -> None:
        own = [parameters_to_vector(tensors) for tensors in self._tensors]
        noise = self._task.std * torch.randn(self._task.n - self._task.benign, len(own[0]))
        sent = torch.stack([*own[: self._task.benign], *noise])
        for i, tensors in enumerate(self._tensors):
            mixed = ALPHA * own[i] + (1 - ALPHA) * self._aggregate(i, own[i], sent)
            vector_to_parameters(mixed, tensors)

    def _aggregate(self, i: int, own: Tensor, sent: Tensor) -> Tensor:
        inputs = {"t": self._t, "total": TOTAL, "tolerated": self._tolerated[i]}
        return self._rule(own, sent[self._senders[i]], **inputs)

    @property
    def models(self) -> Tensor:
        benign = self._tensors[: self._task.benign]
        return torch.stack([flat(tensors) for tensors in benign]).detach()


class ReusingLoop(PlainLoop):
    """The same loop with all models in memory that is reused from round to round.

    It copies into the parameters, so that they keep their memory format.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._sizes = [tensor.numel() for tensor in self._tensors[0]]
        self._own = torch.empty(self._count, sum(self._sizes))
        self._sent = torch.empty(self._task.n, sum(self._sizes))
        self._mixed = torch.empty(self._count, sum(self._sizes))

    def _exchange(self) -> None:
        benign = self._task.benign
        for row, tensors in zip(self._own, self._tensors, strict=True):
            torch.cat([tensor.reshape(-1) for tensor in tensors], out=row)
        self._sent[:benign] = self._own[:benign]
        self._sent[benign:].normal_(std=self._task.std)
        for i, row in enumerate(self._mixed):
            own = self._own[i]
            torch.lerp(self._aggregate(i, own, self._sent), own, ALPHA, out=row)
        for row, tensors in zip(self._mixed, self._tensors, strict=True):
            for part, tensor in zip(row.split(self._sizes), tensors, strict=True):
                tensor.copy_(part.view(tensor.shape))


class Vmap:
    """Stacked parameters, trained by ``vmap(grad(loss))``; the rule for ``chunk`` receivers a time.

    The stacked parameters are views of the models (n, d), so nothing is flattened.
    """

    def __init__(
        self,
        setting: Setting,
        rule: Callable[..., Tensor],
        chunk: int,
        *,
        benign_only: bool = False,
    ) -> None:
        task = setting.task
        count = task.benign if benign_only else task.n
        self._setting = setting
        self._rule = rule
        self._chunk = chunk
        self._t = 0
        self._model = in_plain_torch(setting.model)
        for module in self._model.modules():
            if isinstance(module, nn.BatchNorm2d):
                # A count that torch.func cannot update, and that is not used with a momentum.
                module.num_batches_tracked = None
        shared = dict(self._model.named_parameters())
        buffers = {name: b for name, b in self._model.named_buffers() if b.is_floating_point()}
        sizes = [tensor.numel() for tensor in (*shared.values(), *buffers.values())]
        self._own = setting.initial.repeat(count, 1)
        self._noise = torch.empty(task.n - task.benign, self._own.shape[1])
        parts = self._own.split(sizes, dim=1)
        views = dict(zip((*shared, *buffers), parts, strict=True))
        self._parameters = {name: as_shape(views[name], p) for name, p in shared.items()}
        self._buffers = {name: as_shape(views[name], b) for name, b in buffers.items()}
        self._gradients = vmap(grad(self._loss, has_aux=True))
        self._senders = setting.senders[:count]
        self._tolerated = setting.tolerated[:count]

    def _loss(self, parameters: Any, buffers: Any, x: Tensor, y: Tensor) -> tuple[Tensor, Any]:
        # Copies, because BatchNorm updates its statistics in place.
        buffers = {name: buffer.clone() for name, buffer in buffers.items()}
        outputs = functional_call(self._model, (parameters, buffers), (x,))
        return cross_entropy(outputs, y), buffers

    def round(self) -> None:
        task = self._setting.task
        clients = torch.arange(len(self._own))[:, None]
        positions = draw_batches(len(self._own), task.examples, task.batch)
        x = self._setting.x[clients, positions]
        y = self._setting.y[clients, positions]
        gradients, buffers = self._gradients(self._parameters, self._buffers, x, y)
        with torch.no_grad():
            for name, gradient in gradients.items():
                self._parameters[name].sub_(gradient, alpha=LR)
            for name, buffer in buffers.items():
                self._buffers[name].copy_(buffer)
            sent = torch.cat([self.models, self._noise.normal_(std=task.std)])
            self._own.copy_(torch.lerp(self._aggregate(sent), self._own, ALPHA))
        self._t += 1

    def _aggregate(self, sent: Tensor) -> Tensor:
        # A loop over the parts: one operation on all messages, if they are few.
        parts = []
        for start in range(0, len(self._senders), self._chunk):
            part = slice(start, start + self._chunk)
            received = sent[self._senders[part]]
            inputs = {"t": self._t, "total": TOTAL, "tolerated": self._tolerated[part]}
            parts.append(self._rule(self._own[part], received, **inputs))
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    @property
    def models(self) -> Tensor:
        return self._own[: self._setting.task.benign]


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
    return [*module.parameters(), *buffers]


def flat(tensors: Sequence[Tensor]) -> Tensor:
    """Like ``parameters_to_vector``, also for weights with their channels last."""
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def as_shape(part: Tensor, like: Tensor) -> Tensor:
    """(n, size) as (n, *shape), without a copy."""
    return part.unflatten(1, like.shape)


def naive_rule(rule: str) -> Callable[..., Tensor]:
    """The rule of ``naive.py``; trimming is limited to what the degree allows, as in ours."""
    return trimmed_mean if rule == "TrimmedMean" else naive.RULES[rule]


def trimmed_mean(own: Tensor, received: Tensor, *, tolerated: int, **_: Any) -> Tensor:
    return naive.trimmed_mean(own, received, tolerated=min(tolerated, (len(received) - 1) // 2))


def byzfl_loop(rule: str) -> Callable[..., Tensor] | None:
    """The rule of byzfl, which takes ``tolerated`` when it is made, as a rule of one receiver."""
    if byzfl_rule(rule, 1) is None:
        return None
    made = cache(lambda tolerated: byzfl_rule(rule, tolerated))

    def aggregate(own: Tensor, received: Tensor, *, tolerated: int, **_: Any) -> Tensor:
        # byzfl refuses larger numbers.
        return made(min(tolerated, (len(received) - 1) // 2)).aggregate(own, received)

    return aggregate


def contenders(setting: Setting, rule: str) -> dict[str, Contender]:
    """By name, all that can run this rule on this task."""
    one = naive_rule(rule)
    many = batched.RULES[rule]
    values = setting.task.degree * len(setting.initial)  # received by one client
    chunk = setting.task.n if setting.task.n * values <= GATHERED else 1
    found: dict[str, Contender] = {
        "ours": Ours(setting, RULES[rule]),
        "plain": PlainLoop(setting, one),
        "vmap": Vmap(setting, many, chunk),
        "plain, benign": ReusingLoop(setting, one, benign_only=True),
        "vmap, benign": Vmap(setting, many, chunk, benign_only=True),
    }
    if setting.task.has_images:
        last = torch.channels_last
        found["channels-last"] = ReusingLoop(setting, one, last)
        found["channels-last, benign"] = ReusingLoop(setting, one, last, benign_only=True)
    part = max(1, IN_CACHE // values)
    if part > 1:
        in_cache = batched.RULES_IN_CACHE[rule]
        found["vmap, benign, chunks"] = Vmap(setting, in_cache, part, benign_only=True)
    theirs = byzfl_loop(rule)
    if theirs is not None:
        found["byzfl"] = PlainLoop(setting, theirs)
    return found
