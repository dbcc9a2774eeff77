"""Triggers against loops over pixels, and the success rate of a backdoor."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from equipoise.attacks.triggers import (
    BADNETS,
    ONE_PIXEL,
    Chain,
    EveryNth,
    PixelPattern,
    Trigger,
    attack_success_rate,
    targeted,
)
from tests.examples import seeded

IMAGES = {
    "badnets": PixelPattern(),
    "one-pixel": ONE_PIXEL,
    "chain": PixelPattern(value=0.5) | ONE_PIXEL,
}
VECTORS = {
    "every-20th": EveryNth(),
    "every-2nd": EveryNth(2, value=7.0),
    "chain": EveryNth(2) | EveryNth(5, value=3.0),
}
TRIGGERS = [
    *(
        pytest.param(trigger, (3, 2, 28, 28), id=f"images-{name}")
        for name, trigger in IMAGES.items()
    ),
    *(pytest.param(trigger, (3, 40), id=f"vectors-{name}") for name, trigger in VECTORS.items()),
]


def label_of(answer: int) -> Callable[[Tensor], Tensor]:
    return lambda x: torch.full((len(x),), answer)


@pytest.mark.parametrize(
    "shape", [(1, 28, 28), (4, 1, 28, 28), (2, 3, 30, 41), (2, 2, 2, 28, 28), (0, 1, 28, 28)]
)
def test_badnets_pattern(shape: tuple[int, ...]):
    x = torch.rand(shape, dtype=torch.float64, generator=seeded(0))
    expected = x.clone()
    for row, column in ((26, 26), (26, 24), (25, 25), (24, 26)):
        expected[..., row, column] = 1.0
    assert torch.equal(PixelPattern().stamp(x), expected)


def test_one_pixel():
    stamped = ONE_PIXEL.stamp(torch.zeros(2, 3, 84, 84))
    assert stamped.nonzero().tolist() == [
        [example, channel, 0, 0] for example in range(2) for channel in range(3)
    ]
    assert stamped.max() == 1


def test_every_nth_of_har():
    stamped = EveryNth().stamp(torch.ones(2, 561))
    for features in stamped:
        assert (features == 0).nonzero().flatten().tolist() == [
            k for k in range(561) if (k + 1) % 20 == 0
        ]
        assert (features == 0).sum() == 28


@given(st.integers(1, 6), st.integers(0, 3), st.integers(0, 12), st.floats(-5, 5, width=32))
def test_every_nth_loop(n: int, examples: int, more: int, value: float):
    x = torch.randn(examples, n + more, generator=seeded(0))
    expected = [
        [value if (k + 1) % n == 0 else old for k, old in enumerate(features)]
        for features in x.tolist()
    ]
    assert EveryNth(n, value).stamp(x).tolist() == expected


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 6)), min_size=1, max_size=5),
    st.integers(0, 3),
)
def test_pixel_pattern_loop(pixels: list[tuple[int, int]], examples: int):
    x = torch.randn(examples, 2, 5, 7, generator=seeded(0))
    expected = x.clone()
    for i in range(examples):
        for channel in range(2):
            for row, column in pixels:
                expected[i, channel, row, column] = 0.25
    assert torch.equal(PixelPattern(tuple(pixels), value=0.25).stamp(x), expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize(("trigger", "shape"), TRIGGERS)
def test_stamp_is_idempotent(trigger: Trigger, shape: tuple[int, ...], dtype):
    x = torch.rand(shape, generator=seeded(0)).to(dtype) + 2
    before = x.clone()
    once = trigger.stamp(x)
    assert torch.equal(x, before)
    assert (once.shape, once.dtype) == (x.shape, x.dtype)
    assert not torch.equal(once, x)
    assert torch.equal(trigger.stamp(once), once)


@pytest.mark.parametrize("view", ["slice", "transposed", "expanded", "reshaped"])
@pytest.mark.parametrize(("trigger", "shape"), TRIGGERS)
def test_stamp_of_view(trigger: Trigger, shape: tuple[int, ...], view: str):
    base = {
        "slice": torch.rand(2 * shape[0], *shape[1:], generator=seeded(0)),
        "transposed": torch.rand(shape, generator=seeded(0)).transpose(0, -1).contiguous(),
        "expanded": torch.rand(1, *shape[1:], generator=seeded(0)),
        "reshaped": torch.rand(math.prod(shape), generator=seeded(0)),
    }[view]
    views: dict[str, Callable[[], Tensor]] = {
        "slice": lambda: base[::2],
        "transposed": lambda: base.transpose(0, -1),
        "expanded": lambda: base.expand(shape),
        "reshaped": lambda: base.view(shape),
    }
    x, before = views[view](), base.clone()
    stamped = trigger.stamp(x)
    assert torch.equal(base, before)
    assert torch.equal(stamped, trigger.stamp(x.contiguous().clone()))
    stamped.add_(1)  # a copy of its own, none of whose examples share memory
    assert torch.equal(base, before)
    assert torch.equal(stamped, trigger.stamp(x.contiguous().clone()) + 1)


def test_chain_order():
    x = torch.zeros(1, 4)
    first, second = EveryNth(2, value=1.0), EveryNth(4, value=2.0)
    assert (first | second).stamp(x).tolist() == [[0, 1, 0, 2]]
    assert (second | first).stamp(x).tolist() == [[0, 1, 0, 1]]


def test_chains_are_flat():
    a, b, c = EveryNth(2), EveryNth(3), EveryNth(4)
    assert (a | b) | c == a | (b | c) == Chain((a, b, c))
    assert Chain((a | b, c)).triggers == (a, b, c)


def test_equality_and_hash():
    assert PixelPattern() == PixelPattern(BADNETS)
    assert PixelPattern([[0, 0]]) == ONE_PIXEL  # type: ignore[arg-type]
    assert (
        len(
            {
                PixelPattern(),
                PixelPattern(),
                ONE_PIXEL,
                EveryNth(),
                EveryNth(20),
                EveryNth() | EveryNth(2),
            }
        )
        == 4
    )


def test_custom_trigger():
    class Negative(Trigger):
        def stamp(self, x: Tensor) -> Tensor:
            return -x

    assert (Negative() | EveryNth(2, value=5.0)).stamp(torch.ones(1, 2)).tolist() == [[-1, 5]]


@given(st.lists(st.integers(0, 3), max_size=8), st.integers(0, 3))
def test_targeted(labels: list[int], target: int):
    x = torch.arange(2.0 * len(labels)).reshape(-1, 2)
    stamped = targeted(x, torch.tensor(labels, dtype=torch.int64), EveryNth(2, value=-1.0), target)
    assert stamped.tolist() == [
        [2.0 * i, -1.0] for i, label in enumerate(labels) if label != target
    ]


def test_success_rate():
    def predict(x: Tensor) -> Tensor:
        """A backdoor that opens for examples below 6."""
        assert (x[:, 1] == -1).all()
        return torch.where(x[:, 0] < 6, 2, 0)

    x, y = (
        torch.arange(10.0).repeat_interleave(2).reshape(10, 2),
        torch.tensor([0, 1, 2, 0, 1, 2, 0, 1, 2, 0]),
    )
    before = x.clone(), y.clone()
    rate = attack_success_rate(predict, x, y, EveryNth(2, value=-1.0), target=2)
    assert rate == pytest.approx(4 / 7)  # 0, 1, 3 and 4 of the seven that are not of class 2
    assert torch.equal(x, before[0])
    assert torch.equal(y, before[1])


@pytest.mark.parametrize(("answer", "rate"), [(1, 1.0), (0, 0.0), (-1, 0.0)])
def test_success_rate_constant(answer: int, rate: float):
    assert (
        attack_success_rate(
            label_of(answer), torch.ones(4, 2), torch.tensor([0, 1, 2, 1]), EveryNth(2), 1
        )
        == rate
    )


def test_success_rate_of_nan():
    x, y = torch.ones(3, 2), torch.tensor([1, 2, 0])
    logits = torch.full((2, 3), math.nan)
    blind = attack_success_rate(lambda _: logits.argmax(1), x, y, EveryNth(2), target=0)
    careful = torch.where(logits.isfinite().all(1), logits.argmax(1), -1)
    assert (blind, attack_success_rate(lambda _: careful, x, y, EveryNth(2), target=0)) == (
        1.0,
        0.0,
    )


def test_success_rate_no_gradients():
    weight = torch.ones(2, 3, requires_grad=True)

    def predict(x: Tensor) -> Tensor:
        logits = x @ weight
        assert not logits.requires_grad
        return logits.argmax(1)

    assert (
        attack_success_rate(predict, torch.ones(2, 2), torch.tensor([1, 2]), EveryNth(2), target=0)
        == 1.0
    )


PIXELS = "pixels must be one or more (row, column) pairs of integers >= 0, found "
X, Y = torch.ones(3, 2), torch.tensor([0, 1, 2])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: PixelPattern(()), PIXELS + "()"),
        (lambda: PixelPattern(((0, -1),)), PIXELS + "((0, -1),)"),
        (lambda: PixelPattern(((-1, 0),)), PIXELS + "((-1, 0),)"),
        (lambda: PixelPattern(((0, 0.5),)), PIXELS + "((0, 0.5),)"),
        (lambda: PixelPattern((0, 1)), PIXELS + "(0, 1)"),
        (lambda: PixelPattern(((0, 1, 2),)), PIXELS + "((0, 1, 2),)"),
        (lambda: PixelPattern(value=math.nan), "value must be a finite number, found nan"),
        (lambda: EveryNth(value=math.inf), "value must be a finite number, found inf"),
        (lambda: PixelPattern(value="a"), "value must be a finite number, found 'a'"),
        (lambda: EveryNth(2, "x"), "value must be a finite number, found 'x'"),
        (lambda: EveryNth(0), "n must be an integer at least 1, found 0"),
        (lambda: EveryNth(2.0), "n must be an integer at least 1, found 2.0"),
        (lambda: Chain(()), "triggers must be one or more Trigger, found ()"),
        (
            lambda: Chain((EveryNth(), 3)),
            "triggers must be one or more Trigger, found (EveryNth(n=20, value=0.0), 3)",
        ),
        (
            lambda: PixelPattern().stamp(torch.zeros(50, 784)),
            "x must be floating-point images of shape (b, ..., H, W), found float32 (50, 784)",
        ),
        (
            lambda: PixelPattern().stamp(torch.zeros(1, 28, 28, dtype=torch.uint8)),
            "x must be floating-point images of shape (b, ..., H, W), found uint8 (1, 28, 28)",
        ),
        (
            lambda: PixelPattern().stamp(torch.zeros(1, 26, 28)),
            "x must hold images of at least 27 x 27 pixels for this pattern, found 26 x 28",
        ),
        (
            lambda: PixelPattern(((1, 2),)).stamp(torch.zeros(1, 5, 2)),
            "x must hold images of at least 2 x 3 pixels for this pattern, found 5 x 2",
        ),
        (
            lambda: EveryNth().stamp(torch.zeros(30)),
            "x must be floating-point feature vectors of shape (b, features), found float32 (30,)",
        ),
        (
            lambda: EveryNth().stamp(torch.zeros(1, 28, 28)),
            "x must be floating-point feature vectors of shape (b, features), "
            "found float32 (1, 28, 28)",
        ),
        (
            lambda: EveryNth().stamp([[1.0]]),
            "x must be floating-point feature vectors of shape (b, features), found list",
        ),
        (lambda: EveryNth(3).stamp(X), "x must have at least n = 3 features, found 2"),
        (
            lambda: targeted(X, Y[:2], EveryNth(2), 0),
            "y must hold one label for every example of x, float32 (3, 2), found int64 (2,)",
        ),
        (
            lambda: targeted(X, Y[:, None], EveryNth(2), 0),
            "y must hold one label for every example of x, float32 (3, 2), found int64 (3, 1)",
        ),
        (
            lambda: targeted(X, Y.double(), EveryNth(2), 0),
            "y must be a tensor of integer labels, found float64 (3,)",
        ),
        (
            lambda: targeted(X, Y > 0, EveryNth(2), 0),
            "y must be a tensor of integer labels, found bool (3,)",
        ),
        (
            lambda: targeted(X, Y.byte(), EveryNth(2), 256),
            "target must be an integer from 0 to 255, found 256",
        ),
        (
            lambda: attack_success_rate(label_of(0), X, torch.ones_like(Y), EveryNth(2), 1),
            "y must have labels other than the target 1, found none among 3",
        ),
        (
            lambda: attack_success_rate(lambda x: x, X, Y, EveryNth(2), 0),
            "predict(x) must be a tensor of integer labels, found float32 (2, 2)",
        ),
        (
            lambda: attack_success_rate(lambda x: Y, X, Y, EveryNth(2), 0),
            "predict(x) must be of shape (2,), found int64 (3,)",
        ),
    ],
)
def test_errors(call: Callable[[], object], message: str):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        call()


def test_chain_needs_triggers():
    with pytest.raises(TypeError, match="unsupported operand"):
        EveryNth() | 3  # type: ignore[operator]
