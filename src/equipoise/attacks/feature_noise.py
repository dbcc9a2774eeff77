"""Noise instead of features."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from equipoise._utils.validation import describe, is_finite


@dataclass(frozen=True)
class FeatureNoise:
    r"""Train on noise: replace every feature of every example, keep the labels.

    .. math:: x \sim \mathcal{N}(0, \mathrm{std}^2)

    The Feature attack of BALANCE (Fang et al., CCS 2024, appendix D), "a variance of 1,000". The
    noise is drawn once: poison a client's examples once, before training.

    The default takes the paper literally, a standard deviation of 31.6. ``std=1000``, which
    ``numpy.random.normal(0, 1000)`` would draw, is a different attack. On MNIST at the paper's
    learning rate, a model that trains on the former stays finite and within about 10 % of where it
    started, so BALANCE accepts it; with the latter it overflows within about ten steps. The paper's
    results, errors of 0.90 for Krum and UBAR but not for BALANCE, look like the overflow.

    Args:
        std: the standard deviation.

    >>> attack = eq.attacks.FeatureNoise()
    >>> generator = torch.Generator().manual_seed(0)
    >>> x, y = attack.poison(torch.zeros(2, 3), torch.tensor([0, 1]), generator=generator)
    >>> x.shape, y
    (torch.Size([2, 3]), tensor([0, 1]))
    """

    std: float = math.sqrt(1000)  # the paper's variance of 1,000

    def __post_init__(self) -> None:
        if not is_finite(self.std) or self.std < 0:
            raise ValueError(f"std must be a finite number >= 0, found {self.std!r}")

    def poison(
        self, x: Tensor, y: Tensor, *, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return noise in the shape of the examples, with unchanged labels.

        The default is torch's global generator. A generator on another device draws there.
        """
        # Integers, such as the bytes of images, cannot hold this noise.
        if not isinstance(x, Tensor) or not x.is_floating_point():
            raise ValueError(f"x must be a tensor of floating-point features, found {describe(x)}")
        # torch draws on the device of the generator only; the noise then moves to the examples.
        device = x.device if generator is None else generator.device
        noise = torch.randn(x.shape, generator=generator, dtype=x.dtype, device=device)
        return noise.mul_(self.std).to(x.device), y
