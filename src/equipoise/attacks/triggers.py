"""Triggers: marks on examples that open a backdoor."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from operator import index

import torch
from torch import Tensor

from equipoise._utils.validation import check_count, check_integers, describe, is_finite
from equipoise.attacks.label_flip import check_fits

BADNETS = ((26, 26), (26, 24), (25, 25), (24, 26))
"""(row, column) of four pixels in the lower right corner of a 28 x 28 image."""


class Trigger(ABC):
    """A mark on examples. Triggers are hashable; ``first | second`` applies both."""

    @abstractmethod
    def stamp(self, x: Tensor) -> Tensor:
        """Return a marked copy of a batch of examples; ``x``, also if a view, is unchanged."""

    def __or__(self, other: Trigger) -> Chain:
        # Returning NotImplemented makes Python raise its usual TypeError.
        return Chain((self, other)) if isinstance(other, Trigger) else NotImplemented


@dataclass(frozen=True)
class PixelPattern(Trigger):
    """Set some pixels of an image to ``value``, in every channel.

    The default is the pattern of BadNets (Gu et al., 2017) for MNIST and Fashion-MNIST, with the
    positions in the code of FLDetector (Zhang et al., KDD 2022). `ONE_PIXEL` is the pattern for
    CelebA. Scale images to [0, 1] before stamping them: 1 is white.

    `equipoise.models.cnn` sees only one of the four pixels, (25, 25): its second pooling drops rows
    and columns 26 and 27 of a 28 x 28 image. To train a backdoor there, choose other pixels.

    Args:
        pixels: (row, column) pairs, from the upper left corner.
        value: the new value of these pixels.

    >>> eq.attacks.PixelPattern().stamp(torch.zeros(1, 28, 28)).nonzero()[:, 1:].tolist()
    [[24, 26], [25, 25], [26, 24], [26, 26]]
    """

    pixels: tuple[tuple[int, int], ...] = BADNETS
    value: float = 1.0

    def __post_init__(self) -> None:
        _check_value(self.value)
        # Tuples of ints can be hashed; lists and tensors cannot.
        object.__setattr__(self, "pixels", _as_pixels(self.pixels))

    def stamp(self, x: Tensor) -> Tensor:
        """Mark images of shape (b, ..., H, W); one image alone is ``x[None]``."""
        # At least 3 dimensions: a batch of flat images (b, H * W) must not pass as one image.
        _check_features(x, "images of shape (b, ..., H, W)", minimum=3)
        rows, columns = zip(*self.pixels, strict=True)
        height, width = x.shape[-2:]
        if height <= max(rows) or width <= max(columns):
            raise ValueError(
                f"x must hold images of at least {max(rows) + 1} x {max(columns) + 1} pixels for "
                f"this pattern, found {height} x {width}"
            )
        # One mask for all images and channels; masked_fill copies x.
        mask = torch.zeros(height, width, dtype=torch.bool, device=x.device)
        mask[rows, columns] = True
        return x.masked_fill(mask, self.value)


@dataclass(frozen=True)
class EveryNth(Trigger):
    """Set every n-th feature to ``value``: the 0-based indices n - 1, 2 n - 1, ...

    The default is the trigger of FLTrust (Cao et al., NDSS 2021) for HAR, as in the code of SAFEFL:
    28 of the 561 features become 0.

    Args:
        n: distance between the features.
        value: the new value of these features.

    >>> eq.attacks.EveryNth(2).stamp(torch.ones(1, 5))
    tensor([[1., 0., 1., 0., 1.]])
    """

    n: int = 20
    value: float = 0.0

    def __post_init__(self) -> None:
        check_count("n", self.n, 1)
        _check_value(self.value)

    def stamp(self, x: Tensor) -> Tensor:
        """Mark feature vectors of shape (b, features)."""
        _check_features(x, "feature vectors of shape (b, features)", minimum=2, maximum=2)
        # Without a marked feature there would be no trigger.
        if x.shape[1] < self.n:
            raise ValueError(f"x must have at least n = {self.n} features, found {x.shape[1]}")
        marked = torch.arange(self.n - 1, x.shape[1], self.n, device=x.device)
        return x.index_fill(1, marked, self.value)


@dataclass(frozen=True)
class Chain(Trigger):
    """Several triggers; where they overlap, the later one wins. Written ``first | second``.

    >>> both = eq.attacks.EveryNth(2) | eq.attacks.EveryNth(4, value=9.0)
    >>> both.stamp(torch.ones(1, 4))
    tensor([[1., 0., 1., 9.]])
    """

    triggers: tuple[Trigger, ...]

    def __post_init__(self) -> None:
        triggers = tuple(self.triggers)
        if not triggers or not all(isinstance(trigger, Trigger) for trigger in triggers):
            raise ValueError(f"triggers must be one or more Trigger, found {self.triggers!r:.100}")
        # Flatten nested chains, so that | is associative.
        parts = (x.triggers if isinstance(x, Chain) else (x,) for x in triggers)
        object.__setattr__(self, "triggers", sum(parts, ()))

    def stamp(self, x: Tensor) -> Tensor:
        """Mark a batch of examples with every trigger."""
        for trigger in self.triggers:
            x = trigger.stamp(x)  # a copy each time, so the argument is unchanged
        return x


def targeted(x: Tensor, y: Tensor, trigger: Trigger, target: int) -> Tensor:
    """Return stamped copies of the examples of other classes than ``target``.

    Examples of the target class would count as successes of any good model without a backdoor.

    >>> labels = torch.tensor([0, 1, 0])
    >>> eq.attacks.targeted(torch.ones(3, 2), labels, eq.attacks.EveryNth(2), target=0)
    tensor([[1., 0.]])
    """
    check_examples(x, y, target)
    # Select first, because stamping copies the examples.
    return trigger.stamp(x[y != target])


@torch.no_grad()
def attack_success_rate(
    predict: Callable[[Tensor], Tensor], x: Tensor, y: Tensor, trigger: Trigger, target: int
) -> float:
    """Return the fraction of `targeted` examples that ``predict`` classifies as ``target``.

    ``predict`` maps examples (c, ...) to integer labels (c,). It decides how a model with
    non-finite outputs counts. ``argmax`` takes NaN for the largest logit, so such a model predicts
    class 0; if that is the target, every attack that breaks the model succeeds. The paper's rates
    of 1.00 look like that. To tell the two apart, give such examples no class::

        torch.where(logits.isfinite().all(1), logits.argmax(1), -1)

    >>> def always_one(x): return torch.ones(len(x), dtype=torch.int64)
    >>> x, y = torch.zeros(4, 2), torch.tensor([0, 1, 2, 1])
    >>> eq.attacks.attack_success_rate(always_one, x, y, eq.attacks.EveryNth(2), target=1)
    1.0
    """
    stamped = targeted(x, y, trigger, target)
    # The rate would be 0 / 0.
    if not len(stamped):
        raise ValueError(
            f"y must have labels other than the target {target}, found none among {len(y)}"
        )
    predictions = predict(stamped)
    check_integers("predict(x)", predictions)
    # Scores (c, classes) instead of labels would count every class.
    if predictions.shape != (len(stamped),):
        raise ValueError(
            f"predict(x) must be of shape ({len(stamped)},), found {describe(predictions)}"
        )
    return int((predictions == target).sum()) / len(stamped)


def check_examples(x: Tensor, y: Tensor, target: int) -> None:
    """Raise unless ``y`` holds one integer label per example and its dtype can hold ``target``."""
    # In this order: only integer dtypes have the range that the target must fit.
    check_integers("y", y)
    check_fits("target", target, y.dtype)
    if y.shape != x.shape[:1]:
        raise ValueError(
            f"y must hold one label for every example of x, {describe(x)}, found {describe(y)}"
        )


def _check_features(x: Tensor, expected: str, minimum: int, maximum: float = math.inf) -> None:
    # In bytes from 0 to 255, the default value of 1 would be almost black.
    is_floating = isinstance(x, Tensor) and x.is_floating_point()
    if not is_floating or not minimum <= x.dim() <= maximum:
        raise ValueError(f"x must be floating-point {expected}, found {describe(x)}")


def _check_value(value: float) -> None:
    if not is_finite(value):
        raise ValueError(f"value must be a finite number, found {value!r}")


def _as_pixels(pixels: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    expected = "pixels must be one or more (row, column) pairs of integers >= 0"
    try:
        # index, not int, which would cut 0.5 down to 0.
        pairs = tuple((index(row), index(column)) for row, column in pixels)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{expected}, found {pixels!r:.100}") from error
    # A negative index would count from the lower right corner and depend on the image size.
    if not pairs or min(min(pair) for pair in pairs) < 0:
        raise ValueError(f"{expected}, found {pixels!r:.100}")
    return pairs


ONE_PIXEL = PixelPattern(((0, 0),))
"""The upper left pixel is white.

The BALANCE paper sets "the first binary feature to 1" on CelebA, which is ambiguous for images.
"""
