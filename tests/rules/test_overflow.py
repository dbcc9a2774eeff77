"""Models at the largest finite numbers: nothing overflows, nothing raises."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

import equipoise as eq
from equipoise.kernels import _weighted_sums as mixture
from equipoise.kernels import native
from equipoise.kernels.native import _library as library
from tests.cases import LEARNS, RULES

# Aggregates must be finite even if `tolerated` exceeds the guarantees.
pytestmark = pytest.mark.filterwarnings("ignore::equipoise.GuaranteeWarning")

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
PATHS = {"torch": None, "baseline": 0, "AVX2": 1, "AVX-512": 2}
SHARES = [1.0, 1.0, 1.0, -1.0, -1.0, 0.5, 0.0, 1e-3]  # of the largest finite number

every_rule = pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
every_learn = pytest.mark.parametrize("rule", LEARNS.values(), ids=LEARNS)
hypothesis_settings = settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture(autouse=True, params=PATHS)
def path(request: pytest.FixtureRequest) -> Iterator[None]:
    """The kernels in torch, and those in C with every instruction set that this CPU has."""
    wanted = PATHS[request.param]
    if wanted is None:
        with native.disabled():
            yield
        return
    if library.LIBRARY is None or library.LIBRARY.eq_use_instructions(wanted) != wanted:
        pytest.skip("this machine does not have them")
    yield
    library.LIBRARY.eq_use_instructions(2)


def first_coordinate(models: Tensor, *_: Tensor) -> Tensor:
    return models[:, 0].double()


INPUTS: dict[str, Any] = dict(t=0, total=4, loss_of=first_coordinate, samples=torch.arange(1, 42))


@st.composite
def models(draw: st.DrawFn, least: int = 1, most: int = 40) -> Tensor:
    """(c, d) models of the largest finite numbers of both signs, and of some smaller ones."""
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.integers(least, most)), draw(st.sampled_from([1, 3, 70]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10**6)))
    kinds = draw(st.lists(st.sampled_from(SHARES), min_size=1, max_size=3))
    shares = torch.tensor(kinds, dtype=torch.float64)[
        torch.randint(len(kinds), shape, generator=generator)
    ]
    if dtype == torch.float64 and draw(st.booleans()):
        shares[:, 1:] = 0  # so that norms fit, and messages are present
    return (shares * torch.finfo(dtype).max).to(dtype)


def require_between(found: Tensor, values: Tensor, rule: object) -> None:
    """Every coordinate is finite, and between those of the values, but for rounding."""
    assert found.isfinite().all(), found
    if isinstance(rule, eq.FLTrust):  # gives messages the length of own, in their own direction
        return
    exact = values.double() / 4  # so that the tolerance does not overflow
    if isinstance(rule, eq.SCClip) and rule.mode == "norm":
        exact = torch.cat([exact, torch.zeros_like(exact[:1])])  # pulls messages towards zero
    rounding = 8 * torch.finfo(values.dtype).eps * exact.abs().amax(0)
    assert (found.double() / 4 >= exact.amin(0) - rounding).all()
    assert (found.double() / 4 <= exact.amax(0) + rounding).all()


@every_rule
@given(given_models=models(least=2, most=41), tolerated=st.sampled_from([0, 1, 40]))
@hypothesis_settings
def test_stays_in_range(rule: Any, given_models: Tensor, tolerated: int) -> None:
    own = given_models[0]
    if not eq.kernels.are_finite(own[None]).all():
        own = torch.zeros_like(own)
    out = rule(own, given_models[1:], tolerated=tolerated, **INPUTS)
    require_between(out.model, torch.cat([own[None], given_models[1:]]), rule)


@every_rule
@pytest.mark.parametrize("complete", [pytest.param(True, marks=pytest.mark.exhaustive), False])
@given(own=models(least=6))
@hypothesis_settings
def test_batch_stays_in_range(rule: Any, complete: bool, own: Tensor) -> None:
    """Clients of a complete graph share their sums and their sorting."""
    graph = eq.Topology.complete(len(own)) if complete else eq.Topology.ring(len(own))
    inbox = graph.deliver(own)
    out = rule(own, inbox, tolerated=1, **INPUTS)
    for i in range(len(own)):
        heard = inbox.bank[inbox.slots[i, inbox.present[i]]]
        require_between(out.model[i], torch.cat([own[i : i + 1], heard]), rule)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "rule", [eq.FedAvg(), eq.TrimmedMean(tolerated=0), eq.Median(), eq.SCClip(tau="median")]
)
def test_mean_of_largest(rule: Any, dtype: torch.dtype) -> None:
    for count in range(1, 41):
        for sign in (1, -1):
            received = torch.full((count, 1), sign * torch.finfo(dtype).max, dtype=dtype)
            found = rule(torch.zeros(1, dtype=dtype), received).model
            torch.testing.assert_close(
                found, received[0], rtol=count * torch.finfo(dtype).eps, atol=0
            )


@pytest.mark.parametrize("dtype", DTYPES)
def test_fltrust_saturates(dtype: torch.dtype) -> None:
    """A message along one axis, given the length of own, has a coordinate beyond the dtype."""
    largest = torch.finfo(dtype).max
    own = torch.full((4,), largest / 3 if dtype == torch.float64 else largest, dtype=dtype)
    received = torch.tensor([[1.0, 0, 0, 0], [1, -0.5, 0, 0]], dtype=dtype)
    for messages in (received[:1], received):
        found = eq.FLTrust()(own, messages).model
        assert found.isfinite().all()
        assert found[0] >= largest / 2


@pytest.mark.parametrize("dtype", DTYPES)
def test_infinite_own_is_kept(dtype: torch.dtype) -> None:
    """An infinite own stays if no message arrives; other clients are not affected."""
    own = torch.full((3, 2), torch.finfo(dtype).max / 2, dtype=dtype)
    own[2] = torch.tensor([torch.inf, 1.0])
    mask = torch.tensor([[True] * 6, [True] * 6, [False] * 6])
    inbox = eq.Inbox(
        torch.full((6, 2), torch.finfo(dtype).max / 2, dtype=dtype),
        torch.arange(6).repeat(3, 1),
        mask,
    )
    for rule in (eq.FedAvg(), eq.TrimmedMean(tolerated=0), eq.SCClip()):
        found = rule(own, inbox).model
        assert found[:2].isfinite().all()
        assert found[2].tolist() == [torch.inf, 1.0]


@pytest.mark.parametrize("rule", [eq.FedAvg(), eq.TrimmedMean(tolerated=0)])
def test_kept_infinities(rule: Any) -> None:
    largest = torch.finfo(torch.float32).max
    bank = torch.full((6, 3), largest)
    bank[0, 1] = torch.inf
    bank[1, 2] = torch.nan
    inbox = eq.Inbox(bank, torch.arange(6)[None], keep_nonfinite=True)
    found = rule(torch.zeros(1, 3), inbox).model[0]
    assert found[0] == largest
    assert found[1] == torch.inf
    assert found[2].isnan()


@pytest.mark.parametrize("rule", [eq.Balance(gamma=1.5, kappa=0.0), eq.BalanceMedian(gamma=1.5)])
@pytest.mark.parametrize("d", [1, 70_000])
def test_balance_overflow(rule: Any, d: int) -> None:
    """Messages at 1.4 and 2 times the norm of own: these distances overflow float64."""
    own = torch.zeros(d, dtype=torch.float64)
    own[0] = 1.7e308
    received = torch.outer(torch.tensor([1.0, -0.4, -1.0], dtype=torch.float64), own)
    assert rule(own, received[2:]).weights.tolist() == [0]
    assert rule(own, received[1:2]).weights.tolist() == [1]
    assert rule(own, received).weights.tolist() == [0.5, 0.5, 0]


@pytest.mark.parametrize("tau", ["median", "second_largest"])
def test_scclip_overflowing_radius(tau: Any) -> None:
    own = torch.tensor([1.7e308], dtype=torch.float64)
    out = eq.SCClip(tau=tau)(own, -own.repeat(3, 1))
    torch.testing.assert_close(out.model, -own)


@every_learn
@pytest.mark.parametrize("t", [0, 1, 5])
@given(
    replies=st.lists(models(), min_size=4, max_size=4),
    share=st.sampled_from([1.0, -1.0, 1e-3, 0.0]),
    tolerated=st.sampled_from([0, 1]),
)
@hypothesis_settings
def test_learn_any_messages(
    rule: Any, t: int, replies: list[Tensor], share: float, tolerated: int
) -> None:
    like = replies[0]
    own = torch.zeros_like(like[0])
    update = torch.zeros_like(own)
    update[0] = share * torch.finfo(own.dtype).max
    own[-1] = update[0]
    answers = iter(
        [reply[:, :1].expand(-1, own.numel()).to(own.dtype) for reply in replies[1:]] + [like]
    )
    sent, out = eq.run_exchanges(
        rule, own, lambda _: next(answers), t=t, tolerated=tolerated, update=update
    )
    assert sent.isfinite().all()
    assert out.model.isfinite().all()


@every_learn
@pytest.mark.parametrize("t", [1, 2, 7])
def test_learn_norm_overflow(rule: Any, t: int) -> None:
    """Each message has a norm that fits a float64; their coordinate-wise means have none."""
    a = 1.2e308
    received = torch.tensor([[a, a, 0], [a, 0, a], [0, a, a]], dtype=torch.float64)
    own = torch.tensor([a / 2, -a / 2, 0.0], dtype=torch.float64)
    sent = []

    def exchange(message: Tensor) -> Tensor:
        sent.append(message)
        return received

    for mine in (own, own.new_zeros(3)):
        _, out = eq.run_exchanges(rule, mine, exchange, t=t, tolerated=1, update=mine)
        assert out.model.isfinite().all()
    assert eq.kernels.are_finite(torch.stack(sent)).all()


def test_learn_norm_overflow_batch() -> None:
    a = 1.25e308
    updates = torch.tensor([[a, a, 0], [a, 0, a], [0, a, a], [a, a, 0]], dtype=torch.float64)
    graph = eq.Topology.complete(4)
    sent = []

    def exchange(messages: Tensor) -> eq.Inbox:
        sent.append(messages)
        return graph.deliver(messages)

    own = torch.ones(4, 3, dtype=torch.float64)
    _, out = eq.run_exchanges(eq.LEARN(tolerated=1), own, exchange, t=7, update=updates)
    assert eq.kernels.are_finite(torch.cat(sent)).all()
    assert out.model.isfinite().all()


@every_rule
@pytest.mark.parametrize("dtype", DTYPES)
def test_summed_once(rule: Any, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(mixture, "_mend_overflows", fail)
    own = torch.randn(12, 5).to(dtype)
    rule(own, eq.Topology.complete(12).deliver(own), tolerated=2, **INPUTS)
