"""How good the models of all clients are, how far they are apart, and whom a rule trusted.

A metric is made for one architecture and one test set, and is then called with stacked models ``(n, d)``. It returns
one value per model, ``(n,)`` float64. The BALANCE paper reports the largest value of a benign client (Max.TER, Max.MSE,
Max.ASR): ``metric(models[~malicious]).max()``.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from equipoise._utils.formatting import call
from equipoise._utils.validation import Clients, as_mask, as_tensor, check_integers, check_range, describe, is_floating
from equipoise.attacks import Trigger, targeted
from equipoise.kernels import TILE, chunks
from equipoise.messages import Inbox
from equipoise.training import Stacked, channels_last, outputs_of, run_each, watched_generators

INPUTS = 1 << 16  # elements of inputs that one model sees at a time, few enough for its activations to stay in cache
OUTPUTS = 1 << 19  # elements in the widest layer of all models that are run at once
PIECE = 1 << 10  # examples in one piece of work for a thread


class Metric(ABC):
    """A mean over test examples, for every row of stacked models.

    Models are run in evaluation mode and without gradients; the module that is given is copied. One that draws random
    numbers even then draws the same for every row and at every call.

    Args:
        model: the architecture.
        x: the inputs of the test examples, ``(N, ...)``.
        y: what outputs are compared with, ``(N, ...)``.
        buffers: models are made by ``flatten(model, buffers=True)``.
    """

    @torch.inference_mode(False)
    def __init__(self, model: nn.Module, x: Tensor, y: Tensor, *, buffers: bool = False) -> None:
        _check_examples(x, y)
        self._architecture = Stacked(model, buffers=buffers)
        self._architecture.model.eval()
        self._x, self._y = (part.detach().to(self._architecture.device) for part in (x, y))
        with torch.no_grad(), watched_generators(self._architecture) as were_used:
            outputs = outputs_of(self._architecture.model, self._x[:2])
            self._random = were_used()
        self._check(outputs)
        self._batched = not self._random and self._architecture.fastest_way(self._try) == "batched"
        self._width = max([outputs[0].numel(), *(p.shape[0] for p in model.parameters() if p.dim() > 1)])
        if self._architecture.likes_channels_last(self._x[:2]):
            self._x = channels_last(self._x)

    def __repr__(self) -> str:
        return call(type(self).__name__, d=self._architecture.d, x=self._x, y=self._y)

    @torch.no_grad()
    def _try(self, models: Tensor) -> None:
        self._architecture.apply(self._architecture.parts(models), self._x[:2], shared=True)

    @abstractmethod
    def _check(self, outputs: Tensor) -> None:
        """Raise unless outputs of two examples are such as can be compared with y."""

    @abstractmethod
    def _total(self, outputs: Tensor, y: Tensor) -> Tensor:
        """(c,) sums over b examples of what is to be averaged; outputs are ``(c, b, ...)``."""

    @torch.inference_mode(False)  # which other threads are not in, and could then not write what was made in it
    def __call__(self, models: Tensor) -> Tensor:
        """(n,) the value of every model."""
        self._architecture.check(models)
        rows = list(chunks(len(models), self._architecture.d if self._batched else TILE))
        pieces = list(zip(self._x.split(PIECE), self._y.split(PIECE), strict=True))
        totals = torch.zeros(len(pieces), len(models), dtype=torch.float64, device=models.device)
        run = self._run_together if self._batched else self._run_alone

        def work(i: int) -> None:
            piece, some = i % len(pieces), rows[i // len(pieces)]
            if self._random:
                torch.manual_seed(piece)
            run(models[some].detach(), *pieces[piece], totals[piece, some])

        with self._architecture.own_generators(enabled=self._random):
            threads = models.device.type == "cpu" and not self._random  # which share a generator
            run_each(work, len(rows) * len(pieces), threads=threads)
        return totals.sum(0).div_(len(self._y))

    @torch.no_grad()
    def _run_together(self, models: Tensor, x: Tensor, y: Tensor, totals: Tensor) -> None:
        parts = self._architecture.parts(models.clone())
        for some in chunks(len(y), self._width * len(models), OUTPUTS):
            totals += self._total(self._architecture.apply(parts, x[some], shared=True), y[some])

    @torch.no_grad()
    def _run_alone(self, models: Tensor, x: Tensor, y: Tensor, totals: Tensor) -> None:
        with self._architecture.replica() as replica:
            replica.vector.copy_(models[0])
            for some in chunks(len(y), x[0].numel(), INPUTS):
                totals += self._total(replica.module(x[some])[None], y[some])


class ErrorRate(Metric):
    """The fraction of test examples that a model gets wrong: the testing error rate (TER) of the BALANCE paper.

    The class of the largest output counts, the first one if there are several. An output that is NaN or infinite
    is wrong, whatever ``argmax`` makes of it.

    Args:
        model: the architecture; it returns one number per class.
        x: the inputs of the test examples.
        y: their classes, ``(N,)`` integers.
        buffers: models are made by ``flatten(model, buffers=True)``.

    >>> model = torch.nn.Linear(1, 2, bias=False)
    >>> error = ErrorRate(model, torch.tensor([[1.0], [-1.0]]), torch.tensor([0, 1]))
    >>> error(torch.tensor([[1.0, 0.0], [0.0, 1.0], [torch.nan, 0.0]]))
    tensor([0., 1., 1.], dtype=torch.float64)
    """

    def _check(self, outputs: Tensor) -> None:
        check_integers("y", self._y)
        _check_scores(outputs)
        if self._y.dim() != 1 or self._y.min() < 0 or self._y.max() >= outputs.shape[1]:
            found = f"{describe(self._y)} from {self._y.min()} to {self._y.max()}"
            raise ValueError(f"y must hold one class for every example, 0 to {outputs.shape[1] - 1}, found {found}")

    def _total(self, outputs: Tensor, y: Tensor) -> Tensor:
        return (_classes(outputs) != y).sum(1)


class AttackSuccess(Metric):
    """The fraction of examples with a backdoor's trigger that a model takes for the attacker's target.

    Examples that are of the target class anyway are left out. An output that is NaN or infinite is no success: a broken
    model obeys nobody. (``argmax`` takes NaN for the largest, so a model of NaN would say class 0.)

    Args:
        model: the architecture; it returns one number per class.
        x: the inputs of the test examples, without trigger.
        y: their classes, ``(N,)`` integers.
        trigger: see `equipoise.attacks.Trigger`.
        target: the class that the backdoor is to cause.
        buffers: models are made by ``flatten(model, buffers=True)``.

    >>> model = torch.nn.Linear(2, 2, bias=False)
    >>> x, y = torch.ones(3, 2), torch.tensor([0, 1, 1])
    >>> success = AttackSuccess(model, x, y, eq.attacks.EveryNth(2, value=-1.0), target=0)
    >>> success(torch.tensor([[0.0, 0.0, 0.0, 1.0], [0.0, 0.0, 1.0, 0.0]]))
    tensor([1., 0.], dtype=torch.float64)
    """

    def __init__(
        self, model: nn.Module, x: Tensor, y: Tensor, trigger: Trigger, target: int, *, buffers: bool = False
    ) -> None:
        _check_examples(x, y)
        if not isinstance(trigger, Trigger):
            raise ValueError(f"trigger must be a Trigger, found {describe(trigger)}")
        stamped = targeted(x, y, trigger, target)
        if not len(stamped):
            raise ValueError(f"y must have labels other than the target {target}, found none among {len(y)}")
        self._target = target
        super().__init__(model, stamped, y[y != target], buffers=buffers)

    def _check(self, outputs: Tensor) -> None:
        _check_scores(outputs)
        if not 0 <= self._target < outputs.shape[1]:
            raise ValueError(f"target must be a class, 0 to {outputs.shape[1] - 1}, found {self._target}")

    def _total(self, outputs: Tensor, y: Tensor) -> Tensor:
        return (_classes(outputs) == self._target).sum(1)


class MeanSquaredError(Metric):
    """The mean squared difference of outputs and targets; infinite if an output is NaN or infinite.

    Args:
        model: the architecture; its outputs are shaped like targets.
        x: the inputs of the test examples.
        y: the targets.
        buffers: models are made by ``flatten(model, buffers=True)``.

    >>> model = torch.nn.Linear(1, 1, bias=False)
    >>> error = MeanSquaredError(model, torch.tensor([[1.0], [2.0]]), torch.tensor([[1.0], [2.0]]))
    >>> error(torch.tensor([[1.0], [2.0], [torch.nan]]))
    tensor([0.0000, 2.5000,    inf], dtype=torch.float64)
    """

    def _check(self, outputs: Tensor) -> None:
        if self._y.dtype == torch.bool:
            raise ValueError(f"y must hold numbers, found {describe(self._y)}")
        if outputs.shape[1:] != self._y.shape[1:]:
            raise ValueError(
                f"y must be shaped like outputs, {describe(outputs)} for two of them, found {describe(self._y)}"
            )

    def _total(self, outputs: Tensor, y: Tensor) -> Tensor:
        squares = (outputs.double() - y).square().flatten(1)
        total = squares.sum(1) * (len(y) / squares.shape[1])
        return total.where(total.isfinite(), math.inf)


@torch.inference_mode(False)
def consensus_error(models: Tensor) -> float:
    r"""How far models are from agreement: the mean squared distance to their mean.

    .. math:: \frac{1}{n} \sum_i \lVert w_i - \bar w \rVert^2

    NaN or infinite if a model is; select benign clients' models before.

    >>> eq.metrics.consensus_error(torch.tensor([[1.0, 0.0], [3.0, 0.0]]))
    1.0
    """
    if not is_floating(models) or models.dim() != 2 or not len(models):
        raise ValueError(f"models must be a floating-point tensor of shape (n, d), n >= 1, found {describe(models)}")
    pieces = list(chunks(models.shape[1], len(models)))
    totals = torch.zeros(len(pieces), dtype=torch.float64, device=models.device)

    def work(i: int) -> None:
        part = models.detach()[:, pieces[i]].to(torch.float64, copy=True)
        totals[i] = part.sub_(part.mean(0)).square_().sum()

    run_each(work, len(pieces), threads=models.device.type == "cpu")
    return float(totals.sum()) / len(models)


def acceptance(weights: Tensor | None, inbox: Inbox, malicious: Clients | None) -> tuple[float, float] | None:
    """Which fraction of the messages to benign clients had a weight above 0: of benign, and of malicious senders.

    Every message that was sent counts, also one that a rule does not look at because it is not finite; what a client
    sends itself does not, nor what went to a client of `PerClient` whose rule has no weights. NaN where there is no
    such message; None for a rule without weights.

    One client, which has weights of shape (k,), is taken for benign, and all of its messages count. Malicious are then
    ids of senders; those that sent nothing do not matter.

    >>> inbox = eq.Topology.complete(3).deliver(torch.ones(3, 1))
    >>> weights = torch.tensor([[1.0, 0.0], [0.5, 0.5], [0.0, 0.0]])
    >>> eq.metrics.acceptance(weights, inbox, malicious=[2])
    (1.0, 0.5)
    >>> eq.metrics.acceptance(weights[0], inbox.of(0), malicious=[2])
    (1.0, 0.0)
    """
    if weights is None:
        return None
    if not isinstance(inbox, Inbox):
        raise ValueError(f"inbox must be an Inbox, found {describe(inbox)}")
    shape = inbox.slots.shape
    alone = isinstance(weights, Tensor) and weights.dim() == 1 and inbox.n == 1
    if not isinstance(weights, Tensor) or weights.shape != (shape[1:] if alone else shape):
        raise ValueError(f"weights must be of shape {tuple(shape)} like the inbox, found {describe(weights)}")
    counted, from_liars = _of_one(inbox, malicious) if alone else _of_all(inbox, malicious)
    counted = counted & ~weights.isnan()
    return _share(weights > 0, counted & ~from_liars), _share(weights > 0, counted & from_liars)


def _of_all(inbox: Inbox, malicious: Clients | None) -> tuple[Tensor, Tensor]:
    """(n, k) which messages count, and which of them are from malicious clients."""
    liars = as_mask(malicious, inbox.n).to(inbox.mask.device)
    return inbox.from_others & ~liars[:, None], liars[inbox.senders.where(inbox.mask, 0)]


def _of_one(inbox: Inbox, malicious: Clients | None) -> tuple[Tensor, Tensor]:
    """The same, (1, k), for one client that knows the ids of senders, but not how many clients there are."""
    expected = "malicious must be ids of clients for the weights of one"
    ids = as_tensor([] if malicious is None else malicious, expected)
    if ids.dim() != 1 or ids.dtype == torch.bool or (ids.is_floating_point() and ids.numel()):
        raise ValueError(f"{expected}, found {describe(ids)}")
    check_range("malicious", ids, 0, None)
    return inbox.mask, torch.isin(inbox.senders, ids.to(inbox.senders))


def _share(accepted: Tensor, counted: Tensor) -> float:
    count = int(counted.sum())
    return int((accepted & counted).sum()) / count if count else math.nan


def _classes(outputs: Tensor) -> Tensor:
    """(c, b) the class of the largest output, -1 where an output is not finite."""
    classes = outputs.argmax(-1)
    if outputs.sum().isfinite():
        return classes
    return classes.where(outputs.isfinite().all(-1), -1)


def _check_examples(x: Tensor, y: Tensor) -> None:
    fit = isinstance(x, Tensor) and isinstance(y, Tensor) and x.dim() > 0 and x.shape[:1] == y.shape[:1]
    if not fit or not len(x):
        raise ValueError(f"x and y must be equally many examples, at least one, found {describe(x)} and {describe(y)}")


def _check_scores(outputs: Tensor) -> None:
    if outputs.dim() != 2:
        raise ValueError(f"model must return one number per class, (N, classes), found {describe(outputs)}")
