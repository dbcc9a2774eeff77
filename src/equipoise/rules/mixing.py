"""The last step of a round: mix a client's own model with the aggregate."""

from __future__ import annotations

import torch
from torch import Tensor

from equipoise._utils.formatting import vector_hint
from equipoise._utils.validation import describe, is_floating, is_number
from equipoise.kernels import interpolate, same_rows
from equipoise.rules.base import check_target


@torch.no_grad()
def mix(
    own: Tensor, model: Tensor, alpha: float | Tensor = 0.5, *, out: Tensor | None = None
) -> Tensor:
    """The convex combination ``alpha * own + (1 - alpha) * model``.

    ``own`` and ``model`` are ``(d,)``, or ``(n, d)`` for n clients; ``alpha`` in [0, 1] is a number
    or, for n clients, an ``(n,)`` tensor. The result has the shape, dtype and device of ``own``.
    Half precision is computed in float32 and rounded once.

    The aggregate of some rules already contains own, as in gossip averaging: mix it with ``alpha``
    0. `default_alpha` returns the number that suits a rule.

    Each coordinate of the result lies between those of ``own`` and ``model``, so finite values
    never overflow and ``mix(own, own)`` is ``own``. With ``alpha`` 1 the result is exactly ``own``,
    with 0 exactly ``model``, even where the other one is infinite or NaN.

    The result is written to ``out``, if given, and ``out`` is returned. It must be like ``own``.
    It may be ``own`` or ``model`` itself, since each coordinate depends on the same coordinate of
    both only; any other shared memory is an error.

    >>> own = torch.tensor([[0.0, 4.0], [0.0, 4.0]])
    >>> aggregate = torch.tensor([[2.0, 0.0], [2.0, 0.0]])
    >>> eq.mix(own, aggregate)
    tensor([[1., 2.],
            [1., 2.]])
    >>> eq.mix(own, aggregate, alpha=torch.tensor([1.0, 0.25]))
    tensor([[0.0000, 4.0000],
            [1.5000, 1.0000]])
    >>> eq.mix(own, aggregate, out=aggregate) is aggregate
    True
    """
    return mix_and_check(own, model, alpha, out=out)[0]


@torch.no_grad()
def mix_and_check(
    own: Tensor, model: Tensor, alpha: float | Tensor, *, out: Tensor | None = None
) -> tuple[Tensor, bool]:
    """The result of `mix`, and whether it is finite, which takes no further pass over it.

    A sum of many finite values may overflow, so that a large result may count as not finite.
    """
    _check_models(own, model)
    shares = as_shares(alpha, own)
    # The kernel takes matrices: one client is a matrix of one row.
    mine = torch.atleast_2d(own.detach())
    theirs = torch.atleast_2d(model.detach())
    if out is None:
        mixed, finite = interpolate(mine, theirs, shares)
        return mixed.view(own.shape), finite
    others = [x for x in (own, model) if not (isinstance(out, Tensor) and same_rows(out, x))]
    check_target(out, own, others)
    # Native kernels write to the memory of out, which torch does not notice.
    torch.autograd.graph.increment_version(out)
    finite = interpolate(mine, theirs, shares, out=torch.atleast_2d(out))[1]
    return out, finite


def as_shares(alpha: object, own: Tensor) -> Tensor:
    """``alpha`` as a float64 column with one row, or one row per client.

    It is on the CPU, because some devices have no float64.
    """
    if not (alpha.is_floating_point() if isinstance(alpha, Tensor) else is_number(alpha)):
        expected = "a number or a floating-point tensor"
        raise ValueError(f"alpha must be {expected}, found {describe(alpha)}")
    # A tensor without dimensions counts as a number.
    per_client = isinstance(alpha, Tensor) and alpha.dim() > 0
    shares = torch.as_tensor(alpha, dtype=torch.float64, device="cpu")
    # own (d,) has no leading dimension, so that any tensor of shares is an error.
    if per_client and shares.shape != own.shape[:-1]:
        expected = "a number"
        if own.dim() != 1:
            expected += f" or a tensor of shape {tuple(own.shape[:1])}"
        shape = tuple(own.shape)
        raise ValueError(
            f"alpha must be {expected} for own of shape {shape}, found {describe(alpha)}"
        )
    # Compared as Python floats, so that NaN fails, and the first wrong client is named.
    for client, share in enumerate(shares.reshape(-1).tolist()):
        if not 0 <= share <= 1:
            where = f" for client {client}" if per_client else ""
            raise ValueError(f"alpha must be in [0, 1], found {share}{where}")
    return shares.reshape(-1, 1)


def _check_models(own: Tensor, model: Tensor) -> None:
    for name, x in (("own", own), ("model", model)):
        if not is_floating(x) or x.dim() not in (1, 2):
            expected = "a floating-point tensor of shape (d,) or (n, d)"
            found = f"{describe(x)}{vector_hint(x, name)}"
            raise ValueError(f"{name} must be {expected}, found {found}")
    # Broadcasting or promotion would hide a mistake of the caller.
    if (own.shape, own.dtype) != (model.shape, model.dtype):
        raise ValueError(f"model must be like own, {describe(own)}, found {describe(model)}")
    if own.device != model.device:
        raise ValueError(f"model must be on the device of own, {own.device}, found {model.device}")
