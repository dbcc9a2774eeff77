"""Vectors and groups of the adapters that peft makes."""

from __future__ import annotations

import peft
import pytest
import torch
from torch import nn

import equipoise as eq

ADAPTER = ["*.lora_A.*", "*.lora_B.*"]


@pytest.fixture
def model() -> nn.Module:
    base = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4))
    return peft.get_peft_model(base, peft.LoraConfig(r=2, target_modules=["0", "2"]))


def test_only_adapters_are_trainable(model: nn.Module) -> None:
    own = eq.flatten(model, only=eq.trainable)
    assert len(own) == 2 * (6 + 5) + 2 * (5 + 4)
    assert torch.equal(own, eq.flatten(model, only=ADAPTER))


def test_an_aggregate_changes_the_adapter_only(model: nn.Module) -> None:
    names = {name: x.clone() for name, x in model.named_parameters()}
    own = eq.flatten(model, only=eq.trainable)
    received = own + 0.01 * torch.randn(5, len(own))
    out = eq.Median()(own, received)
    eq.unflatten(out.model, model, only=eq.trainable)
    changed = {name for name, x in model.named_parameters() if not torch.equal(x, names[name])}
    assert changed == {name for name in names if "lora_" in name}


def test_halves_share_a_radius(model: nn.Module) -> None:
    own = eq.flatten(model, only=eq.trainable)
    received = own + 0.01
    apart = eq.groups(model, {"A": ADAPTER[0], "B": ADAPTER[1]}, only=eq.trainable)
    joint = eq.groups(model, {"adapter": ADAPTER}, only=eq.trainable)
    assert not own[apart["B"]].any()
    rule = eq.PerGroup(apart, eq.Balance())
    weights = rule.of_groups(own, received[None], t=0, total=10)["B"].weights
    assert weights is not None
    assert weights.tolist() == [0.0]
    rule = eq.PerGroup(joint, eq.Balance())
    assert torch.equal(rule(own, received[None], t=0, total=10).model, received)
