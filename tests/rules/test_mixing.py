"""eq.mix: a convex combination that no value of either operand can spoil."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import equipoise as eq

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
HALF = [torch.float16, torch.bfloat16]


def same(a: Tensor, b: Tensor) -> bool:
    """Equal bit for bit, so that -0 is not 0, but for the bits of a NaN."""
    equal = (a == b) & (a.signbit() == b.signbit()) | a.isnan() & b.isnan()
    return a.dtype == b.dtype and a.shape == b.shape and bool(equal.all())


@pytest.mark.parametrize("dtype", FLOATS)
def test_worked_value(dtype: torch.dtype) -> None:
    own = torch.tensor([4.0, -2.0], dtype=dtype)
    model = torch.tensor([0.0, 2.0], dtype=dtype)
    assert same(eq.mix(own, model, 0.25), torch.tensor([1.0, 1.0], dtype=dtype))


def test_alpha_is_share_of_own() -> None:
    own = torch.ones(3)
    model = torch.zeros(3)
    assert same(eq.mix(own, model), torch.full((3,), 0.5))
    assert same(eq.mix(own, model, alpha=0.75), torch.full((3,), 0.75))


def test_alpha_per_client() -> None:
    own = torch.ones(3, 2)
    model = torch.zeros(3, 2)
    alpha = torch.tensor([0.0, 0.25, 1.0])
    assert same(eq.mix(own, model, alpha), alpha[:, None].expand(3, 2).contiguous())


@pytest.mark.parametrize("alpha", [1, torch.tensor(1.0), torch.tensor(1.0, dtype=torch.float16)])
def test_alpha_types(alpha: Any) -> None:
    own = torch.randn(2, 3)
    model = torch.randn(2, 3)
    assert same(eq.mix(own, model, alpha), own)


@given(
    st.sampled_from(FLOATS),
    st.lists(st.tuples(*[st.floats(-1e3, 1e3, width=16)] * 2), min_size=1, max_size=5),
    st.floats(0, 1),
)
def test_close_to_exact_value(
    dtype: torch.dtype, pairs: list[tuple[float, float]], alpha: float
) -> None:
    own, model = torch.tensor(pairs, dtype=torch.float64).to(dtype).unbind(1)
    mixed = eq.mix(own, model, alpha)
    # Each rounding of products and weights is relative to the larger operand.
    tolerance = max(
        4 * torch.finfo(torch.promote_types(dtype, torch.float32)).eps, torch.finfo(dtype).eps
    )
    for x, y, z in zip(own.tolist(), model.tolist(), mixed.tolist(), strict=True):
        exact = Fraction(alpha) * Fraction(x) + (1 - Fraction(alpha)) * Fraction(y)
        assert abs(Fraction(z) - exact) <= tolerance * max(abs(x), abs(y)) + torch.finfo(dtype).tiny
        assert min(x, y) <= z <= max(x, y)


@pytest.mark.parametrize("dtype", HALF)
def test_rounded_once(dtype: torch.dtype) -> None:
    alpha = 0.123456789  # no short fraction, which would give ties
    own, model = torch.randn(2, 1000).to(dtype)
    expected = (alpha * own.double() + (1 - alpha) * model.double()).to(dtype)
    computed_in_half = alpha * own + (1 - alpha) * model
    assert (computed_in_half != expected).sum() > 100  # the case tells one rounding from three
    assert (eq.mix(own, model, alpha) != expected).sum() <= 1


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("value", [torch.inf, -torch.inf, torch.nan])
@pytest.mark.parametrize("per_client", [False, True])
def test_alpha_zero_and_one(dtype: torch.dtype, value: float, per_client: bool) -> None:
    good = torch.tensor([[1.1, -0.0, torch.finfo(dtype).max, torch.finfo(dtype).tiny]]).to(dtype)
    bad = torch.full_like(good, value)
    one, zero = (torch.tensor([1.0]), torch.tensor([0.0])) if per_client else (1.0, 0.0)
    assert same(eq.mix(good, bad, one), good)
    assert same(eq.mix(bad, good, zero), good)
    assert same(eq.mix(bad, good, one), bad)


def test_alpha_underflows() -> None:
    own = torch.tensor([torch.inf])
    model = torch.tensor([1.0])
    assert same(eq.mix(own, model, 1e-60), model)


@pytest.mark.parametrize(
    ("own", "model", "mixed"),
    [
        (torch.inf, 1.0, torch.inf),
        (1.0, -torch.inf, -torch.inf),
        (torch.inf, -torch.inf, torch.nan),
        (torch.nan, 1.0, torch.nan),
    ],
)
def test_nonfinite_operands(own: float, model: float, mixed: float) -> None:
    result = eq.mix(torch.tensor([own]), torch.tensor([model]), 0.5)
    torch.testing.assert_close(result, torch.tensor([mixed]), equal_nan=True, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", FLOATS)
def test_no_overflow(dtype: torch.dtype) -> None:
    alpha = torch.linspace(0, 1, 1001, dtype=torch.float64)
    largest = torch.full((1001, 1), torch.finfo(dtype).max, dtype=dtype)
    assert same(eq.mix(largest, largest, alpha), largest)
    assert same(eq.mix(-largest, -largest, alpha), -largest)
    assert eq.mix(largest, -largest, alpha).isfinite().all()
    assert same(eq.mix(largest[500], -largest[500], 0.5), torch.zeros(1, dtype=dtype))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(1000,), (3, 1000), (3, 200_001), (300_000, 2)])
def test_agreement_is_exact(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    own = torch.randn(shape).to(dtype)
    assert same(eq.mix(own, own.clone(), 0.3), own)


@pytest.mark.parametrize("dtype", FLOATS)
def test_batch_equals_loop(dtype: torch.dtype) -> None:
    own, model = torch.randn(2, 4, 150_000).to(dtype)
    alpha = torch.tensor([0.0, 0.1, 0.7, 1.0])
    mixed = eq.mix(own, model, alpha)
    for i in range(4):
        assert same(mixed[i], eq.mix(own[i], model[i], float(alpha[i])))


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0), (0, 0)])
def test_nothing_to_mix(shape: tuple[int, ...]) -> None:
    assert eq.mix(torch.zeros(shape), torch.zeros(shape)).shape == shape
    if len(shape) == 2:
        assert eq.mix(torch.zeros(shape), torch.zeros(shape), torch.zeros(shape[0])).shape == shape


def test_strided_operands() -> None:
    own = torch.randn(5, 4).T
    model = torch.randn(5).expand(4, 5)
    expected = eq.mix(own.contiguous(), model.contiguous(), 0.3)
    assert torch.equal(eq.mix(own, model, 0.3), expected)
    assert torch.equal(eq.mix(model, own, 0.7), expected)
    assert torch.equal(eq.mix(own[:, 1], model[:, 1], 0.3), expected[:, 1])


@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
def test_inputs_stay(alpha: float) -> None:
    own = torch.randn(2, 3)
    model = torch.randn(2, 3)
    alphas = torch.full((2,), alpha)
    before = own.clone(), model.clone(), alphas.clone()
    eq.mix(own, model, alphas).fill_(7.0)
    eq.mix(own, model, alpha).fill_(7.0)
    assert all(same(a, b) for a, b in zip(before, (own, model, alphas), strict=True))


def test_no_gradient() -> None:
    own = torch.nn.Parameter(torch.ones(2, 3))
    alpha = torch.full((2,), 0.5, requires_grad=True)
    mixed = eq.mix(own, own * 2, alpha)
    assert not mixed.requires_grad
    assert type(mixed) is Tensor


@pytest.mark.parametrize(
    ("alpha", "text"),
    [
        (1.5, r"alpha must be in \[0, 1\], found 1.5$"),
        (-0.001, r"alpha must be in \[0, 1\], found -0.001$"),
        (float("nan"), r"alpha must be in \[0, 1\], found nan$"),
        (float("inf"), r"alpha must be in \[0, 1\], found inf$"),
        (torch.tensor(2.0), r"alpha must be in \[0, 1\], found 2.0$"),
        (torch.tensor([0.5, torch.nan]), r"alpha must be in \[0, 1\], found nan for client 1$"),
        (
            torch.tensor([0.5]),
            r"alpha must be a number or a tensor of shape \(2,\) for own of shape "
            r"\(2, 3\), found float32 \(1,\)",
        ),
        (
            torch.ones(2, 1),
            r"alpha must be a number or a tensor of shape \(2,\) for own of shape "
            r"\(2, 3\), found float32 \(2, 1\)",
        ),
        (
            torch.tensor([0, 1]),
            r"alpha must be a number or a floating-point tensor, found int64 \(2,\)",
        ),
        (None, "alpha must be a number or a floating-point tensor, found NoneType"),
        ("0.5", "alpha must be a number or a floating-point tensor, found str"),
    ],
)
def test_bad_alpha(alpha: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        eq.mix(torch.zeros(2, 3), torch.zeros(2, 3), alpha)


def test_one_alpha_per_client() -> None:
    with pytest.raises(
        ValueError, match=r"alpha must be a number for own of shape \(3,\), found float32 \(3,\)"
    ):
        eq.mix(torch.zeros(3), torch.zeros(3), torch.zeros(3))


@pytest.mark.parametrize(
    ("own", "model", "text"),
    [
        (
            torch.zeros(3),
            torch.zeros(4),
            r"model must be like own, float32 \(3,\), found float32 \(4,\)",
        ),
        (
            torch.zeros(2, 3),
            torch.zeros(3),
            r"model must be like own, float32 \(2, 3\), found float32 \(3,\)",
        ),
        (
            torch.zeros(3),
            torch.zeros(3).double(),
            r"model must be like own, float32 \(3,\), found float64 \(3,\)",
        ),
        (
            torch.zeros(3),
            torch.zeros(3, device="meta"),
            "model must be on the device of own, cpu, found meta",
        ),
        (
            torch.zeros(3).int(),
            torch.zeros(3),
            r"own must be a floating-point tensor .*\(n, d\), found int32 \(3,\)",
        ),
        (
            torch.zeros(3),
            torch.zeros(3).int(),
            r"model must be a floating-point tensor .*\(n, d\), found int32 \(3,\)",
        ),
        (
            torch.zeros(3).cfloat(),
            torch.zeros(3),
            r"own must be a floating-point tensor .*, found complex64 \(3,\)",
        ),
        (
            torch.zeros(()),
            torch.zeros(()),
            r"own must be a floating-point tensor of shape \(d,\) or \(n, d\), found float32 \(\)",
        ),
        (
            torch.zeros(1, 2, 3),
            torch.zeros(1, 2, 3),
            r"own must be a floating-point .* found float32 \(1, 2, 3\)",
        ),
        ([0.0], torch.zeros(1), "own must be a floating-point tensor .* found list"),
    ],
)
def test_bad_models(own: Any, model: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        eq.mix(own, model)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("d", [1, 255, 256, 257, 4097])
def test_bits_of_lerp(dtype: torch.dtype, d: int) -> None:
    generator = torch.Generator().manual_seed(d)
    own, model = torch.randn(2, 50, d, generator=generator, dtype=torch.float64).to(dtype)
    alpha = torch.rand(50, generator=generator, dtype=torch.float64)
    expected = torch.lerp(model, own, alpha.to(dtype)[:, None])
    # A last vector that is not full may be rounded once more, where torch does not fuse.
    step = 2 * torch.finfo(dtype).eps * torch.maximum(own.abs(), model.abs())
    found = eq.mix(own, model, alpha)
    assert ((found - expected).abs() <= step).all()
    whole = d // 64 * 64
    assert same(found[:, :whole], expected[:, :whole])


def test_overflow_is_local() -> None:
    own, model = torch.randn(2, 3, 600)
    expected = eq.mix(own, model, 0.3)
    own[1, 5] = 3e38
    model[1, 5] = -3e38
    mixed = eq.mix(own, model, 0.3)
    assert mixed[1, 5].isfinite()
    mixed[1, 5] = expected[1, 5]
    assert same(mixed, expected)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(300,), (3, 300)])
def test_out(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    own, model = torch.randn(2, *shape).to(dtype)
    own[..., 7] = torch.inf
    model[..., 8] = torch.nan
    own[..., 9] = torch.finfo(dtype).max
    model[..., 9] = torch.finfo(dtype).min
    for alpha in (0.0, 0.3, 0.5, 1.0):
        expected = eq.mix(own, model, alpha)
        mine = own.clone()
        theirs = model.clone()
        apart = torch.empty(shape, dtype=dtype)
        for x, y, out in ((own, model, apart), (mine, model, mine), (own, theirs, theirs)):
            before = out._version
            assert eq.mix(x, y, alpha, out=out) is out
            assert same(out, expected)
            assert out._version > before


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda own, model: own[:2], r"out must be a tensor like own, float32 \(3, 4\) on cpu"),
        (lambda own, model: own.double(), "out must be a tensor like own"),
        (lambda own, model: 7, "out must be a tensor like own, .*, found int"),
        (lambda own, model: torch.empty(1, 4).expand(3, 4), "memory for every element"),
        (lambda own, model: torch.empty(3, 4, requires_grad=True), "must not require gradients"),
    ],
)
def test_bad_out(make: Any, text: str) -> None:
    own, model = torch.randn(2, 3, 4)
    with pytest.raises(ValueError, match=text):
        eq.mix(own, model, out=make(own, model))


@pytest.mark.parametrize("name", ["own", "model"])
def test_out_overlaps(name: str) -> None:
    memory = torch.randn(4, 4)
    models = {"own": torch.randn(3, 4), "model": torch.randn(3, 4), name: memory[1:]}
    with pytest.raises(ValueError, match="out must not share memory with own"):
        eq.mix(**models, out=memory[:3])


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_memory(dtype: torch.dtype) -> None:
    own, model = torch.zeros(2, 4_000_000, dtype=dtype)
    with torch.profiler.profile(profile_memory=True) as profile:
        eq.mix(own, model, 0.3)
    allocated = [event.self_cpu_memory_usage for event in profile.events()]
    assert allocated
    assert not [
        size for size in allocated if size > 2 << 20
    ]  # the result itself is not allocated by torch
