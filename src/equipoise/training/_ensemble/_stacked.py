"""One architecture, run with the rows of stacked flat models in place of a module's own parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from copy import deepcopy
from typing import Any, Literal

import torch
from torch import Tensor, nn

from equipoise._utils.validation import describe
from equipoise.parameters import entries_of, flatten
from equipoise.training._ensemble._functional import apply_stacked, is_linear

Way = Literal["loop", "threads", "batched"]


class Stacked:
    """A module's architecture, for stacked models ``(n, d)`` with rows as :func:`equipoise.flatten` makes them.

    The module is copied, so that it can be used and changed elsewhere. Several threads may share this object.

    >>> from equipoise.training._ensemble._stacked import Stacked
    >>> architecture = Stacked(torch.nn.Linear(2, 1))
    >>> weights, biases = architecture.parts(torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]))
    >>> weights.shape, biases.flatten()
    (torch.Size([2, 1, 2]), tensor([3., 6.]))
    >>> architecture.apply([weights, biases], torch.ones(1, 2), shared=True).flatten()
    tensor([ 6., 15.])
    """

    def __init__(self, model: nn.Module, *, buffers: bool = False) -> None:
        like = flatten(model, buffers=buffers)
        self.d, self.dtype, self.device = len(like), like.dtype, like.device
        for entry in entries_of(model, "model", buffers):
            if entry.tensor.dtype != self.dtype:
                raise ValueError(f"model must have parameters of one dtype, expected {self.dtype}, found {entry}")
        self.model, self.buffers = deepcopy(model), buffers
        self.trained = [i for i, p in enumerate(model.parameters()) if p.requires_grad]
        self._shapes = [p.shape for p in model.parameters()]
        places = {p: i for i, p in enumerate(model.parameters())}
        self._places = {name: places[p] for name, p in model.named_parameters(remove_duplicate=False)}
        self._idle: list[Replica] = []

    def __getstate__(self) -> dict[str, Any]:
        """All but the replicas, whose parameters would no longer lie in their vectors after copying or pickling."""
        return self.__dict__ | {"_idle": []}

    def check(self, models: Tensor, n: int | None = None, *, name: str = "models") -> None:
        """Raise unless ``models`` are rows of this architecture, and n of them if n is given."""
        rows = "n" if n is None else n
        if (
            not isinstance(models, Tensor)
            or models.dim() != 2
            or models.shape != (len(models) if n is None else n, self.d)
            or models.dtype != self.dtype
        ):
            expected = f"{str(self.dtype).removeprefix('torch.')} ({rows}, {self.d}) like flatten(model)"
            raise ValueError(f"{name} must be {expected}, found {describe(models)}")
        if models.device != self.device:
            raise ValueError(f"{name} must be on the device of the model, {self.device}, found {models.device}")

    def parts(self, models: Tensor) -> list[Tensor]:
        """The parameters in flat models ``(..., d)``, each ``(..., *shape)``: views, ordered like the module's."""
        sizes = [shape.numel() for shape in self._shapes]
        pieces = models[..., : sum(sizes)].split(sizes, -1)
        return [piece.view(piece.shape[:-1] + shape) for piece, shape in zip(pieces, self._shapes, strict=True)]

    def apply(self, parts: list[Tensor], x: Tensor, *, shared: bool = False) -> Tensor:
        """The outputs of all clients at once: see :func:`equipoise.training._ensemble._functional.apply_stacked`."""
        named = {name: parts[i] for name, i in self._places.items()}
        with self.replica() as replica:
            return apply_stacked(replica.module, named, x, shared=shared)

    @contextmanager
    def replica(self) -> Iterator[Replica]:
        """A module of one's own for a while, with whatever its last user left in it."""
        try:
            replica = self._idle.pop()
        except IndexError:
            replica = Replica(self.model, self.buffers)
        yield replica
        self._idle.append(replica)  # not after an error, which may have left it half changed

    def own_generators(self, *, enabled: bool = True) -> AbstractContextManager[None]:
        """Whatever draws from torch's global generators inside, outside they are left as they were."""
        return torch.random.fork_rng([self.device] if self.device.type == "cuda" else [], enabled)

    def fastest_way(self, trial: Callable[[Tensor], object]) -> Way:
        """A rule made from measurements: the same model goes the same way in every run.

        ``"batched"`` if all parameters belong to linear layers, or on a device other than a CPU; ``"threads"`` for
        everything else, and for what cannot be batched: see `batching_error`.
        """
        suited = is_linear(self.model) or self.device.type != "cpu"
        return "batched" if suited and self.batching_error(trial) is None else "threads"

    def batching_error(self, trial: Callable[[Tensor], object]) -> Exception | None:
        """What goes wrong, if anything, in ``trial(models (c, d))``, which runs two clients at once, and then one.

        One client may be alone in a block, and vmap does not always take one where it takes two.
        """
        if self.buffers:
            return ValueError("buffers are not run for several clients at once")
        try:
            for clients in (2, 1):
                trial(flatten(self.model).repeat(clients, 1))
        except Exception as error:  # a module can do anything, and torch.func.vmap forbids much of it
            return error
        return None

    def likes_channels_last(self, x: Tensor) -> bool:
        """Whether images should come with their channels last in memory: faster for convolutions on a CPU.

        A module that calls ``view`` on images needs them as they usually are.
        """
        on_cpu = self.device.type == "cpu" and self.dtype == torch.float32
        if not on_cpu or x.dim() != 4 or not any(isinstance(part, nn.Conv2d) for part in self.model.modules()):
            return False
        try:
            with torch.no_grad(), self.own_generators(), self.replica() as replica:
                replica.module(channels_last(x))
        except RuntimeError:
            return False
        return True


class Replica:
    """A copy of a module whose parameters lie one after the other in ``vector``, as in a row of stacked models."""

    def __init__(self, model: nn.Module, buffers: bool) -> None:
        self.module = deepcopy(model)
        self.vector = flatten(model, buffers=buffers)
        tensors = [entry.tensor for entry in entries_of(self.module, "model", buffers)]
        for tensor, part in zip(tensors, self.vector.split([x.numel() for x in tensors]), strict=True):
            tensor.data = part.view(tensor.shape)
        self.trained = [p for p in self.module.parameters() if p.requires_grad]


def channels_last(x: Tensor) -> Tensor:
    """Images (b, channels, height, width) with their channels last in memory, also if there is only one channel.

    Torch tells the two orders apart by strides. With one channel both orders are the same memory, and
    ``x.contiguous(memory_format=torch.channels_last)`` leaves the strides as they are.
    """
    moved = x.movedim(1, -1)
    return moved.flatten().view(moved.shape).movedim(-1, 1)
