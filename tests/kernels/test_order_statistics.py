"""Trimmed means against sorting in float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from equipoise import Inbox, Topology, kernels
from equipoise.kernels import _blocks, _order_statistics


def reference_trimmed_mean(own: Tensor, inbox: Inbox, trim: Tensor, include_own: bool) -> Tensor:
    rows = []
    for i in range(inbox.n):
        values = inbox.bank.double()[inbox.slots[i][inbox.present[i]]]
        if include_own and len(values):
            values = torch.cat([values, own[i : i + 1].double()])
        ordered = values.sort(dim=0).values
        rows.append(
            ordered[int(trim[i]) : len(ordered) - int(trim[i])].mean(0)
            if len(values)
            else own[i].double()
        )
    return torch.stack(rows)


@pytest.mark.parametrize("path", ["as it comes", "narrow", "sorted"])
@pytest.mark.parametrize("include_own", [False, True])
@pytest.mark.parametrize("own_is_bank", [True, False])
@pytest.mark.parametrize("d", [1, 40, 600])
def test_trimmed_mean(
    graph: Topology,
    path: str,
    include_own: bool,
    own_is_bank: bool,
    d: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_order_statistics, "LARGEST_NETWORK", 0 if path == "sorted" else 512)
    monkeypatch.setattr(_order_statistics, "EXCHANGED", 90 if path == "narrow" else 24576)
    generator = torch.Generator().manual_seed(d)
    models = torch.randn(graph.n, d, generator=generator)
    models[1] *= 3e38
    models[::3] = models[::3].round()
    models[2] = torch.nan
    inbox = graph.deliver(models)
    own = models if own_is_bank else models.clone()
    counts = (inbox.counts + include_own).clamp_min(1)
    trim = torch.randint(0, 100, (graph.n,), generator=generator) % ((counts + 1) // 2)
    found = kernels.trimmed_mean(own, inbox, trim, include_own=include_own)
    truth = reference_trimmed_mean(own, inbox, trim, include_own).float()
    defined = own.isfinite().all(1) | (not include_own)
    torch.testing.assert_close(found[defined], truth[defined], rtol=2e-6, atol=2e-6, equal_nan=True)


@settings(deadline=None)
@given(st.data())
def test_shared_sorting(data: st.DataObject) -> None:
    n = data.draw(st.integers(3, 9))
    numbers = st.sampled_from([-3e38, -1e30, -2.0, 0.0, 0.0, 1.0, 1.0, 5.0, 1e30, 3e38])
    models = torch.tensor(
        data.draw(st.lists(st.lists(numbers, min_size=2, max_size=2), min_size=n, max_size=n))
    )
    inbox = Topology.complete(n).deliver(models)
    trim = torch.tensor(data.draw(st.lists(st.integers(0, (n - 2) // 2), min_size=n, max_size=n)))
    truth = reference_trimmed_mean(models, inbox, trim, False)
    found = kernels.trimmed_mean(models, inbox, trim).double()
    window = torch.stack([_largest_kept(inbox, i, int(trim[i])) for i in range(n)])
    assert ((found - truth).abs() <= 1e-6 * window).all()


def _largest_kept(inbox: Inbox, i: int, trim: int) -> Tensor:
    ordered = inbox.bank.double()[inbox.slots[i]].sort(dim=0).values
    return ordered[trim : len(ordered) - trim].abs().amax(0)


def test_ascending_nan_last() -> None:
    values = torch.tensor(
        [[3.0, torch.nan, -torch.inf], [0.0, -1.0, torch.inf]], dtype=torch.float64
    )
    torch.testing.assert_close(_blocks.ascending(values), values.sort(dim=1).values, equal_nan=True)
