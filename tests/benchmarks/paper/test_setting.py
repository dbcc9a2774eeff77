"""Settings: defaults, names and validation."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

import equipoise as eq
from benchmarks.paper.setting import Setting
from benchmarks.paper.tasks import TASKS


def test_defaults_of_section_6() -> None:
    setting = Setting()
    assert setting.graph == "regular(20,10)"
    assert setting.partition == "by_group(0.8)"
    assert (setting.rounds, setting.n, setting.malicious) == (2000, 20, 0.2)
    assert (setting.alpha, setting.gamma, setting.kappa) == ("0.5", 0.3, 1.0)
    rates = {"synthetic": 6e-4, "mnist": 3e-4, "fashion-mnist": 6e-3, "har": 3e-3, "celeba": 5e-5}
    assert {name: task.lr for name, task in TASKS.items()} == rates
    assert {name: task.rounds for name, task in TASKS.items()} == {
        "synthetic": 300,
        "mnist": 2000,
        "fashion-mnist": 2000,
        "har": 1000,
        "celeba": 1500,
    }
    assert Setting(data="har").n == 30


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        (
            "data",
            "cifar",
            "data must be one of synthetic, mnist, fashion-mnist, har, celeba, found 'cifar'",
        ),
        ("rule", "krum", "SCClip(tau=10), found 'krum': did you mean Krum?"),
        ("attack", "LF", "SignFlip, found 'LF': did you mean LabelFlip?"),
        ("attack", "x", "attack must be one of none, LabelFlip"),
        ("graph", "star", "graph must be one of regular(10,5), regular(20,10)"),
        (
            "partition",
            "even",
            "partition must be one of iid, by_client, by_classes(3), by_group(P), found 'even'",
        ),
        ("partition", "byclasses(3)", "found 'byclasses(3)': did you mean by_classes(3)?"),
        ("partition", "by_group(P)", "by_classes(3), by_group(P), found 'by_group(P)'"),
        ("partition", "by_group(2)", "p must be"),
        (
            "alpha",
            "random",
            "alpha must be a number in [0, 1], per-client or each-round, found 'random'",
        ),
        ("alpha", "1.5", "alpha must be"),
        ("gamma", -1.0, "gamma must be a finite number >= 0, found -1.0"),
        ("step", -1.0, "step must be a finite number > 0, found -1.0"),
        ("window", "last", "window must be one of all, first-half, second-half, found 'last'"),
        ("malicious", 1.2, "malicious must be"),
        ("batch", 0, "batch must be"),
    ],
)
def test_bad_settings(field: str, value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        Setting(**{field: value})


def test_no_backdoor_in_regression() -> None:
    with pytest.raises(
        ValueError, match="attack must be another one for synthetic regression, found 'Backdoor'"
    ):
        Setting(data="synthetic", attack="Backdoor")


def test_visible_trigger_pixels() -> None:
    images = torch.rand(
        200, 1, 28, 28, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    )
    outputs = eq.models.cnn().double()(images.requires_grad_())
    (gradient,) = torch.autograd.grad(outputs.square().sum(), images)
    seen = (gradient != 0).any(0)[0]
    for attack, expected in (("Backdoor", 1), ("Backdoor(trigger=inner)", 4)):
        backdoor = Setting(data="mnist", attack=attack).backdoor
        assert backdoor is not None
        marked = backdoor.trigger.stamp(torch.zeros(1, 28, 28))[0] == 1
        assert (marked & seen).sum() == expected


@pytest.mark.parametrize("data", ["synthetic", "har", "celeba"])
def test_inner_trigger_is_for_mnist(data: str) -> None:
    with pytest.raises(
        ValueError, match=r"attack must be another one for .*, found 'Backdoor\(trigger=inner\)'"
    ):
        Setting(data=data, attack="Backdoor(trigger=inner)")


def test_equal_settings() -> None:
    assert Setting(partition="by_group(0.80)", alpha=".50") == Setting()
