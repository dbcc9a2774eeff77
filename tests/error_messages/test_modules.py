"""Mistakes with modules and data: the error names argument, expected and found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import equipoise as eq
from tests.error_messages.mistakes import (
    LAYER,
    MEDIAN,
    MODELS,
    OWN,
    PAIR,
    RECEIVED,
    Mistake,
    check_error,
    train,
)

MISTAKES: dict[str, Mistake] = {
    "another architecture": (
        lambda: eq.stack_models([LAYER, torch.nn.Linear(3, 1)]),
        "modules[1] must have the parameters of modules[0], expected parameter 'weight', float32 "
        "(1, 2) on cpu, "
        "found parameter 'weight', float32 (1, 3) on cpu",
    ),
    "a class for a loss": (
        lambda: eq.LocalSGD(LAYER, torch.nn.MSELoss, [PAIR], lr=0.1),
        "loss must be a function, found the class MSELoss; pass an instance, with reduction=None "
        "if it does not take that argument",
    ),
    "a single module": (
        lambda: eq.stack_models(LAYER),  # type: ignore[arg-type]
        "modules must be several modules, found Linear; flatten takes one",
    ),
    "a state_dict": (
        lambda: eq.flatten(LAYER.state_dict()),  # type: ignore[arg-type]
        "module must be a torch.nn.Module, found OrderedDict",
    ),
    "swapped arguments": (
        lambda: eq.unflatten(LAYER, OWN),  # type: ignore[type-var]
        "module must be a torch.nn.Module, found float32 (3,)",
    ),
    "all models into one module": (
        lambda: eq.unflatten(MODELS, LAYER),
        "vector must be a floating-point tensor of shape (d,), found float32 (4, 3); "
        "unstack_models takes several",
    ),
    "another model's vector": (
        lambda: eq.unflatten(torch.ones(4), LAYER),
        "vector must have 3 elements, one per parameter of module, found 4: "
        "it continues after the last parameter, 'bias'",
    ),
    "modules for some of the models": (
        lambda: eq.unstack_models(MODELS, [LAYER]),
        "modules must be one per row of models, expected 4, found 1",
    ),
    "one module for all models": (
        lambda: eq.unstack_models(MODELS, [LAYER] * 4),
        "modules must not share parameters, found parameter 'weight' of modules[1] in modules[0]; "
        "copy.deepcopy makes another",
    ),
    "the whole answer of a rule": (
        lambda: eq.mix(OWN, MEDIAN(OWN, RECEIVED)),  # type: ignore[arg-type]
        "model must be a floating-point tensor of shape (d,) or (n, d), found Aggregated; take "
        "its .model",
    ),
    "loaders": (
        lambda: train([DataLoader(TensorDataset(*PAIR))] * 4),
        "clients[0] must be a pair of tensors (x, y), found DataLoader",
    ),
    "arrays": (
        lambda: train([(np.ones((5, 2)), np.ones((5, 1)))] * 4),
        "clients[0] must be a pair of tensors (x, y), found (ndarray, ndarray)",
    ),
    "a data set that was not divided": (
        lambda: train(eq.data.synthetic_regression()),
        "clients must be a pair of tensors (x, y) for every client, found Dataset; Dataset.split "
        "makes such pairs",
    ),
}


@pytest.mark.parametrize(("make", "message"), MISTAKES.values(), ids=MISTAKES)
def test_error_message(make: Callable[[], Any], message: str) -> None:
    check_error(make, message)
