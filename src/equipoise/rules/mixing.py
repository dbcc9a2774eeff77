"""The last step of a round: how much a client keeps of its own model."""

from __future__ import annotations

import torch
from torch import Tensor

from equipoise._utils.formatting import vector_hint
from equipoise._utils.validation import describe, is_floating, is_number
from equipoise.kernels import block, chunks, compute_dtype, new_output


@torch.no_grad()
def mix(own: Tensor, model: Tensor, alpha: float | Tensor = 0.5) -> Tensor:
    """The convex combination ``alpha * own + (1 - alpha) * model``.

    ``own`` and ``model`` are ``(d,)``, or ``(n, d)`` for n clients; ``alpha`` in [0, 1] is a number or, for n clients,
    an ``(n,)`` tensor. The result has the shape, dtype and device of ``own``; half precision is computed in float32
    and rounded once.

    Every coordinate of the result lies between those of ``own`` and ``model``, so nothing finite overflows and
    ``mix(own, own)`` is ``own``. With ``alpha`` 1 the result is exactly ``own``, with 0 exactly ``model``, even where
    the other one is infinite or NaN.

    >>> own = torch.tensor([[0.0, 4.0], [0.0, 4.0]])
    >>> aggregate = torch.tensor([[2.0, 0.0], [2.0, 0.0]])
    >>> eq.mix(own, aggregate)
    tensor([[1., 2.],
            [1., 2.]])
    >>> eq.mix(own, aggregate, alpha=torch.tensor([1.0, 0.25]))
    tensor([[0.0000, 4.0000],
            [1.5000, 1.0000]])
    """
    _check_models(own, model)
    shares = as_shares(alpha, own)
    weights = [share.to(own.device, compute_dtype(own)) for share in (shares, 1 - shares)]
    rows, others = torch.atleast_2d(own), torch.atleast_2d(model)
    if own.dtype == compute_dtype(own):
        mixed = torch.lerp(others, rows, weights[0], out=new_output(rows, *rows.shape))
        if mixed.sum().isfinite():
            return mixed.view(own.shape)
    mixed = new_output(rows, *rows.shape)
    for columns in chunks(rows.shape[1], len(rows)):
        mixed[:, columns] = _careful_combination(block(rows, columns), block(others, columns), *weights)
    return mixed.view(own.shape)


def _careful_combination(own: Tensor, model: Tensor, of_own: Tensor, of_model: Tensor) -> Tensor:
    """The same where lerp could overflow, or mix a NaN in with weight 0."""
    mixed = (own * of_own).add_(model * of_model)
    # Rounding can leave the interval by a unit in the last place.
    mixed = mixed.clamp_(torch.minimum(own, model), torch.maximum(own, model))
    # A weight of 0 leaves nothing of an infinity, but 0 * inf is NaN.
    return torch.where(of_own == 0, model, torch.where(of_model == 0, own, mixed))


def as_shares(alpha: object, own: Tensor) -> Tensor:
    """``alpha`` as a float64 column, one row or one per client; on the CPU, because some devices have no float64."""
    if not (alpha.is_floating_point() if isinstance(alpha, Tensor) else is_number(alpha)):
        raise ValueError(f"alpha must be a number or a floating-point tensor, found {describe(alpha)}")
    per_client = isinstance(alpha, Tensor) and alpha.dim() > 0
    shares = torch.as_tensor(alpha, dtype=torch.float64, device="cpu")
    if per_client and (own.dim() != 2 or shares.shape != own.shape[:1]):
        expected = "a number" if own.dim() == 1 else f"a number or a tensor of shape {tuple(own.shape[:1])}"
        raise ValueError(f"alpha must be {expected} for own of shape {tuple(own.shape)}, found {describe(alpha)}")
    for client, share in enumerate(shares.reshape(-1).tolist()):
        if not 0 <= share <= 1:
            where = f" for client {client}" if per_client else ""
            raise ValueError(f"alpha must be in [0, 1], found {share}{where}")
    return shares.reshape(-1, 1)


def _check_models(own: Tensor, model: Tensor) -> None:
    for name, x in (("own", own), ("model", model)):
        if not is_floating(x) or x.dim() not in (1, 2):
            found = f"{describe(x)}{vector_hint(x, name)}"
            raise ValueError(f"{name} must be a floating-point tensor of shape (d,) or (n, d), found {found}")
    if (own.shape, own.dtype) != (model.shape, model.dtype):
        raise ValueError(f"model must be like own, {describe(own)}, found {describe(model)}")
    if own.device != model.device:
        raise ValueError(f"model must be on the device of own, {own.device}, found {model.device}")
