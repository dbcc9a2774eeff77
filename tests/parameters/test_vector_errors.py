"""Modules and vectors that do not match are errors that say where."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import equipoise as eq
from tests.modules import same, values


def with_integer_parameter() -> nn.Module:
    return nn.ParameterDict(
        {"a": torch.ones(1), "b": nn.Parameter(torch.ones(2).int(), requires_grad=False)}
    )


def with_complex_buffer() -> nn.Module:
    module = nn.Linear(1, 1)
    module.register_buffer("phase", torch.ones(1, dtype=torch.complex64))
    return module


BAD_MODULES = [
    (nn.ReLU, False, "module must have parameters, found none in ReLU"),
    (
        lambda: nn.BatchNorm1d(2, affine=False),
        True,
        "module must have parameters, found none in BatchNorm1d",
    ),
    (lambda: torch.zeros(3), False, r"module must be a torch.nn.Module, found float32 \(3,\)"),
    (
        lambda: nn.Sequential(nn.Linear(1, 1), nn.LazyLinear(2)),
        False,
        "module must be initialized, found parameter '1.weight' without values",
    ),
    (
        lambda: nn.Sequential(nn.Linear(1, 1), nn.LazyBatchNorm1d(affine=False)),
        True,
        "module must be initialized, found buffer '1.running_mean' without values",
    ),
    (
        lambda: nn.Linear(1, 1, device="meta"),
        False,
        "module must be initialized, found parameter 'weight' without values",
    ),
    (
        with_integer_parameter,
        False,
        r"module must have floating-point parameters, found parameter 'b', int32 \(2,\) on cpu",
    ),
    (
        lambda: nn.Linear(2, 1, dtype=torch.complex64),
        False,
        r"module must have floating-point parameters, found parameter 'weight', "
        r"complex64 \(1, 2\) on cpu",
    ),
    (
        with_complex_buffer,
        True,
        r"module must have floating-point buffers, found buffer 'phase', complex64 \(1,\) on cpu",
    ),
]


@pytest.mark.parametrize(("make", "buffers", "text"), BAD_MODULES)
def test_bad_modules(make: Any, buffers: bool, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        eq.flatten(make(), buffers=buffers)
    with pytest.raises(ValueError, match=text):
        eq.unflatten(torch.zeros(1), make(), buffers=buffers)


def test_complex_buffer_ignored() -> None:
    assert eq.flatten(with_complex_buffer()).shape == (2,)


def test_several_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    module = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1, device="meta"))
    monkeypatch.setattr(
        Tensor, "is_meta", False
    )  # a device that every machine has, taken for one with memory
    text = (
        r"module must be on one device, expected cpu, found parameter '1.weight', "
        r"float32 \(1, 1\) on meta"
    )
    with pytest.raises(ValueError, match=text):
        eq.flatten(module)


@pytest.mark.parametrize(
    ("length", "place"),
    [
        (0, "ends at parameter '0.weight', which takes elements 0 to 5"),
        (5, "ends at parameter '0.weight', which takes elements 0 to 5"),
        (6, "ends at parameter '0.bias', which takes elements 6 to 7"),
        (9, "ends at parameter '1.weight', which takes elements 8 to 9"),
        (12, "ends at buffer '1.running_mean', which takes elements 12 to 13"),
        (13, "ends at buffer '1.running_mean', which takes elements 12 to 13"),
        (17, "continues after the last buffer, '1.running_var'"),
    ],
)
def test_vector_of_wrong_length(length: int, place: str) -> None:
    module = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    before = values(module)
    text = f"vector must have 16 elements, one per parameter of module, found {length}: it {place}"
    with pytest.raises(ValueError, match=text):
        eq.unflatten(torch.full((length,), 9.0), module, buffers=True)
    assert same(values(module), before), "nothing may be written before everything is checked"


@pytest.mark.parametrize(
    ("vector", "found"),
    [
        (torch.zeros(8, dtype=torch.int64), r"int64 \(8,\)"),
        (torch.zeros(8, dtype=torch.complex64), r"complex64 \(8,\)"),
        (torch.zeros(1, 8), r"float32 \(1, 8\)"),
        ([0.0] * 8, "list"),
    ],
)
def test_bad_vectors(vector: Any, found: str) -> None:
    text = rf"vector must be a floating-point tensor of shape \(d,\), found {found}"
    with pytest.raises(ValueError, match=text):
        eq.unflatten(vector, nn.Linear(3, 2))
