"""The examples of clients that are loaded when they are needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import overload

from torch import Tensor

from equipoise._utils.formatting import call
from equipoise._utils.validation import check_callable, check_count

Pair = tuple[Tensor, Tensor]


class LazyClients(Sequence[Pair]):
    """The examples of ``n`` clients, each loaded by a function of its id.

    Pass it to `LocalSGD` in a simulation of several processes: each process then loads the examples
    of its own clients, and of client 0 to check the model.

    >>> from equipoise.training import LazyClients
    >>> clients = LazyClients(3, lambda client: (torch.full((2, 1), client), torch.zeros(2)))
    >>> x, y = clients[1]
    >>> x.flatten()
    tensor([1, 1])
    """

    def __init__(self, n: int, load: Callable[[int], Pair]) -> None:
        check_count("n", n, 1)
        check_callable("load", load)
        self.n = int(n)
        self.load = load

    def __repr__(self) -> str:
        return call("LazyClients", n=self.n, load=self.load)

    def __len__(self) -> int:
        return self.n

    @overload
    def __getitem__(self, client: int) -> Pair: ...
    @overload
    def __getitem__(self, client: slice) -> list[Pair]: ...
    def __getitem__(self, client: int | slice) -> Pair | list[Pair]:
        chosen = range(self.n)[client]  # an id beyond the last client is an IndexError
        return self.load(chosen) if isinstance(chosen, int) else [self.load(i) for i in chosen]
