"""Hostile messages, and rules to try them on."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import equipoise as eq
from tests.all_references import REFERENCES
from tests.cases import RULES
from tests.references import Answer, array, reference_one

D = 6


OWN = torch.tensor([1.0, -2.0, 0.5, 3.0, -1.0, 0.25])


HONEST = OWN + 0.1 * torch.tensor(
    [
        [1.0, 2.0, -1.0, 0.0, 1.0, 3.0],
        [-2.0, 1.0, 1.0, 1.0, -1.0, 0.0],
        [0.0, -1.0, 2.0, -3.0, 1.0, 1.0],
        [1.0, 1.0, 1.0, 2.0, 2.0, -2.0],
    ]
)


every_rule = pytest.mark.parametrize("rule", RULES.values(), ids=RULES)


FINITE = {
    "3e38": torch.full((D,), 3e38),
    "-3e38": torch.full((D,), -3e38),
    "one 3e38": torch.tensor([0.0, 0.0, 3e38, 0.0, 0.0, 0.0]),
    "1e30": torch.full((D,), 1e30),
    "aligned 1e30": OWN * 1e30,
    "subnormal": torch.full((D,), 1e-40),
    "aligned subnormal": OWN * 1e-40,
    "zeros": torch.zeros(D),
    "negative zeros": -torch.zeros(D),
    "copy": OWN.clone(),
    "negated": -OWN,
}


ABSENT = {
    "nan": torch.full((D,), torch.nan),
    "one nan": torch.tensor([1.0, -2.0, torch.nan, 3.0, -1.0, 0.25]),
    "inf": torch.full((D,), torch.inf),
    "-inf": torch.full((D,), -torch.inf),
    "inf and nan": torch.tensor([torch.inf, torch.nan, -torch.inf, 0.0, 0.0, 0.0]),
}


def loss_of(models: Tensor, clients: Tensor | None = None) -> Tensor:
    """Prefers models a little beyond own."""
    return (models.double() - 1.05 * OWN.double()).square().sum(-1)


INPUTS: dict[str, Any] = {
    "t": 2,
    "total": 8,
    "tolerated": 1,
    "samples": torch.tensor([3, 1, 4, 1, 5, 9]),
    "loss_of": loss_of,
}


def reference(rule: Any, own: Tensor, received: Tensor, **inputs: Any) -> Answer:
    options = {field.name: getattr(rule, field.name) for field in dataclasses.fields(rule)}
    inputs = (
        options
        | INPUTS
        | {"loss_of": lambda models: array(loss_of(torch.from_numpy(models)))}
        | inputs
    )
    one = eq.Inbox(received.detach(), torch.arange(len(received))[None])
    return reference_one(REFERENCES[type(rule).__name__], own, one, 0, **inputs)


def assert_agrees(out: eq.Aggregated, answer: Answer) -> None:
    assert out.model.isfinite().all()
    allowed = 1e-5 * np.maximum(np.abs(answer.model), answer.magnitude) + 1e-44
    assert (np.abs(array(out.model) - answer.model) <= allowed).all(), (
        f"{out.model}, expected {answer.model}"
    )
    if answer.weights is None:
        assert out.weights is None
    else:
        np.testing.assert_array_equal(array(out.weights) != 0, answer.weights != 0)
        np.testing.assert_allclose(array(out.weights), answer.weights, rtol=1e-5, atol=1e-42)
