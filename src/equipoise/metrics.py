"""Test errors of all clients, their consensus, and the acceptance of messages.

A metric is made for one architecture and one test set, and is then called with stacked models
``(n, d)``. It returns one value per model, ``(n,)`` float64. The BALANCE paper reports the largest
value of a benign client (Max.TER, Max.MSE, Max.ASR): ``metric(models[~malicious]).max()``.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from equipoise._utils.formatting import call
from equipoise._utils.rng import stream
from equipoise._utils.validation import (
    Clients,
    as_mask,
    as_tensor,
    check_count,
    check_integers,
    check_range,
    describe,
    is_floating,
)
from equipoise.attacks import Trigger, targeted
from equipoise.kernels import chunks, column_blocks, squared_spread
from equipoise.messages import Inbox
from equipoise.training import Stacked, channels_last, outputs_of, run_each, watched_generators

# Sizes of blocks: small enough for caches and memory, large enough to make calls worth it.
INPUT_ELEMENTS = 1 << 17  # inputs of one model at a time: its activations then stay in cache
OUTPUT_ELEMENTS = 1 << 19  # in the widest layer of all models that are run at once
MODEL_ELEMENTS = 1 << 19  # in all models that are run at once, unless one has more
PIECE_EXAMPLES = 1 << 11  # in one piece of work for a thread, which copies its models


class Metric(ABC):
    """A mean over test examples, for every row of stacked models.

    Models are run in evaluation mode and without gradients, on a copy of the module. A module that
    draws random numbers even then draws the same ones for every row and in every call. Examples are
    run in blocks, so that memory does not grow with their number. The batch of a module that
    depends on it, such as a BatchNorm without running statistics, is one block.

    Args:
        model: the architecture.
        x: the inputs of the test examples, ``(N, ...)``.
        y: the targets of the test examples, ``(N, ...)``.
        buffers: models are made by ``flatten(model, buffers=True)``.
        sample: evaluate on that many random examples only, the same ones for all models and calls.
            A rate p then has a standard error of at most ``sqrt(p * (1 - p) / sample)``: 0.016 for
            1,000 examples. Differences between models are more accurate than that.
        seed: determines the sample.
    """

    @torch.inference_mode(False)
    def __init__(
        self,
        model: nn.Module,
        x: Tensor,
        y: Tensor,
        *,
        buffers: bool = False,
        sample: int | None = None,
        seed: int = 0,
    ) -> None:
        _check_examples(x, y)
        if sample is not None:
            check_count("sample", sample, 1, len(y))
        self._architecture = Stacked(model, buffers=buffers)
        self._architecture.model.eval()
        self._x = x.detach().to(self._architecture.device)
        self._y = y.detach().to(self._architecture.device)
        # A run of two examples validates the outputs, and shows whether the module draws randomly.
        with torch.no_grad(), watched_generators(self._architecture) as were_used:
            outputs = outputs_of(self._architecture.model, self._x[:2])
            self._random = were_used()
        self._check(outputs)
        if sample is not None:
            # In the order of the test set; the labels above were all checked.
            order = torch.randperm(len(y), generator=stream(seed, "test sample"), device="cpu")
            rows = order[:sample].sort().values.to(self._x.device)
            self._x = self._x[rows]
            self._y = self._y[rows]
        # Random modules run one by one, so that every row sees the same random numbers.
        self._batched = (
            not self._random and self._architecture.fastest_backend(self._try_batched) == "batched"
        )
        # A weight has one row for each output of its layer, or channel of a convolution.
        widths = [p.shape[0] for p in model.parameters() if p.dim() > 1]
        self._width = max([outputs[0].numel(), *widths])
        # Converted once, because convolutions are faster in this layout.
        if self._architecture.takes_channels_last(self._x[:2]):
            self._x = channels_last(self._x)

    def __repr__(self) -> str:
        return call(type(self).__name__, d=self._architecture.d, x=self._x, y=self._y)

    @torch.no_grad()
    def _try_batched(self, models: Tensor) -> None:
        self._architecture.apply(self._architecture.parts(models), self._x[:2], shared=True)

    @abstractmethod
    def _check(self, outputs: Tensor) -> None:
        """Raise unless the outputs of two examples can be compared with y."""

    @abstractmethod
    def _total(self, outputs: Tensor, y: Tensor) -> Tensor:
        """(c,) sums over b examples of the values to average; outputs are ``(c, b, ...)``."""

    @property
    def models_at_once(self) -> int:
        """The number of models that are evaluated in the same operations."""
        return max(1, MODEL_ELEMENTS // self._architecture.d) if self._batched else 1

    # Inference mode is per thread: others could not write to tensors that were made in it.
    @torch.inference_mode(False)
    def __call__(self, models: Tensor) -> Tensor:
        """(n,) the value of every model."""
        self._architecture.check(models)
        blocks = list(column_blocks(len(models), self.models_at_once))
        x_pieces = self._x.split(PIECE_EXAMPLES)
        y_pieces = self._y.split(PIECE_EXAMPLES)
        pieces = len(y_pieces)
        # (pieces, n): each piece of work has its own elements, so threads do not race.
        totals = torch.zeros(pieces, len(models), dtype=torch.float64, device=models.device)
        run = self._run_together if self._batched else self._run_alone

        def work(i: int) -> None:
            rows = blocks[i // pieces]
            piece = i % pieces
            if self._random:
                # By piece of the test set only: all rows draw the same numbers.
                torch.manual_seed(piece)
            run(models[rows].detach(), x_pieces[piece], y_pieces[piece], totals[piece, rows])

        with self._architecture.forked_generators(enabled=self._random):
            # Threads share torch's global generator.
            threads = models.device.type == "cpu" and not self._random
            run_each(work, len(blocks) * pieces, threads=threads)
        return totals.sum(0).div_(len(self._y))

    @torch.no_grad()
    def _run_together(self, models: Tensor, x: Tensor, y: Tensor, totals: Tensor) -> None:
        # A copy: a module that writes to its parameters must not change the caller's models.
        # Contiguous for each parameter, so that a layer of all models is one matrix.
        parts = [
            part.clone(memory_format=torch.contiguous_format)
            for part in self._architecture.parts(models)
        ]
        for inputs, targets in _blocks(x, y, self._width * len(models), OUTPUT_ELEMENTS):
            outputs = self._architecture.apply(parts, inputs, shared=True)
            totals += self._total(outputs, targets)

    @torch.no_grad()
    def _run_alone(self, models: Tensor, x: Tensor, y: Tensor, totals: Tensor) -> None:
        with self._architecture.replica() as replica:
            replica.vector.copy_(models[0])  # the block holds one model
            for inputs, targets in _blocks(x, y, x[0].numel(), INPUT_ELEMENTS):
                totals += self._total(replica.module(inputs)[None], targets)


class ErrorRate(Metric):
    """The fraction of misclassified test examples: the testing error rate (TER) of the paper.

    The predicted class is that of the largest output, the first one in a tie. Non-finite outputs
    count as errors.

    Args:
        model: the architecture; it returns one number per class.
        x: the inputs of the test examples.
        y: their classes, ``(N,)`` integers.
        buffers: models are made by ``flatten(model, buffers=True)``.
        sample: number of random examples to evaluate on, the same ones in every call, or None for
            all: see `Metric`.
        seed: determines the sample.

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
            expected = f"one class for every example, 0 to {outputs.shape[1] - 1}"
            raise ValueError(f"y must hold {expected}, found {found}")

    def _total(self, outputs: Tensor, y: Tensor) -> Tensor:
        return (_classes(outputs) != y).sum(1)  # (c, b) to (c,); class -1 equals no label


