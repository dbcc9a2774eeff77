"""One architecture, run with the rows of stacked flat models as its parameters."""

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

Backend = Literal["loop", "threads", "batched"]


class Stacked:
    """A module's architecture, for stacked models ``(n, d)`` with rows of `equipoise.flatten`.

    The module is copied, so it can be used and changed elsewhere. Several threads may share this
    object.

    >>> from equipoise.training._ensemble._stacked import Stacked
    >>> architecture = Stacked(torch.nn.Linear(2, 1))
    >>> models = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    >>> weights, biases = architecture.parts(models)
    >>> weights.shape, biases.flatten()
    (torch.Size([2, 1, 2]), tensor([3., 6.]))
    >>> architecture.apply([weights, biases], torch.ones(1, 2), shared=True).flatten()
    tensor([ 6., 15.])
    """

    def __init__(self, model: nn.Module, *, buffers: bool = False) -> None:
        like = flatten(model, buffers=buffers)
        self.d = len(like)
        self.dtype = like.dtype
        self.device = like.device
        for entry in entries_of(model, "model", buffers):
            if entry.tensor.dtype != self.dtype:
                expected = f"parameters of one dtype, expected {self.dtype}"
                raise ValueError(f"model must have {expected}, found {entry}")
        self.model = deepcopy(model)
        self.buffers = buffers
        self.trained = [i for i, p in enumerate(model.parameters()) if p.requires_grad]
        self._shapes = [p.shape for p in model.parameters()]
        self._sizes = [p.numel() for p in model.parameters()]
        # A shared parameter has several names, but one place in a flat model.
        places = {p: i for i, p in enumerate(model.parameters())}
        named = model.named_parameters(remove_duplicate=False)
        self._places = {name: places[p] for name, p in named}
        # Replicas that no thread uses. Several threads pop and append: each call is atomic.
        self._idle: list[Replica] = []

    def __getstate__(self) -> dict[str, Any]:
        # A copied replica would have parameters that no longer lie in its vector.
        return self.__dict__ | {"_idle": []}

    def check(self, models: Tensor, n: int | None = None, *, name: str = "models") -> None:
        """Raise unless ``models`` are rows of this architecture, and n of them if n is given."""
        is_matrix = isinstance(models, Tensor) and models.dtype == self.dtype and models.dim() == 2
        if not is_matrix or models.shape[1] != self.d or n not in (None, len(models)):
            rows = "n" if n is None else n
            dtype = str(self.dtype).removeprefix("torch.")
            expected = f"{dtype} ({rows}, {self.d}) like flatten(model)"
            raise ValueError(f"{name} must be {expected}, found {describe(models)}")
        if models.device != self.device:
            expected = f"on the device of the model, {self.device}"
            raise ValueError(f"{name} must be {expected}, found {models.device}")

    def parts(self, models: Tensor) -> list[Tensor]:
        """The parameters in flat models ``(..., d)``, as views ``(..., *shape)``, in order."""
        # The buffers, if any, follow the parameters.
        pieces = models[..., : sum(self._sizes)].split(self._sizes, -1)
        pairs = zip(pieces, self._shapes, strict=True)
        return [piece.view(piece.shape[:-1] + shape) for piece, shape in pairs]

    def apply(self, parts: list[Tensor], x: Tensor, *, shared: bool = False) -> Tensor:
        """The outputs of all clients at once: see `apply_stacked`."""
        named = {name: parts[i] for name, i in self._places.items()}
        with self.replica() as replica:
            return apply_stacked(replica.module, named, x, shared=shared)

    @contextmanager
    def replica(self) -> Iterator[Replica]:
        """A module for the exclusive use of one thread, with parameters of its last user."""
        try:
            replica = self._idle.pop()
        except IndexError:
            replica = Replica(self.model, self.buffers)
        yield replica
        self._idle.append(replica)  # not after an error, which may have left it half changed

    def forked_generators(self, *, enabled: bool = True) -> AbstractContextManager[None]:
        """Restore torch's global generators afterwards."""
        # fork_rng always restores the generator of the CPU; other devices must be listed.
        return torch.random.fork_rng([self.device] if self.device.type == "cuda" else [], enabled)

    def fastest_backend(self, attempt: Callable[[Tensor], object]) -> Backend:
        """The backend for this architecture, by a rule: equal models get equal backends.

        ``"batched"`` if all parameters belong to linear layers, or on a device other than a CPU.
        ``"threads"`` otherwise, and for models that cannot be batched: see `batching_error`.
        """
        suited = is_linear(self.model) or self.device.type != "cpu"
        return "batched" if suited and self.batching_error(attempt) is None else "threads"

    def batching_error(self, attempt: Callable[[Tensor], object]) -> Exception | None:
        """The error, if any, of ``attempt(models (c, d))`` with two clients and then with one.

        A block may hold one client only, and vmap does not always take one where it takes two.
        Errors that are no RuntimeError are raised: torch.func has this kind for all that it cannot
        batch, so others are mistakes, which a slower backend would hide.
        """
        if self.buffers:
            return ValueError("buffers are not run for several clients at once")
        try:
            for clients in (2, 1):
                attempt(flatten(self.model).repeat(clients, 1))
        except RuntimeError as error:
            return error
        return None

    def takes_channels_last(self, x: Tensor) -> bool:
        """Whether images should have their channels last in memory.

        Convolutions on a CPU are faster then, but a module that calls ``view`` on images needs
        them contiguous.
        """
        on_cpu = self.device.type == "cpu" and self.dtype == torch.float32
        convolves = any(isinstance(part, nn.Conv2d) for part in self.model.modules())
        if not on_cpu or x.dim() != 4 or not convolves:
            return False
        try:
            with torch.no_grad(), self.forked_generators(), self.replica() as replica:
                replica.module(channels_last(x))
        # ``view`` raises it for images that are not contiguous.
        except RuntimeError:
            return False
        return True


class Replica:
    """A copy of a module whose parameters are views of ``vector``, a row of stacked models."""

    def __init__(self, model: nn.Module, buffers: bool) -> None:
        self.module = deepcopy(model)
        self.vector = flatten(model, buffers=buffers)
        tensors = [entry.tensor for entry in entries_of(self.module, "model", buffers)]
        parts = self.vector.split([x.numel() for x in tensors])
        # One copy into the vector then loads all parameters of a client.
        for tensor, part in zip(tensors, parts, strict=True):
            tensor.data = part.view(tensor.shape)
        self.trained = [p for p in self.module.parameters() if p.requires_grad]


def channels_last(x: Tensor) -> Tensor:
    """Images (b, channels, height, width) with their channels last in memory.

    Torch tells the two orders apart by strides. With one channel both orders are the same memory,
    and ``x.contiguous(memory_format=torch.channels_last)`` leaves the strides as they are.
    """
    # (b, height, width, channels); the view gets the strides of this order even for one channel.
    moved = x.movedim(1, -1)
    return moved.flatten().view(moved.shape).movedim(-1, 1)
