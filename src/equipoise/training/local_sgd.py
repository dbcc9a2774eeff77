"""Local training of all clients, from stacked flat models to stacked flat models."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import cache, partial
from operator import is_
from typing import ClassVar, Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn

from equipoise._utils.formatting import call
from equipoise._utils.recycled_memory import RecycledMemory
from equipoise._utils.rng import stream
from equipoise._utils.validation import (
    INTEGERS,
    Clients,
    as_mask,
    check_choice,
    check_count,
    check_number,
    check_range,
    describe,
    is_number,
)
from equipoise.attacks import Attack, DataAttack, MessageAttack
from equipoise.training._batching import Batches, as_slice
from equipoise.training._ensemble import (
    Backend,
    BatchLoss,
    Reduction,
    Stacked,
    check_trainable,
    evaluation_traits,
)
from equipoise.training._examples import Batch, Examples, Pair, draw_positions
from equipoise.training._layer_chains import LayerChain
from equipoise.training._loss_evaluation import LossEvaluation
from equipoise.training._part import PartialBlocks, PartOfClients
from equipoise.training._poisoning import Poisoning
from equipoise.training._sgd_step import SGDStep

# The most clients that are trained together: of 1,000 small ones, several threads get some.
BLOCK_CLIENTS = 256
# The same for networks with convolutions. More clients save less than 1 % of the time.
BLOCK_CONVOLUTIONS = 2
# Clients whose examples one model sees in one forward pass: more would leave no work for the
# other threads.
SHARED_PASS = 4


class Plan(NamedTuple):
    """The batches of a round, and the rows of models that stay as they are.

    They depend on a choice of examples, clients and backend, and on the numbers of examples of all
    clients.
    """

    choice: tuple[object, ...]
    counts: Tensor
    batches: Batches | PartialBlocks
    untrained: Tensor | slice

    def suits(self, choice: tuple[object, ...], counts: Tensor) -> bool:
        """Whether this is the plan for such a choice."""
        # By identity: examples and tensors cannot be compared by one truth value.
        return all(map(is_, self.choice, choice)) and self.counts.equal(counts)


class LocalSGD:
    r"""Mini-batch gradient descent on every client's own examples.

    .. math:: v \leftarrow \mu v + \nabla \ell(w; \mathrm{batch}), \qquad w \leftarrow w - \eta v

    as in :class:`torch.optim.SGD`, ``steps`` times a round. Every step draws new batches without
    replacement. They depend on the seed, the round and the step only, and are the same for all
    backends. A client with fewer examples than ``batch_size`` uses all it has.

    A non-finite model is trained like any other: it stays non-finite, and no other client is
    affected.

    **Backends.** ``"batched"`` trains many clients in one operation; ``"threads"`` trains one
    client in each of the threads that torch may use; ``"loop"`` trains one client after the other
    and leaves threads to torch, whose number may then change the last digits. ``"auto"`` chooses by
    a rule, not by measuring, so that two runs are the same:

    - a model or a loss that draws random numbers, as dropout does: loop;
    - layers whose gradients are known here, one after the other: batched. They are linear layers,
      element-wise functions, and, with native kernels, the convolutions of `equipoise.models.cnn`;
    - all parameters in linear layers, or a device other than a CPU: batched, if
      ``torch.func.vmap`` supports the model;
    - anything else: threads.

    Batched, 1,000 logistic regressions take a tenth of the time or less, and the paper's network
    takes 0.9 of it; other networks with convolutions take several times as long. On cores with
    other load, ``"loop"`` can take ten times as long, ``"threads"`` twice. `measure` times the
    backends for your own model: networks for very small images can be faster batched. On a CPU,
    convolutions get images with their channels last in memory, which saves a third of the time,
    unless the model does not support that.

    Args:
        model: the architecture, in training or evaluation mode as it is given; its parameters are
            not used. Parameters that require no gradient keep each client's values.
        loss: ``loss(outputs, targets, reduction=...)``, like
            ``torch.nn.functional.cross_entropy``.
        clients: the examples ``(x, y)`` of every client. Those that follow each other in memory,
            as the rows of one tensor, are not copied: leave them unchanged until training ends. A
            sequence other than a list or a tuple, such as `equipoise.training.LazyClients`, is read
            when training begins, and in a group of processes only for a process's own clients.
        lr: the learning rate :math:`\eta`, or a function of the round that returns it.
        batch_size: number of examples in a batch.
        steps: number of steps in a round.
        reduction: ``"mean"`` or ``"sum"`` over a batch. The BALANCE paper's learning rates are for
            sums. None is for a loss without such an argument, like a ``torch.nn.MSELoss()``: it is
            called as ``loss(outputs, targets)``.
        momentum: :math:`\mu`; the trainer then keeps :math:`v` of every client from round to round,
            see `state_dict`.
        seed: determines the batches, and the random numbers of poisoned examples, random models
            and random losses.
        backend: ``"loop"``, ``"threads"`` or ``"batched"`` instead of ``"auto"``.
        buffers: models are made by ``flatten(model, buffers=True)``. Running statistics, as in
            BatchNorm, then belong to each client, and are sent and aggregated like parameters.
            Without it, a model that changes its buffers is an error.

    >>> x = torch.tensor([[1.0], [2.0]])
    >>> model, loss = torch.nn.Linear(1, 1, bias=False), torch.nn.functional.mse_loss
    >>> train = LocalSGD(model, loss, [(x, 3 * x), (x, -x)], lr=0.1, steps=20)
    >>> train(torch.zeros(2, 1), t=0)
    tensor([[ 3.0000],
            [-1.0000]])
    """

    replaces_state: ClassVar[bool] = True  # see `Trainer`

    backend: Backend

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
        backend: Literal["auto"] | Backend = "auto",
        buffers: bool = False,
    ) -> None:
        if not callable(lr) and not _is_rate(lr):
            expected = "a finite number >= 0, or a function of the round"
            raise ValueError(f"lr must be {expected}, found {lr!r}")
        check_number("momentum", momentum)
        check_count("batch_size", batch_size, 1)
        check_count("steps", steps, 1)
        if reduction not in ("mean", "sum", None):
            raise ValueError(f"reduction must be 'mean', 'sum' or None, found {reduction!r}")
        check_choice("backend", backend, ("auto", *get_args(Backend)))
        if isinstance(loss, type):
            hint = "pass an instance, with reduction=None if it does not take that argument"
            raise ValueError(f"loss must be a function, found the class {loss.__name__}; {hint}")
        self.lr = lr
        self.batch_size = batch_size
        self.steps = steps
        self.momentum = momentum
        self.seed = seed
        self._rate(0)  # a function that does not return a number fails now
        self.loss = BatchLoss(loss, reduction)
        self._trained = Stacked(model, buffers=buffers)
        # A second copy for losses: eval() on a shared one would disturb training.
        self._evaluated = Stacked(model, buffers=buffers)
        self._evaluated.model.eval()
        self._source: Sequence[Pair] | None = None
        if isinstance(clients, Sequence) and not isinstance(clients, list | tuple):
            self._source = clients
            clients = clients[:1]  # the first client suffices to check the model
        examples = Examples.of(clients, device=self._trained.device)
        # Two: BatchNorm in training mode refuses a single example.
        x = examples.x[:2].clone()
        y = examples.y[:2].clone()
        self._random = check_trainable(self._trained, self.loss, x, y)
        self._traits = evaluation_traits(self._evaluated, self._mean_loss, examples.x, examples.y)
        if self._evaluated.takes_channels_last(x):
            examples = examples.with_channels_last()
        self._sample = examples
        self._loaded = examples if self._source is None else None
        self._chain = LayerChain.of(self._trained, x)
        self._memory = RecycledMemory()  # for velocities and blocks of clients
        self.backend = self._choose_backend(backend)
        self._poisoning: Poisoning | None = None
        self._velocity: Tensor | None = None
        self._part: PartOfClients | None = None
        self._plan: Plan | None = None  # of the last round

    def _choose_backend(self, backend: Literal["auto"] | Backend) -> Backend:
        if backend == "auto":
            if self._random:
                return "loop"
            if self._chain is not None and self._batching_error() is None:
                return "batched"
            return self._trained.fastest_backend(self._try_batched)
        if backend != "loop" and self._random:
            expected = "'loop' for a model or a loss that draws random numbers"
            raise ValueError(f"backend must be {expected}, found {backend!r}")
        if backend == "batched":
            error = self._batching_error()
            if error is not None:
                expected = "'loop' or 'threads' for this model"
                found = f"{backend!r}: {error}"
                raise ValueError(f"backend must be {expected}, found {found}") from error
        return backend

    def _batching_error(self) -> Exception | None:
        return self._trained.batching_error(self._try_batched)

    def _try_batched(self, models: Tensor) -> None:
        """Train clients with these models on two examples of the first client, all at once."""
        n = len(models)
        # Modulo: the first client may have one example only, which then occurs twice.
        positions = torch.arange(2, device="cpu") % self._sample.counts[0]
        clients = torch.zeros(n, dtype=torch.int64, device="cpu")
        x, y = self._sample.take(clients, positions.repeat(n, 1))
        blank = [torch.zeros_like(models)] if self.momentum else []
        step = self._step(0, [models, *blank], [models.clone(), *blank])
        step.train_together(Batch(slice(0, n), x, y))

    def __repr__(self) -> str:
        names = ("loss", "lr", "batch_size", "steps", "momentum", "seed", "backend")
        return call("LocalSGD", **{name: getattr(self, name) for name in names})

    @property
    def _n(self) -> int:
        """Number of clients that this trainer trains, which is known before they are loaded."""
        return self._clean.n if self._source is None or self._part else len(self._source)

    @property
    def _clean(self) -> Examples:
        """The examples of the clients that this trainer trains, before poisoning."""
        if self._loaded is None:
            assert self._source is not None  # examples are loaded, or there is where to load from
            self._loaded = self._load(range(len(self._source)))
        return self._loaded

    def _load(self, clients: Iterable[int]) -> Examples:
        assert self._source is not None
        pairs = [self._source[client] for client in clients]
        examples = Examples.of(pairs, device=self._trained.device)
        return examples.with_channels_last() if self._sample.channels_last else examples

    @property
    def samples(self) -> Tensor:
        """(n,) the number of examples of every client, before poisoning."""
        counts = self._clean.counts if self._part is None else self._part.counts
        return counts.to(self._clean.x.device)

    def of_clients(
        self, clients: Clients, *, gather: Callable[[Tensor], Tensor] | None = None
    ) -> LocalSGD:
        """A trainer of some clients, which keeps no examples of others.

        Row i of its models is the i-th of these clients, which trains as in a training of all. One
        process of several that share a simulation trains like that: see the ``group`` of
        `Simulator`.

        Args:
            clients: bool mask (n,) or client ids.
            gather: turns numbers of these clients (b,) into those of all clients (n,), in a group
                of processes that each load the examples of some clients only.

        >>> x = torch.tensor([[1.0], [2.0]])
        >>> model, loss = torch.nn.Linear(1, 1, bias=False), torch.nn.functional.mse_loss
        >>> train = LocalSGD(model, loss, [(x, 3 * x), (x, -x)], lr=0.1, steps=20)
        >>> train.of_clients([1])(torch.zeros(1, 1), t=0)
        tensor([[-1.0000]])
        """
        if self._part is not None:
            raise ValueError("trainer must be of all clients to choose some, found one of a part")
        ids = as_mask(clients, self._n, name="clients").nonzero().flatten().cpu()
        if not len(ids):
            raise ValueError("clients must hold at least one client, found none")
        trainer = self.restarted()
        if self._loaded is None:
            trainer._loaded = self._load(ids.tolist())
        else:
            trainer._loaded = self._loaded.of_clients(ids)
            # Without it, the examples of all clients can be freed.
            trainer._sample = trainer._loaded
        if gather is None:
            gather = partial(self._clean.counts.index_copy, 0, ids)
        trainer._part = PartOfClients(ids, gather(trainer._loaded.counts), gather)
        trainer._plan = None
        if self._poisoning is not None:
            trainer._poisoning = self._poisoning.of_rows(trainer._loaded, trainer._part.rows)
        return trainer

    # Training

    def check_models(self, models: Tensor) -> None:
        """Raise a ValueError unless these are models of its clients, (n, d) like flatten(model)."""
        self._trained.check(models, self._n)

    @torch.inference_mode(False)
    def __call__(self, models: Tensor, t: int) -> Tensor:
        """Every client's model after the local training of round t, as a new tensor (n, d)."""
        self.check_models(models)
        out = torch.empty(models.shape, dtype=models.dtype, device=models.device)
        self.train_into(out, models, t)
        return out

    @torch.inference_mode(False)
    def train_into(
        self, out: Tensor, models: Tensor, t: int, *, clients: Tensor | None = None
    ) -> None:
        """Write every client's model after the local training of round t to ``out (n, d)``.

        Only the ``clients`` of these ids are trained, if given. The others keep their model and
        their velocity. A trainer `of_clients` ignores the ids of clients that are not its own.
        """
        self.check_models(models)
        self._trained.check(out, self._n, name="out")
        check_count("t", t, 0)
        examples = self._examples(t)
        plan = self._plan_of(examples, clients)
        # The first step reads the given models and writes to `out`; later steps update it.
        before = [models.detach()]
        after = [out]
        if self.momentum:
            velocity = self._velocity
            if velocity is None:
                velocity = self._memory.take(models, *models.shape).zero_()
            before.append(velocity)
            # A round may fail, so the velocities before it are not updated in place.
            after.append(self._memory.take(velocity, *velocity.shape))
        for old, new in zip(before, after, strict=True):
            new[plan.untrained] = old[plan.untrained]
        step = self._step(t, before, after)
        for i in range(self.steps):
            seeds = self._seeds("model", t, i) if self._random else None
            positions = self._positions(examples, t, i)
            if isinstance(plan.batches, PartialBlocks):
                plan.batches.run(step, positions)
            else:
                step.run(plan.batches, positions, self.backend, seeds)
            step = replace(step, before=after)
        # Only after the last step: an interrupted round leaves the trainer as it was.
        self._velocity = after[1] if self.momentum else None

    def _step(self, t: int, before: list[Tensor], after: list[Tensor]) -> SGDStep:
        model = (self._trained, self._chain)
        return SGDStep(*model, self._memory, self.loss, self._rate(t), self.momentum, before, after)

    def _plan_of(self, examples: Examples, clients: Tensor | None) -> Plan:
        """The plan for these clients, or for all; that of the last round if it is the same."""
        choice = (examples, clients, self.backend)
        counts = self._counts_of_all(examples)
        if self._plan is None or not self._plan.suits(choice, counts):
            batches = self._make_batches(examples, counts, clients)
            untrained = torch.ones(examples.n, dtype=torch.bool, device="cpu")
            untrained[slice(None) if clients is None else self._rows_of(clients)] = False
            rows = as_slice(untrained.nonzero().flatten(), examples.x)
            self._plan = Plan(choice, counts, batches, rows)
        return self._plan

    def _counts_of_all(self, examples: Examples) -> Tensor:
        """(n,) the numbers of examples of all clients in this round, in all processes."""
        if self._part is None:
            return examples.counts
        if self._poisoning is None:
            return self._part.counts
        # An attack may add examples, from some round on; only the client's process knows how many.
        return self._part.gather(examples.counts)

    def _make_batches(
        self, examples: Examples, counts: Tensor, clients: Tensor | None
    ) -> Batches | PartialBlocks:
        batch_size, d, most = self.batch_size, self._trained.d, self._most_together(self.backend)
        if self._part is None or self.backend != "batched":
            every = torch.arange(examples.n, device="cpu")
            rows = every if clients is None else self._rows_of(clients)
            return Batches(examples, rows, rows, batch_size=batch_size, d=d, most=most)
        every = torch.arange(self._part.n, device="cpu")
        trained = every if clients is None else clients.cpu()
        return PartialBlocks(
            examples, self._part, counts, trained, batch_size=batch_size, d=d, most=most
        )

    def _rows_of(self, clients: Tensor) -> Tensor:
        """The rows of models of some clients, without those of other processes."""
        if self._part is None:
            return clients.cpu()
        rows = self._part.rows[clients.cpu()]
        return rows[rows >= 0]

    def _most_together(self, backend: Backend) -> int:
        """The most clients in a block."""
        if backend != "batched":
            return 1
        convolves = self._chain is not None and self._chain.convolves
        return BLOCK_CONVOLUTIONS if convolves else BLOCK_CLIENTS

    def _rate(self, t: int) -> float:
        """The learning rate of round t."""
        if not callable(self.lr):
            return self.lr
        rate = self.lr(t)
        if not _is_rate(rate):
            expected = "a finite number >= 0 for every round"
            raise ValueError(f"lr must return {expected}, found {rate!r} for round {t}")
        return float(rate)

    def _examples(self, t: int) -> Examples:
        return self._clean if self._poisoning is None else self._poisoning.examples(t)

    def _positions(self, examples: Examples, t: int, step: int) -> Tensor:
        # A generator of its own for each step: a run can be resumed in any round.
        generator = stream(self.seed, "batch", t, step)
        if self._part is None:
            return draw_positions(examples.counts, self.batch_size, generator)
        rows, n = self._part.ids, self._part.n
        return draw_positions(examples.counts, self.batch_size, generator, rows=rows, n=n)

    def _seeds(self, purpose: str, t: int, step: int) -> list[int]:
        """One seed for every client, so that the order of clients does not matter."""
        generator = stream(self.seed, purpose, t, step)
        n = self._clean.n if self._part is None else self._part.n
        seeds = torch.randint(2**62, (n,), generator=generator, device="cpu")
        if self._part is not None:
            seeds = seeds[self._part.ids]
        return seeds.tolist()

    # Losses for UBAR

    def loss_of(self, t: int) -> Callable[[Tensor, Tensor], Tensor]:
        """A function ``loss_of(models (c, d), clients (c,))`` that returns losses ``(c,)``.

        UBAR needs it. The loss of model j is its mean loss on the mini-batch of ``clients[j]`` in
        the last step of round t, in evaluation mode. If the model or the loss is random even then,
        all models of a client see the same random numbers.
        """
        check_count("t", t, 0)
        examples = self._examples(t)
        last = self.steps - 1

        @cache  # only drawn if the rule asks for losses: most do not
        def positions() -> Tensor:
            return self._positions(examples, t, last)

        @torch.inference_mode(False)
        def loss_of(models: Tensor, clients: Tensor) -> Tensor:
            is_tensor = isinstance(clients, Tensor) and clients.dtype in INTEGERS
            if not is_tensor or clients.dim() != 1:
                expected = "ids, an integer tensor of shape (c,)"
                raise ValueError(f"clients must be {expected}, found {describe(clients)}")
            check_range("clients", clients, 0, examples.n)
            self._evaluated.check(models, len(clients))
            return self._losses(models, clients.cpu().long(), examples, positions(), t)

        return loss_of

    @property
    def _mean_loss(self) -> BatchLoss:
        # A loss without reduction, None, keeps the one it has.
        return replace(self.loss, reduction=self.loss.reduction and "mean")

    def _losses(
        self, models: Tensor, clients: Tensor, examples: Examples, positions: Tensor, t: int
    ) -> Tensor:
        backend: Backend = self.backend
        seeds = None
        if self._traits.random:
            backend = "loop"  # threads share torch's global generator
            # By client, not by row: UBAR compares models of one client on equal random numbers.
            of_client = self._seeds("judge", t, self.steps - 1)
            seeds = [of_client[client] for client in clients.tolist()]
        # A stride of 0 is one model, expanded to several rows.
        same = models.stride(0) == 0 and not self._traits.batch_dependent
        most = self._most_together(backend)
        batches = Batches(
            examples,
            clients,
            batch_size=self.batch_size,
            d=self._evaluated.d,
            most=max(most, SHARED_PASS) if same else most,
        )
        losses = models.new_empty(len(models))
        evaluation = LossEvaluation(self._evaluated, self._chain, self._mean_loss, models, losses)
        evaluation.run(batches, positions, self._memory, backend, same=same, seeds=seeds)
        return losses

    # Poisoning

    def poisoned(self, attack: Attack, malicious: Clients) -> LocalSGD:
        """A trainer whose malicious clients train on examples that the attack poisons.

        The random numbers of ``attack.poison`` depend on the seed and the client only. Benign
        clients keep their examples and batches. An attack that poisons no data changes nothing.
        Poisoning a poisoned trainer replaces its attack. Momentum starts anew.

        >>> x, y = torch.ones(2, 1), torch.tensor([3, 3])
        >>> loss = torch.nn.functional.cross_entropy
        >>> train = LocalSGD(torch.nn.Linear(1, 6), loss, [(x, y), (x, y)], lr=1.0)
        >>> attacked = train.poisoned(eq.attacks.LabelFlip({3: 5}), malicious=[1])
        >>> attacked(torch.zeros(2, 12), t=0)[:, 6:].argmax(1)
        tensor([3, 5])
        """
        # A class has these methods too, but calling them on it would fail in the first round.
        if isinstance(attack, type) or not isinstance(attack, DataAttack | MessageAttack):
            expected = "poison(x, y) or forge(known)"
            raise ValueError(f"attack must have {expected}, found {describe(attack)}")
        trainer = self.restarted()
        if self._part is None:
            clients = as_mask(malicious, self._clean.n).nonzero().flatten().tolist()
            trainer._poisoning = Poisoning(self._clean, attack, clients, self.seed)
        else:
            clients = as_mask(malicious, self._part.n).nonzero().flatten().tolist()
            # Those of this part only; attacks and random numbers know a client by its id.
            rows = {client: int(self._part.rows[client]) for client in clients}
            mine = [client for client in clients if rows[client] >= 0]
            trainer._poisoning = Poisoning(self._clean, attack, mine, self.seed, rows=rows)
        return trainer

    # State

    def restarted(self) -> LocalSGD:
        """A copy without momentum; each `Simulator` begins with one."""
        trainer = copy(self)  # shallow: examples and architecture are never modified
        trainer._velocity = None
        return trainer

    def state_dict(self) -> dict[str, Tensor]:
        """The velocities, which must not be modified in place; empty without momentum."""
        return {} if self._velocity is None else {"velocity": self._velocity}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore the state that `state_dict` returned."""
        if not isinstance(state, Mapping):
            raise ValueError(f"state must be what state_dict returned, found {describe(state)}")
        allowed = ["velocity"] if self.momentum else []
        if not state.keys() <= set(allowed):
            found = sorted(state, key=str)
            raise ValueError(f"state must have no keys but {allowed}, found {found}")
        velocity = state.get("velocity")
        if velocity is not None:
            self._trained.check(velocity, self._clean.n, name="velocity in state")
        # A copy: training must not change the state that the caller holds.
        self._velocity = None if velocity is None else velocity.clone()

    def fingerprint(self) -> str:
        """A digest of all clients' examples before poisoning; checkpoints compare it."""
        return self._clean.digest

    def client_fingerprints(self) -> Tensor:
        """(b, 16) uint8, a digest of the examples of each client of this trainer."""
        return self._clean.digests

    # Timing

    def measure(self, models: Tensor, t: int = 0, *, repeats: int = 3) -> dict[Backend, float]:
        """Seconds that round t takes with each backend that supports the model, best of some.

        The state of the trainer does not change.
        """
        check_count("repeats", repeats, 1)
        backends: list[Backend] = ["loop"] if self._random else ["loop", "threads"]
        if not self._random and self._batching_error() is None:
            backends.append("batched")
        return {
            backend: min(self._seconds(backend, models, t) for _ in range(repeats))
            for backend in backends
        }

    def _seconds(self, backend: Backend, models: Tensor, t: int) -> float:
        trainer = copy(self)  # each repetition starts from the same momentum
        trainer.backend = backend
        start = time.perf_counter()
        trainer(models, t)[0, 0].item()  # reading a number waits for the device
        return time.perf_counter() - start


def _is_rate(value: object) -> bool:
    return is_number(value) and 0 <= value < math.inf
