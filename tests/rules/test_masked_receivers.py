"""What one receiver aggregates does not depend on the other receivers, bit by bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

import equipoise as eq
from equipoise.testing._rounds import Distance
from tests.cases import RULES

pytestmark = [
    pytest.mark.filterwarnings("ignore::equipoise.GuaranteeWarning"),
    # torch chooses the order of its sums by the shape of the whole problem.
    pytest.mark.skipif(not eq.native_available, reason="holds for the C kernels"),
]


@st.composite
def inboxes(draw: st.DrawFn) -> tuple[Tensor, eq.Inbox]:
    """Own models and an inbox of 3 to 40 clients, with or without lies."""
    n = draw(st.integers(3, 40))
    d = draw(st.sampled_from([1, 7, 64, 130, 700, 5000]))
    seed = draw(st.integers(0, 2**20))
    kind = draw(st.sampled_from(["complete", "regular", "random"]))
    if kind == "complete":
        topology = eq.Topology.complete(n)
    elif kind == "regular":
        degree = draw(st.integers(2, n - 1).filter(lambda degree: degree * n % 2 == 0))
        topology = eq.Topology.regular(n, degree, seed=seed)
    else:
        topology = eq.Topology.erdos_renyi(n, draw(st.sampled_from([0.2, 0.6, 0.95])), seed=seed)
    generator = torch.Generator().manual_seed(seed)
    spread = draw(st.sampled_from([1e-4, 0.05, 0.3, 2.0]))
    models = torch.randn(1, d, generator=generator)
    models = models + spread * torch.randn(n, d, generator=generator)
    lie = draw(st.sampled_from(["none", "noise", "one for all", "huge", "nan"]))
    if lie == "none":
        return models, topology.deliver(models)
    rows = models + torch.randn(n, d, generator=generator)
    if lie == "huge":
        rows = 1e30 * rows
    if lie == "nan":
        rows[n // 3, 0] = torch.nan
    lies = eq.Lies.to_all(rows[0]) if lie == "one for all" else eq.Lies.per_sender(rows)
    malicious = torch.randperm(n, generator=generator)[: max(1, n // 4)]
    return models, topology.deliver(models, lies, malicious)


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(case=inboxes(), data=st.data())
def test_masked_receivers(rule: Any, case: tuple[Tensor, eq.Inbox], data: st.DataObject) -> None:
    own, inbox = case
    n = len(own)
    kept = data.draw(st.lists(st.integers(0, n - 1), min_size=3, unique=True), "kept")
    tolerated = data.draw(st.integers(0, 3), "tolerated")
    inputs = {
        "t": 1,
        "total": 10,
        "tolerated": tolerated,
        "samples": torch.arange(1, n + 1),
        "loss_of": Distance(own),
    }
    mask = torch.zeros_like(inbox.mask)
    mask[kept] = inbox.mask[kept]
    some = eq.Inbox(inbox.bank, inbox.slots, mask, inbox.senders)
    everything = rule(own, inbox, **inputs)
    found = rule(own, some, **inputs)
    assert torch.equal(found.model[kept], everything.model[kept])
    if everything.weights is not None:
        assert torch.equal(found.weights[kept], everything.weights[kept])
