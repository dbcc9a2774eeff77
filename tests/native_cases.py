"""Random matrices for the tests of the C kernels."""

from __future__ import annotations

import torch
from hypothesis import strategies as st
from torch import Tensor

from equipoise.kernels import native
from equipoise.kernels._weighted_sums_native import combine_natively

DTYPES = {torch.float32: 2e-6, torch.float64: 1e-14, torch.float16: 2e-3, torch.bfloat16: 2e-2}


def matrix(
    rows: int, d: int, dtype: torch.dtype, *, offset: int = 0, gap: int = 0, seed: int = 0
) -> Tensor:
    """Random rows that may start anywhere in memory and be any distance apart."""
    generator = torch.Generator().manual_seed(seed)
    memory = torch.randn(rows, offset + d + gap, generator=generator, dtype=torch.float64).to(dtype)
    return memory[:, offset : offset + d]


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def weighted_sums(bank: Tensor, weights: Tensor, out: Tensor, own: Tensor | None = None) -> bool:
    """``out = weights @ bank``, plus own; whether it is finite. Only weights other than 0 count."""
    n = len(weights)
    slots = torch.arange(len(bank)).expand(n, -1)
    own_weights = torch.full((n,), 0.0 if own is None else 0.5, dtype=torch.float64)
    own_row = 0 if own is None else len(bank)
    edges = native.weighted_edges(slots, weights.double(), slots, len(bank), own_weights, own_row)
    return combine_natively(bank if own is None else own, bank, edges, out)


shapes = st.tuples(
    st.integers(1, 9),
    st.sampled_from([1, 3, 7, 8, 16, 33, 63, 64, 65, 255, 256, 257, 1023, 1024, 1025, 4097, 9000]),
)


places = st.tuples(st.integers(0, 9), st.integers(0, 9))


dtypes = st.sampled_from(list(DTYPES))