class AttackSuccess(Metric):
    """The fraction of examples with a backdoor's trigger that are classified as its target.

    Examples of the target class are left out. Non-finite outputs count as failures of the attack:
    ``argmax`` takes NaN for the largest value, so a model of NaN would otherwise predict class 0.

    Args:
        model: the architecture; it returns one number per class.
        x: the inputs of the test examples, without the trigger.
        y: their classes, ``(N,)`` integers.
        trigger: see `equipoise.attacks.Trigger`.
        target: the class that the attacker wants.
        buffers: models are made by ``flatten(model, buffers=True)``.
        sample: number of random examples to evaluate on, the same ones in every call, or None for
            all: see `Metric`.
        seed: determines the sample.

    >>> model = torch.nn.Linear(2, 2, bias=False)
    >>> x, y = torch.ones(3, 2), torch.tensor([0, 1, 1])
    >>> success = AttackSuccess(model, x, y, eq.attacks.EveryNth(2, value=-1.0), target=0)
    >>> success(torch.tensor([[0.0, 0.0, 0.0, 1.0], [0.0, 0.0, 1.0, 0.0]]))
    tensor([1., 0.], dtype=torch.float64)
    """

    def __init__(
        self,
        model: nn.Module,
        x: Tensor,
        y: Tensor,
        trigger: Trigger,
        target: int,
        *,
        buffers: bool = False,
        sample: int | None = None,
        seed: int = 0,
    ) -> None:
        _check_examples(x, y)
        if not isinstance(trigger, Trigger):
            raise ValueError(f"trigger must be a Trigger, found {describe(trigger)}")
        stamped = targeted(x, y, trigger, target)
        if not len(stamped):
            expected = f"labels other than the target {target}"
            raise ValueError(f"y must have {expected}, found none among {len(y)}")
        self._target = target
        super().__init__(model, stamped, y[y != target], buffers=buffers, sample=sample, seed=seed)

    def _check(self, outputs: Tensor) -> None:
        _check_scores(outputs)
        if not 0 <= self._target < outputs.shape[1]:
            expected = f"a class, 0 to {outputs.shape[1] - 1}"
            raise ValueError(f"target must be {expected}, found {self._target}")

    def _total(self, outputs: Tensor, y: Tensor) -> Tensor:
        return (_classes(outputs) == self._target).sum(1)


