"""Handwritten digits from scikit-learn: real data without a download."""

from __future__ import annotations

import torch

from equipoise._utils.rng import stream
from equipoise.data._download import need
from equipoise.data.dataset import Dataset, as_share, hold_out


def digits(*, test_share: float = 0.2, seed: int = 0) -> Dataset:
    """1,797 handwritten digits of 8 x 8 pixels, real and offline.

    The test set of "Optical Recognition of Handwritten Digits" (Alpaydin and Kaynak, UCI, 1998), as
    distributed with scikit-learn; values from 0 to 16 are scaled to [0, 1].

    Args:
        test_share: share of each class that is for testing, rounded down.
        seed: determines the test images.

    >>> data = eq.data.digits()
    >>> data.x.shape, data.test_x.shape
    (torch.Size([1442, 1, 8, 8]), torch.Size([355, 1, 8, 8]))
    >>> data.test_y.bincount()
    tensor([35, 36, 35, 36, 36, 36, 36, 35, 34, 36])
    """
    share = as_share("test_share", test_share)
    images, labels = need("sklearn.datasets").load_digits(return_X_y=True)
    # float64 (1797, 64) with integers 0 to 16; dividing by a power of two is exact.
    x = torch.tensor(images, dtype=torch.float32, device="cpu").div_(16).view(-1, 1, 8, 8)
    y = torch.tensor(labels, dtype=torch.int64, device="cpu")
    # Grouped by class: both parts have nearly the same proportions of classes.
    train, test = hold_out(y, lambda size: int(share * size), stream(seed, "digits"))
    return Dataset(x[train], y[train], x[test], y[test], classes=10, name="digits")
