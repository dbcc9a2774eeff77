"""Convert modules to vectors and back; rules work on vectors of ``d`` parameters."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from itertools import zip_longest
from typing import TypeVar

import torch
from torch import Tensor, nn

from equipoise._utils.validation import describe, is_floating
from equipoise.parameters._entries import Entry, entries_of
from equipoise.parameters._patterns import Patterns

ModuleT = TypeVar("ModuleT", bound=nn.Module)


@torch.no_grad()
def flatten(module: nn.Module, *, buffers: bool = False, only: Patterns | None = None) -> Tensor:
    """All parameters of a module, as one vector ``(d,)``.

    They are in the order of ``module.named_parameters()``, trainable or frozen, each in row-major
    order. A parameter that layers share occurs once. With ``buffers=True``, the floating-point
    buffers of the ``state_dict`` follow, such as the running statistics of BatchNorm. Integer and
    boolean buffers cannot be averaged, and non-persistent buffers are derived from other values:
    both are left out.

    ``only`` restricts the vector to parameters and buffers that match a pattern, or one of several.
    A pattern is the name of a parameter or of a module, with the wildcards of the shell
    (``"head"``, ``"*.lora_A.*"``), a class of modules that own the parameter
    (``torch.nn.BatchNorm2d``), or a function of name and parameter, such as `trainable`.

    The vector is a copy without gradient, on the device of the parameters. Its dtype is theirs or,
    if they differ, the narrowest dtype that holds all of them exactly.

    >>> layer = torch.nn.Linear(2, 1)
    >>> _ = torch.nn.init.ones_(layer.weight), torch.nn.init.zeros_(layer.bias)
    >>> eq.flatten(layer)
    tensor([1., 1., 0.])
    >>> norm = torch.nn.BatchNorm1d(2)
    >>> eq.flatten(norm, buffers=True)  # weight, bias, running mean and variance
    tensor([1., 1., 0., 0., 0., 0., 1., 1.])
    >>> eq.flatten(norm, buffers=True, only="running_*")
    tensor([0., 0., 1., 1.])
    """
    entries = entries_of(module, "module", buffers, only)
    vector = _new_vector(entries)
    _copy_entries(vector, entries)
    return vector


@torch.no_grad()
def unflatten(
    vector: Tensor, module: ModuleT, *, buffers: bool = False, only: Patterns | None = None
) -> ModuleT:
    """Write a vector ``(d,)`` into a module, and return the module: the inverse of :func:`flatten`.

    Values are copied into the existing parameters, cast to their dtype and moved to their device,
    so that an optimizer of these parameters keeps working. ``requires_grad`` and ``grad`` do not
    change.

    >>> layer = eq.unflatten(torch.tensor([1.0, 2.0, 3.0]), torch.nn.Linear(2, 1))
    >>> layer(torch.tensor([10.0, 100.0]))
    tensor([213.], grad_fn=<ViewBackward0>)
    """
    entries = entries_of(module, "module", buffers, only)
    if not is_floating(vector) or vector.dim() != 1:
        is_stack = isinstance(vector, Tensor) and vector.dim() == 2
        hint = "; unstack_models takes several" if is_stack else ""
        expected = "a floating-point tensor of shape (d,)"
        raise ValueError(f"vector must be {expected}, found {describe(vector)}{hint}")
    _check_length(vector, entries)
    # The parts are views of the vector, in the order of the entries.
    for part, entry in zip(vector.split(_element_counts(entries)), entries, strict=True):
        # copy_, because an optimizer refers to the existing parameter.
        entry.tensor.copy_(part.view(entry.tensor.shape))
    return module


@torch.no_grad()
def stack_models(
    modules: Iterable[nn.Module], *, buffers: bool = False, only: Patterns | None = None
) -> Tensor:
    """The models of n clients as an ``(n, d)`` tensor: row i is ``flatten(modules[i])``.

    The modules must have the same parameters: equal names, shapes, dtypes and devices, in the same
    order.

    >>> clients = [torch.nn.Linear(3, 2) for _ in range(4)]
    >>> models = eq.stack_models(clients)
    >>> models.shape
    torch.Size([4, 8])
    >>> bool((models[2] == eq.flatten(clients[2])).all())
    True
    """
    named = _as_named_modules(modules, "flatten")
    layouts = [entries_of(module, name, buffers, only) for module, name in named]
    # Compare before allocating (n, d), which may be large.
    for i, entries in enumerate(layouts):
        _check_same(layouts[0], entries, i)
    models = _new_vector(layouts[0], len(layouts))
    for row, entries in zip(models, layouts, strict=True):
        _copy_entries(row, entries)
    return models


@torch.no_grad()
def unstack_models(
    models: Tensor,
    modules: Iterable[ModuleT],
    *,
    buffers: bool = False,
    only: Patterns | None = None,
) -> list[ModuleT]:
    """Write row i of ``models (n, d)`` into ``modules[i]``, and return the modules.

    The inverse of :func:`stack_models`. Rows are written as by :func:`unflatten`. If one of them
    does not fit, no module is changed.

    >>> clients = [torch.nn.Linear(3, 2) for _ in range(4)]
    >>> models = eq.stack_models(clients)
    >>> _ = eq.unstack_models(2 * models, clients)
    >>> torch.equal(eq.stack_models(clients), 2 * models)
    True
    """
    if not is_floating(models) or models.dim() != 2:
        expected = "a floating-point tensor of shape (n, d)"
        raise ValueError(f"models must be {expected}, found {describe(models)}")
    named = _as_named_modules(modules, "unflatten")
    if len(named) != len(models):
        expected = f"one per row of models, expected {len(models)}"
        raise ValueError(f"modules must be {expected}, found {len(named)}")
    layouts = [entries_of(module, name, buffers, only) for module, name in named]
    _check_not_shared(layouts)
    for row, entries, (_, name) in zip(models, layouts, named, strict=True):
        # All rows are checked before the first one is written, so that an error changes no module.
        _check_length(row, entries, "row of models", name)
    pairs = zip(models, named, strict=True)
    return [unflatten(row, module, buffers=buffers, only=only) for row, (module, _) in pairs]


def _as_named_modules(modules: Iterable[ModuleT], for_one: str) -> list[tuple[ModuleT, str]]:
    """The modules, and their names in error messages."""
    # A ModuleList or Sequential is a module and iterable: it counts as several modules.
    if isinstance(modules, nn.Module) and not isinstance(modules, Iterable):
        found = describe(modules)
        raise ValueError(f"modules must be several modules, found {found}; {for_one} takes one")
    named = [(module, f"modules[{i}]") for i, module in enumerate(modules)]
    if not named:
        raise ValueError("modules must hold at least one module, found none")
    return named


def _check_length(
    vector: Tensor, entries: list[Entry], argument: str = "vector", owner: str = "module"
) -> None:
    expected = sum(_element_counts(entries))
    found = len(vector)
    if found == expected:
        return
    # Name the entry in which the vector ends: it is likely the one that differs.
    end = 0
    place = f"continues after the last {entries[-1].kind}, {entries[-1].name!r}"
    for kind, name, x in entries:
        if found < end + x.numel():
            place = f"ends at {kind} {name!r}, which takes elements {end} to {end + x.numel() - 1}"
            break
        end += x.numel()
    raise ValueError(
        f"{argument} must have {expected} elements, one per parameter of {owner}, "
        f"found {found}: it {place}"
    )


def _check_same(first: list[Entry], entries: list[Entry], index: int) -> None:
    for expected, found in zip_longest(first, entries):
        # A string holds kind, name, dtype, shape and device. None is a missing entry.
        if expected is None or found is None or str(expected) != str(found):
            raise ValueError(
                f"modules[{index}] must have the parameters of modules[0], "
                f"expected {expected or 'no more'}, found {found or 'no more'}"
            )


def _check_not_shared(layouts: list[list[Entry]]) -> None:
    """Raise if two modules share a parameter: they cannot hold two rows."""
    first: dict[int, int] = {}
    for i, entries in enumerate(layouts):
        for entry in entries:
            # All empty tensors have the address 0, and no values to share.
            if not entry.tensor.numel():
                continue
            # Views of one storage that start elsewhere are not found: no usual module has them.
            other = first.setdefault(entry.tensor.data_ptr(), i)
            if other != i:
                raise ValueError(
                    f"modules must not share parameters, found {entry.kind} {entry.name!r} "
                    f"of modules[{i}] in modules[{other}]; copy.deepcopy makes another"
                )


def _element_counts(entries: list[Entry]) -> list[int]:
    return [entry.tensor.numel() for entry in entries]


def _new_vector(entries: list[Entry], *rows: int) -> Tensor:
    # For example, float16 and bfloat16 together need float32.
    dtype = reduce(torch.promote_types, (entry.tensor.dtype for entry in entries))
    device = entries[0].tensor.device
    return torch.empty(*rows, sum(_element_counts(entries)), dtype=dtype, device=device)


def _copy_entries(vector: Tensor, entries: list[Entry]) -> None:
    for part, entry in zip(vector.split(_element_counts(entries)), entries, strict=True):
        # Views of the vector, so no parameter is copied twice.
        part.view(entry.tensor.shape).copy_(entry.tensor)