class MeanSquaredError(Metric):
    """The mean squared difference of outputs and targets; infinite if an output is NaN or infinite.

    Args:
        model: the architecture; its outputs are shaped like targets.
        x: the inputs of the test examples.
        y: the targets.
        buffers: models are made by ``flatten(model, buffers=True)``.
        sample: number of random examples to evaluate on, the same ones in every call, or None for
            all: see `Metric`.
        seed: determines the sample.

    >>> model = torch.nn.Linear(1, 1, bias=False)
    >>> x = torch.tensor([[1.0], [2.0]])
    >>> error = MeanSquaredError(model, x, x)
    >>> error(torch.tensor([[1.0], [2.0], [torch.nan]]))
    tensor([0.0000, 2.5000,    inf], dtype=torch.float64)
    """

    def _check(self, outputs: Tensor) -> None:
        if self._y.dtype == torch.bool:
            raise ValueError(f"y must hold numbers, found {describe(self._y)}")
        if outputs.shape[1:] != self._y.shape[1:]:
            expected = f"shaped like outputs, {describe(outputs)} for two of them"
            raise ValueError(f"y must be {expected}, found {describe(self._y)}")

    def _total(self, outputs: Tensor, y: Tensor) -> Tensor:
        # Squares of float32 outputs do not overflow float64.
        squares = (outputs.double() - y).square().flatten(1)
        # A mean over the elements of an example, and a sum over the examples.
        total = squares.sum(1) * (len(y) / squares.shape[1])
        return total.where(total.isfinite(), math.inf)


@torch.inference_mode(False)
def consensus_error(models: Tensor) -> float:
    r"""The disagreement of models: their mean squared distance to their mean.

    .. math:: \frac{1}{n} \sum_i \lVert w_i - \bar w \rVert^2

    A non-finite model makes it NaN or infinite: pass the models of benign clients only.

    >>> eq.metrics.consensus_error(torch.tensor([[1.0, 0.0], [3.0, 0.0]]))
    1.0
    """
    if not is_floating(models) or models.dim() != 2 or not len(models):
        expected = "a floating-point tensor of shape (n, d), n >= 1"
        raise ValueError(f"models must be {expected}, found {describe(models)}")
    pieces = list(chunks(models.shape[1], len(models)))
    totals = torch.zeros(len(pieces), dtype=torch.float64, device=models.device)

    # Each piece is summed in float64 by one thread, so the result is the same for any number.
    def work(i: int) -> None:
        totals[i] = squared_spread(models.detach()[:, pieces[i]])

    run_each(work, len(pieces), threads=models.device.type == "cpu")
    return float(totals.sum()) / len(models)


