"""Torch's default dtype and device are for who makes tensors, and change nothing for models that are there already."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tests.cases import RULES
from tests.graphs import deliver, models_of, regular, round_inputs

GRAPHS = {"sparse": regular(10, 4), "complete": regular(8, 7)}


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    dtype = torch.get_default_dtype()
    yield
    torch.set_default_dtype(dtype)
    torch.set_default_device("cpu")


def arguments(name: str, dtype: torch.dtype) -> tuple[Any, ...]:
    """Models, inbox and round inputs of a graph, made while the defaults are what they were."""
    graph = GRAPHS[name]
    models = models_of(graph, 300, dtype, 0)
    return models, deliver(graph, models), round_inputs(graph, models)


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_the_default_device(rule: Any, graph: str) -> None:
    """The device meta stands for any other than the one that models are on."""
    models, inbox, inputs = arguments(graph, torch.float32)
    expected = rule(models, inbox, **inputs).model
    torch.set_default_device("meta")
    assert torch.equal(rule(models, inbox, **inputs).model, expected)


@pytest.mark.parametrize("default", [torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_the_default_dtype(rule: Any, dtype: torch.dtype, default: torch.dtype) -> None:
    models, inbox, inputs = arguments("sparse", dtype)
    expected = rule(models, inbox, **inputs).model
    torch.set_default_dtype(default)
    assert torch.equal(rule(models, inbox, **inputs).model, expected)
