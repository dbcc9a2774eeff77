"""Local training of all clients, from stacked flat models to stacked flat models."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from dataclasses import replace
from functools import cache
from numbers import Real
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from equipoise._utils.formatting import call
from equipoise._utils.rng import stream
from equipoise._utils.validation import INTEGERS, Clients, as_mask, check_count, check_range, describe
from equipoise.attacks import Attack, DataAttack, MessageAttack
from equipoise.training._batching import for_each_batch
from equipoise.training._ensemble._evaluation import Judgement
from equipoise.training._ensemble._losses import BatchLoss, Reduction
from equipoise.training._ensemble._probe import habits_of, try_out
from equipoise.training._ensemble._stacked import Stacked, Way
from equipoise.training._examples import Batch, Examples, Pair, draw_positions
from equipoise.training._poisoning import Poisoning
from equipoise.training._sgd_step import Descent

JUDGES = 4  # clients that judge one model in one operation: more would leave nothing to other threads


class LocalSGD:
    r"""Mini-batch gradient descent on every client's own examples.

    .. math:: v \leftarrow \mu v + \nabla \ell(w; \mathrm{batch}), \qquad w \leftarrow w - \eta v

    as in :class:`torch.optim.SGD`, ``steps`` times a round. Every step draws its batches afresh, without replacement,
    from the seed, the round and the step: they are the same whatever happened before, and in every way below. A client
    that has fewer examples than ``batch_size`` uses all it has.

    A model that is not finite is trained like any other; it stays so, and no other client notices.

    **Ways.** ``"batched"`` trains many clients in one operation; ``"threads"`` trains one client in each of the threads
    that torch may use; ``"loop"`` trains one client after the other and leaves threads to torch, on whose number the
    last digits may then depend. ``"auto"`` goes by rule, not by stopwatch, so that two runs are the same:

    - a model or a loss that draws random numbers, as dropout does: loop;
    - all parameters in linear layers, or a device other than a CPU: batched, if ``torch.func.vmap`` can do it;
    - anything else: threads.

    One step with batches of 32 took, the least of several times on 2 cores::

        milliseconds                            loop   threads   batched
        20 CNNs of the paper                      67        40       182
        1,000 logistic regressions, 64 to 10     291       344         9
        1,000 logistic regressions, 561 to 6     374       327        26

    The CNNs took 145 with a module and an optimizer for every client, and 87, 83 and 181 without native kernels. On
    cores that have other things to do, ``"loop"`` can take ten times as long, ``"threads"`` twice. `measure` tells for
    your own model: networks for very small images can be faster batched. On a CPU, images go to convolutions with their
    channels last in memory, which takes a third off the time, unless the model does not take them so.

    Args:
        model: the architecture, in training mode or in evaluation mode as it is given; its own parameters are not used.
            Those that require no gradient stay what they are in each client's model.
        loss: ``loss(outputs, targets, reduction=...)``, like ``torch.nn.functional.cross_entropy``.
        clients: the examples ``(x, y)`` of every client.
        lr: the learning rate :math:`\eta`, or a function of the round that returns it.
        batch_size: how many examples a step sees.
        steps: how many steps a round has.
        reduction: ``"mean"`` or ``"sum"`` over a batch. The BALANCE paper's learning rates are for sums. None is for a
            loss without such an argument, like a ``torch.nn.MSELoss()``: it is called as ``loss(outputs, targets)``.
        momentum: :math:`\mu`; the trainer then keeps :math:`v` of every client from round to round, see `state_dict`.
        seed: decides the batches, and what poisoned examples, random models and random losses draw.
        way: ``"loop"``, ``"threads"`` or ``"batched"`` instead of ``"auto"``.
        buffers: models are made by ``flatten(model, buffers=True)``. Running statistics, as in BatchNorm, are then
            every client's own, and are sent and aggregated like parameters. Without it, a model that changes its
            buffers is an error.

    >>> x = torch.tensor([[1.0], [2.0]])
    >>> model, loss = torch.nn.Linear(1, 1, bias=False), torch.nn.functional.mse_loss
    >>> train = LocalSGD(model, loss, [(x, 3 * x), (x, -x)], lr=0.1, steps=20)
    >>> train(torch.zeros(2, 1), t=0)
    tensor([[ 3.0000],
            [-1.0000]])
    """

    way: Way

    @torch.inference_mode(False)
    def __init__(
        self,
        model: nn.Module,
        loss: Callable[..., Tensor],
        clients: Iterable[Pair],
        *,
        lr: float | Callable[[int], float],
        batch_size: int = 32,
        steps: int = 1,
        reduction: Reduction | None = "mean",
        momentum: float = 0.0,
        seed: int = 0,
        way: Literal["auto"] | Way = "auto",
        buffers: bool = False,
    ) -> None:
        _check_options(lr, batch_size, steps, reduction, momentum, way)
        self.lr, self.batch_size, self.steps, self.momentum, self.seed = lr, batch_size, steps, momentum, seed
        self._rate(0)  # a function that does not return a number says so now
        self.loss = BatchLoss(loss, reduction)
        self._training = Stacked(model, buffers=buffers)
        self._judging = Stacked(model, buffers=buffers)
        self._judging.model.eval()
        examples = Examples.of(clients, device=self._training.device)
        x, y = examples.x[:2], examples.y[:2]
        self._random = try_out(self._training, self.loss, x, y)
        self._habits = habits_of(self._judging, self._mean_loss, examples.x, examples.y)
        self._clean = examples.with_channels_last() if self._judging.likes_channels_last(x) else examples
        self.way = self._way(way)
        self._poisoning: Poisoning | None = None
        self._velocity: Tensor | None = None

    def _way(self, way: Literal["auto"] | Way) -> Way:
        if way == "auto":
            return "loop" if self._random else self._training.fastest_way(self._try_together)
        if way != "loop" and self._random:
            raise ValueError(f"way must be 'loop' for a model or a loss that draws random numbers, found {way!r}")
        error = self._training.batching_error(self._try_together) if way == "batched" else None
        if error is not None:
            raise ValueError(f"way must be 'loop' or 'threads' for this model, found {way!r}: {error}") from error
        return way

    def _try_together(self, models: Tensor) -> None:
        rows = torch.arange(len(models), device="cpu")
        positions = torch.arange(2, device="cpu") % self._clean.counts[0]
        x, y = self._clean.take(torch.zeros_like(rows), positions.repeat(len(models), 1))
        descent = Descent(self._training, self.loss, self._rate(0), self.momentum, models, models.clone())
        descent.together(Batch(rows.to(models.device), x, y))

    def __repr__(self) -> str:
        names = ("loss", "lr", "batch_size", "steps", "momentum", "seed", "way")
        return call("LocalSGD", **{name: getattr(self, name) for name in names})

    @property
    def samples(self) -> Tensor:
        """(n,) how many examples every client has; what poisoning adds is not counted."""
        return self._clean.counts.to(self._clean.x.device)

    @torch.inference_mode(False)
    def __call__(self, models: Tensor, t: int) -> Tensor:
        """Every client's model after the local training of round t, as a new tensor (n, d)."""
        self._training.check(models, self._clean.n)
        check_count("t", t, 0)
        before = models.detach()
        after = torch.empty(before.shape, dtype=before.dtype, device=before.device)
        velocity, lr = self._next_velocity(after), self._rate(t)
        for step in range(self.steps):
            self._step(before, after, velocity, t, step, lr)
            before = after
        self._velocity = velocity
        return after

    def loss_of(self, t: int) -> Callable[[Tensor, Tensor], Tensor]:
        """What UBAR asks in round t: a function ``loss_of(models (c, d), clients (c,))`` that returns losses ``(c,)``.

        Candidate j is judged on the mini-batch that ``clients[j]`` saw last in round t, by its mean loss, in evaluation
        mode. If a model or the loss draws random numbers even then, a client draws the same for all its candidates.
        """
        check_count("t", t, 0)
        examples, last = self._examples(t), self.steps - 1

        @cache  # most rules never ask
        def positions() -> Tensor:
            return self._positions(examples, t, last)

        @torch.inference_mode(False)
        def loss_of(models: Tensor, clients: Tensor) -> Tensor:
            _check_judges(clients, examples.n)
            self._judging.check(models, len(clients))
            losses = models.new_empty(len(models))
            judgement = Judgement(self._judging, self._mean_loss, models, losses)
            seeds = self._seeds("judge", t, last) if self._habits.random else None
            self._judge(judgement, examples, positions(), clients.cpu().long(), seeds)
            return losses

        return loss_of

    @property
    def _mean_loss(self) -> BatchLoss:
        return replace(self.loss, reduction=self.loss.reduction and "mean")

    def _judge(
        self, judgement: Judgement, examples: Examples, positions: Tensor, clients: Tensor, seeds: list[int] | None
    ) -> None:
        way: Way = "loop" if self._habits.random else self.way
        same = judgement.models.stride(0) == 0 and not self._habits.apart

        def judge(batch: Batch) -> None:
            if way == "batched":
                judgement.together(batch)
            elif same:
                judgement.one_by_many(batch)
            else:
                judgement.alone(batch, None if seeds is None else seeds[int(clients[int(batch.rows)])])

        with self._judging.own_generators(enabled=self._habits.random):
            most = JUDGES if same else 1
            for_each_batch(judge, examples, positions, clients, way=way, d=self._judging.d, most=most)

    def poisoned(self, attack: Attack, malicious: Clients) -> LocalSGD:
        """A trainer whose malicious clients have poisoned examples, in the rounds and as the attack says.

        What ``attack.poison`` draws depends on the seed and the client. Benign clients' examples, and their batches,
        are the same as without attack. An attack that poisons nothing changes nothing, and one on a trainer that is
        poisoned already takes the place of the other. Momentum starts anew.

        >>> x, y = torch.ones(2, 1), torch.tensor([3, 3])
        >>> loss = torch.nn.functional.cross_entropy
        >>> train = LocalSGD(torch.nn.Linear(1, 6), loss, [(x, y), (x, y)], lr=1.0)
        >>> attacked = train.poisoned(eq.attacks.LabelFlip({3: 5}), malicious=[1])
        >>> attacked(torch.zeros(2, 12), t=0)[:, 6:].argmax(1)
        tensor([3, 5])
        """
        if isinstance(attack, type) or not isinstance(attack, DataAttack | MessageAttack):
            raise ValueError(f"attack must have poison(x, y) or forge(known), found {describe(attack)}")
        clients = as_mask(malicious, self._clean.n).nonzero().flatten().tolist()
        trainer = self.restarted()
        trainer._poisoning = Poisoning(self._clean, attack, clients, self.seed)
        return trainer

    def restarted(self) -> LocalSGD:
        """The same trainer as it was before its first round: a `Simulator` begins with one, whatever was run before."""
        trainer = copy(self)
        trainer._velocity = None
        return trainer

    def state_dict(self) -> dict[str, Tensor]:
        """What the trainer remembers from round to round: nothing without momentum."""
        return {} if self._velocity is None else {"velocity": self._velocity.clone()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Take up what `state_dict` returned."""
        if not isinstance(state, Mapping):
            raise ValueError(f"state must be what state_dict returned, found {describe(state)}")
        allowed = ["velocity"] if self.momentum else []
        if not state.keys() <= set(allowed):
            raise ValueError(f"state must have no keys but {allowed}, found {sorted(state, key=str)}")
        velocity = state.get("velocity")
        if velocity is not None:
            self._training.check(velocity, self._clean.n, name="velocity in state")
        self._velocity = None if velocity is None else velocity.clone()

    def fingerprint(self) -> str:
        """A digest of all clients' examples before poisoning; a checkpoint needs the same ones."""
        return self._clean.digest

    def measure(self, models: Tensor, t: int = 0, *, repeats: int = 3) -> dict[Way, float]:
        """Seconds that round t takes each way that this model can be trained, the least of some repeats.

        What the trainer remembers stays as it is.
        """
        check_count("repeats", repeats, 1)
        ways: list[Way] = ["loop"] if self._random else ["loop", "threads"]
        if not self._random and self._training.batching_error(self._try_together) is None:
            ways.append("batched")
        return {way: min(self._seconds(way, models, t) for _ in range(repeats)) for way in ways}

    def _seconds(self, way: Way, models: Tensor, t: int) -> float:
        trainer = copy(self)
        trainer.way = way
        start = time.perf_counter()
        trainer(models, t)[0, 0].item()  # wait for the device
        return time.perf_counter() - start

    def _step(self, before: Tensor, after: Tensor, velocity: Tensor | None, t: int, step: int, lr: float) -> None:
        examples = self._examples(t)
        descent = Descent(self._training, self.loss, lr, self.momentum, before, after, velocity)
        seeds = self._seeds("model", t, step) if self._random else None

        def train(batch: Batch) -> None:
            if self.way == "batched":
                descent.together(batch)
            else:
                descent.alone(batch, None if seeds is None else seeds[int(batch.rows)])

        with self._training.own_generators(enabled=self._random):
            everybody, positions = torch.arange(examples.n, device="cpu"), self._positions(examples, t, step)
            for_each_batch(train, examples, positions, everybody, way=self.way, d=self._training.d)

    def _rate(self, t: int) -> float:
        """The learning rate of round t."""
        if not callable(self.lr):
            return self.lr
        rate = self.lr(t)
        if not _is_finite_from_zero(rate):
            raise ValueError(f"lr must return a finite number >= 0 for every round, found {rate!r} for round {t}")
        return float(rate)

    def _next_velocity(self, like: Tensor) -> Tensor | None:
        """A copy, so that a round that is interrupted leaves no trace."""
        if not self.momentum:
            return None
        return torch.zeros_like(like) if self._velocity is None else self._velocity.clone()

    def _examples(self, t: int) -> Examples:
        return self._clean if self._poisoning is None else self._poisoning.examples(t)

    def _positions(self, examples: Examples, t: int, step: int) -> Tensor:
        return draw_positions(examples.counts, self.batch_size, stream(self.seed, "batch", t, step))

    def _seeds(self, purpose: str, t: int, step: int) -> list[int]:
        """One for every client: whatever it trains or judges, and in whichever order."""
        generator = stream(self.seed, purpose, t, step)
        return torch.randint(2**62, (self._clean.n,), generator=generator, device="cpu").tolist()


def _is_finite_from_zero(value: float) -> bool:
    return isinstance(value, Real) and 0 <= value < math.inf


def _check_judges(clients: Tensor, n: int) -> None:
    if not isinstance(clients, Tensor) or clients.dim() != 1 or clients.dtype not in INTEGERS:
        raise ValueError(f"clients must be ids, an integer tensor of shape (c,), found {describe(clients)}")
    check_range("clients", clients, 0, n)


def _check_options(
    lr: float | Callable[[int], float], batch_size: int, steps: int, reduction: str | None, momentum: float, way: str
) -> None:
    if not callable(lr) and not _is_finite_from_zero(lr):
        raise ValueError(f"lr must be a finite number >= 0, or a function of the round, found {lr!r}")
    if not _is_finite_from_zero(momentum):
        raise ValueError(f"momentum must be a finite number >= 0, found {momentum!r}")
    check_count("batch_size", batch_size, 1)
    check_count("steps", steps, 1)
    if reduction not in ("mean", "sum", None):
        raise ValueError(f"reduction must be 'mean', 'sum' or None, found {reduction!r}")
    if way not in ("auto", *get_args(Way)):
        raise ValueError(f"way must be 'auto', 'loop', 'threads' or 'batched', found {way!r}")