def acceptance(
    weights: Tensor | None, inbox: Inbox, malicious: Clients | None
) -> tuple[float, float] | None:
    """The fractions of messages from benign and from malicious senders with a weight above 0.

    Only messages to benign clients count. Every message that was sent counts, even a non-finite
    one that the rule ignores. Messages of a client to itself do not count, nor do messages to a
    client of `PerClient` whose rule has no weights. A fraction is NaN if there is no such message.
    The result is None for a rule without weights.

    A single client, with weights of shape (k,), counts as benign, and so do all of its messages.
    ``malicious`` are then ids of senders; those that sent nothing are ignored.

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
    single = isinstance(weights, Tensor) and weights.dim() == 1 and inbox.n == 1
    if not isinstance(weights, Tensor) or weights.shape != (shape[1:] if single else shape):
        expected = f"of shape {tuple(shape)} like the inbox"
        raise ValueError(f"weights must be {expected}, found {describe(weights)}")
    if single:
        counted = inbox.mask
        from_malicious = _sent_by(inbox, malicious)
    else:
        mask = as_mask(malicious, inbox.n).to(inbox.mask.device)
        counted = inbox.from_others & ~mask[:, None]
        # Empty slots look up client 0; ``counted`` leaves them out.
        from_malicious = mask[inbox.senders.where(inbox.mask, 0)]
    # `PerClient` marks the rows of rules without weights by NaN.
    counted = counted & ~weights.isnan()
    accepted = weights > 0
    return _share(accepted, counted & ~from_malicious), _share(accepted, counted & from_malicious)


def _sent_by(inbox: Inbox, malicious: Clients | None) -> Tensor:
    """(1, k) which messages of a single client are from these senders.

    The client knows ids of senders, but not how many clients there are: a mask makes no sense.
    """
    expected = "malicious must be ids of clients for the weights of one"
    ids = as_tensor([] if malicious is None else malicious, expected)
    if ids.dim() != 1 or ids.dtype == torch.bool or (ids.is_floating_point() and ids.numel()):
        raise ValueError(f"{expected}, found {describe(ids)}")
    check_range("malicious", ids, 0, None)
    return torch.isin(inbox.senders, ids.to(inbox.senders))


def _share(accepted: Tensor, counted: Tensor) -> float:
    count = int(counted.sum())
    return int((accepted & counted).sum()) / count if count else math.nan


def _blocks(x: Tensor, y: Tensor, cost: int, budget: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Examples, of ``cost`` elements each, in equal blocks that fit the budget."""
    # Equal: a small last block would take nearly as long as a full one.
    count = max(1, math.ceil(len(y) * cost / budget))
    return zip(x.chunk(count), y.chunk(count), strict=True)


def _classes(outputs: Tensor) -> Tensor:
    """(c, b) the class of the largest output, -1 where an output is not finite."""
    classes = outputs.argmax(-1)
    # A finite sum has finite terms: one pass, and no mask in the common case.
    if outputs.sum().isfinite():
        return classes
    return classes.where(outputs.isfinite().all(-1), -1)


def _check_examples(x: Tensor, y: Tensor) -> None:
    are_tensors = isinstance(x, Tensor) and isinstance(y, Tensor)
    if not are_tensors or x.dim() == 0 or x.shape[:1] != y.shape[:1] or not len(x):
        found = f"{describe(x)} and {describe(y)}"
        raise ValueError(f"x and y must be equally many examples, at least one, found {found}")


def _check_scores(outputs: Tensor) -> None:
    if outputs.dim() != 2:
        expected = "one number per class, (N, classes)"
        raise ValueError(f"model must return {expected}, found {describe(outputs)}")
