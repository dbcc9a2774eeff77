"""The digits of scikit-learn, and the seeds of both offline data sets."""

from __future__ import annotations

import sys

import pytest
import torch

from equipoise.data import Dataset, digits, synthetic_regression


def same(one: Dataset, other: Dataset) -> bool:
    pairs = (
        (one.x, other.x),
        (one.y, other.y),
        (one.test_x, other.test_x),
        (one.test_y, other.test_y),
    )
    return all(torch.equal(a, b) for a, b in pairs)


def test_are_complete():
    from sklearn.datasets import load_digits

    data, (images, labels) = digits(), load_digits(return_X_y=True)
    rows = sorted(
        [*row.flatten().mul(16).tolist(), y] for row, y in zip(data.x, data.y.tolist(), strict=True)
    )
    rows += [
        [*row.flatten().mul(16).tolist(), y]
        for row, y in zip(data.test_x, data.test_y.tolist(), strict=True)
    ]
    assert sorted(rows) == sorted(
        [*image, label] for image, label in zip(images.tolist(), labels.tolist(), strict=True)
    )
    assert data.x.shape[1:] == (1, 8, 8)
    assert (data.x.min(), data.x.max(), data.classes) == (0, 1, 10)


@pytest.mark.parametrize("share", [0.1, 0.2, 0.5])
def test_test_share(share: float):
    data = digits(test_share=share)
    tested, trained = data.test_y.bincount(minlength=10), data.y.bincount(minlength=10)
    assert tested.tolist() == [
        int(share * 1000) * size // 1000 for size in (tested + trained).tolist()
    ]


def test_can_be_learned():
    data = digits()
    x, targets = data.x.flatten(1), torch.nn.functional.one_hot(data.y).float() - 0.1
    weights = torch.linalg.solve(x.T @ x + torch.eye(64), x.T @ targets)
    assert ((data.test_x.flatten(1) @ weights).argmax(1) == data.test_y).float().mean() > 0.88


@pytest.mark.parametrize("share", [0, 1, 2.0])
def test_extreme_shares(share: float):
    with pytest.raises(
        ValueError, match=f"test_share must be a number between 0 and 1, found {share}"
    ):
        digits(test_share=share)
    with pytest.raises(ValueError, match="test_share must be larger, found no test example"):
        digits(test_share=0.001)


def test_need_sklearn(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(
        ImportError, match=r'sklearn is not installed: pip install "equipoise\[data\]"'
    ):
        digits()


def test_seed_and_global_state():
    before = torch.random.get_rng_state()
    small = {"n_train": 5, "n_test": 3, "features": 2}
    assert same(synthetic_regression(**small, seed=7), synthetic_regression(**small, seed=7))
    assert not same(synthetic_regression(**small, seed=7), synthetic_regression(**small, seed=8))
    assert same(digits(seed=3), digits(seed=3))
    assert not same(digits(seed=3), digits(seed=4))
    assert torch.equal(before, torch.random.get_rng_state())
