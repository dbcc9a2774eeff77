"""Count sketches: sums of signed parameters in buckets, which keep distances on average."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from equipoise.kernels._blocks import chunks

# Elements of a temporary: 8 MiB of float64.
SKETCHED = 1 << 20


def count_sketch(x: Tensor, size: int, seed: int) -> Tensor:
    """(rows, size) the sketch of each row of ``x`` (rows, d), in its dtype.

    Parameter p adds ``sign(p) * x_p`` to bucket ``h(p)``, where h is a random permutation modulo
    ``size``, so that buckets are of equal size but for one. Sums are taken in float64. Sums of
    finite values beyond the range of the dtype become its largest number.
    """
    buckets, signs = _hashes(x.shape[1], size, seed, x.device)
    sums = torch.zeros(len(x), size, dtype=torch.float64, device=x.device)
    # In the order of columns for each row, whatever the number of rows.
    for columns in chunks(x.shape[1], max(1, len(x)), SKETCHED):
        signed = x[:, columns].double() * signs[columns]
        sums.index_add_(1, buckets[columns].long(), signed)
    largest = torch.finfo(x.dtype).max
    return sums.clamp(-largest, largest).where(sums.isfinite(), sums).to(x.dtype)


@lru_cache(maxsize=2)
def _hashes(d: int, size: int, seed: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """(d,) the bucket of each parameter, int32, and its sign, int8."""
    # Drawn on the CPU, so that clients on other devices have the same.
    source = torch.Generator(device="cpu").manual_seed(seed)
    with torch.inference_mode(False):
        order = torch.randperm(d, generator=source, device="cpu", dtype=torch.int64)
        buckets = (order % size).to(torch.int32)
        signs = torch.randint(2, (d,), generator=source, device="cpu", dtype=torch.int8) * 2 - 1
    return buckets.to(device), signs.to(device)
