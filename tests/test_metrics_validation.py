"""Invalid arguments of metrics are errors that name them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import equipoise as eq
from equipoise import Inbox, Topology
from equipoise.attacks import EveryNth
from equipoise.metrics import (
    AttackSuccess,
    ErrorRate,
    MeanSquaredError,
    acceptance,
    consensus_error,
)

MODEL = nn.Linear(2, 3)
X, Y = torch.randn(4, 2), torch.tensor([0, 1, 2, 0])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: ErrorRate(MODEL, X, Y[:3]),
            "x and y must be equally many examples, at least one, found",
        ),
        (
            lambda: ErrorRate(MODEL, X[:0], Y[:0]),
            "x and y must be equally many examples, at least one, found",
        ),
        (
            lambda: ErrorRate(MODEL, X, [0, 1, 2, 0]),
            "x and y must be equally many examples, at least one, found",
        ),
        (
            lambda: ErrorRate(MODEL, X[0, 0], Y[0]),
            "x and y must be equally many examples, at least one, found",
        ),
        (
            lambda: ErrorRate(MODEL, X, Y.float()),
            "y must be a tensor of integer labels, found float32 (4,)",
        ),
        (
            lambda: ErrorRate(MODEL, X, Y + 1),
            "y must hold one class for every example, 0 to 2, found int64 (4,) from 1 to 3",
        ),
        (
            lambda: ErrorRate(MODEL, X, Y - 1),
            "y must hold one class for every example, 0 to 2, found int64 (4,) from -1",
        ),
        (
            lambda: ErrorRate(MODEL, X, Y[:, None]),
            "y must hold one class for every example, 0 to 2, found int64 (4, 1)",
        ),
        (
            lambda: ErrorRate(MODEL, X[:, :1], Y),
            "model must take inputs like x, float32 (2, 1), found RuntimeError",
        ),
        (
            lambda: ErrorRate(eq.models.linear_regression(2), X, Y),
            "model must return one number per class, (N, classes)",
        ),
        (
            lambda: ErrorRate(MODEL, X, Y)(torch.zeros(2, 8)),
            "models must be float32 (n, 9) like flatten(model), found",
        ),
        (
            lambda: ErrorRate(MODEL, X, Y)(torch.zeros(9)),
            "models must be float32 (n, 9) like flatten(model), found",
        ),
        (
            lambda: ErrorRate(MODEL, X, Y, sample=0),
            "sample must be an integer from 1 to 4, found 0",
        ),
        (
            lambda: MeanSquaredError(MODEL, X, X, sample=5),
            "sample must be an integer from 1 to 4, found 5",
        ),
        (
            lambda: ErrorRate(MODEL, X, Y, sample=0.5),
            "sample must be an integer from 1 to 4, found 0.5",
        ),
        (
            lambda: ErrorRate(MODEL, X, Y, sample=2, seed=-1),
            "seed must be an integer >= 0, found -1",
        ),
        (lambda: ErrorRate(lambda x: x, X, Y), "module must be a torch.nn.Module, found function"),
        (
            lambda: MeanSquaredError(MODEL, X, torch.ones(4, 3) > 0),
            "y must hold numbers, found bool (4, 3)",
        ),
        (
            lambda: MeanSquaredError(MODEL, X, Y),
            "y must be shaped like outputs, float32 (2, 3) for two of them, found int64 (4,)",
        ),
        (
            lambda: AttackSuccess(MODEL, X, Y, EveryNth(2), 3),
            "target must be a class, 0 to 2, found 3",
        ),
        (
            lambda: AttackSuccess(MODEL, X, Y * 0, EveryNth(2), 0),
            "y must have labels other than the target 0",
        ),
        (
            lambda: AttackSuccess(MODEL, X, Y[:2], EveryNth(2), 0),
            "x and y must be equally many examples",
        ),
        (lambda: AttackSuccess(MODEL, X, Y, None, 0), "trigger must be a Trigger, found NoneType"),
        (
            lambda: AttackSuccess(MODEL, X, Y, EveryNth, 0),
            "trigger must be a Trigger, found ABCMeta",
        ),
        (
            lambda: acceptance([1], Topology.ring(3).deliver(torch.ones(3, 1)), []),
            "weights must be of shape (3, 2) like the inbox, found list",
        ),
        (
            lambda: acceptance(torch.ones(3), Inbox.of_one(torch.ones(2, 1)), []),
            "weights must be of shape (1, 2) like the inbox, found float32 (3,)",
        ),
        (
            lambda: acceptance(torch.ones(2), Topology.ring(3).deliver(torch.ones(3, 1)), []),
            "weights must be of shape (3, 2) like the inbox, found float32 (2,)",
        ),
        (
            lambda: acceptance(torch.ones(2), Inbox.of_one(torch.ones(2, 1)), [-1]),
            "malicious must be at least 0, found -1",
        ),
        (
            lambda: acceptance(
                torch.ones(2), Inbox.of_one(torch.ones(2, 1)), torch.tensor([True, False])
            ),
            "malicious must be ids of clients for the weights of one, found bool (2,)",
        ),
        (
            lambda: acceptance(torch.ones(3, 2), torch.ones(3, 2), []),
            "inbox must be an Inbox, found float32 (3, 2)",
        ),
        (
            lambda: consensus_error(torch.zeros(3)),
            "models must be a floating-point tensor of shape (n, d), n >= 1, found",
        ),
        (
            lambda: consensus_error(torch.zeros(0, 3)),
            "models must be a floating-point tensor of shape (n, d), n >= 1",
        ),
        (
            lambda: consensus_error(torch.zeros(2, 3).long()),
            "models must be a floating-point tensor of shape (n, d)",
        ),
        (
            lambda: acceptance(torch.ones(3, 3), Topology.ring(3).deliver(torch.ones(3, 1)), []),
            "weights must be of shape (3, 2) like the inbox, found float32 (3, 3)",
        ),
        (
            lambda: acceptance(torch.ones(3, 2), Topology.ring(3).deliver(torch.ones(3, 1)), [3]),
            "malicious must be from 0 to 2",
        ),
    ],
)
def test_bad_arguments(call: Callable[[], Any], message: str):
    with pytest.raises(ValueError, match=re.escape(message)):
        call()
