"""Small arguments, and a check of the error that a wrong one raises."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

import equipoise as eq

OWN = torch.ones(3)
RECEIVED = torch.ones(2, 3)
MODELS = torch.ones(4, 3)
RING = eq.Topology.ring(4)
LAYER = torch.nn.Linear(2, 1)
MEDIAN = eq.Median()
BALANCE = eq.Balance()
PAIR = (torch.ones(5, 2), torch.ones(5, 1))

Mistake = tuple[Callable[[], Any], str]


def construct(**changes: Any) -> eq.Simulator:
    options = {
        "trainer": lambda models, t: models,
        "topology": RING,
        "rule": MEDIAN,
        "models": MODELS,
    }
    return eq.Simulator(**options | changes)


def simulate(**changes: Any) -> Any:
    return construct(**changes).step()


def train(clients: Any, **changes: Any) -> Any:
    return eq.LocalSGD(LAYER, torch.nn.functional.mse_loss, clients, lr=0.1, **changes)(MODELS, 0)


def check_error(make: Callable[[], Any], message: str) -> None:
    kind = TypeError if re.match(r"\w+ (needs|got an unknown input) ", message) else ValueError
    with pytest.raises(kind) as caught:
        make()
    assert str(caught.value) == message
