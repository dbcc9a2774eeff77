"""SketchGuard: sketches decide, models that do not match theirs are dropped, and traffic."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

import equipoise as eq
from equipoise import attacks
from equipoise.kernels import count_sketch

N = 10
GRAPH = eq.Topology.regular(N, 4, seed=0)


def models(d: int = 60, spread: float = 0.05) -> Tensor:
    source = torch.Generator().manual_seed(0)
    sizes = torch.linspace(0, 4 * spread, N)[:, None]
    return torch.randn(d, generator=source) + sizes * torch.randn(N, d, generator=source)


def run(rule: Any, own: Tensor, change: Any = lambda number, bank: bank) -> eq.Aggregated:
    numbers = iter(range(2))

    def exchange(sent: Tensor) -> eq.Inbox:
        return GRAPH.deliver(change(next(numbers), sent.clone()))

    return eq.run_exchanges(rule, own, exchange, t=1, total=10)[1]


def test_full_sketch_is_balance() -> None:
    own = models()
    found = run(eq.SketchGuard(size=60), own)
    expected = eq.Balance()(own, GRAPH.deliver(own), t=1, total=10)
    assert torch.equal(found.weights, expected.weights)
    assert torch.equal(found.model, expected.model)
    assert 0 < (found.weights > 0).sum() < found.weights.numel()


def test_sketch_by_definition() -> None:
    x = models(37)
    ones = count_sketch(torch.eye(37), 5, seed=3)
    # Each parameter is in one bucket, with a sign.
    assert ((ones != 0).sum(1) == 1).all()
    assert set(ones[ones != 0].tolist()) == {-1.0, 1.0}
    torch.testing.assert_close(count_sketch(x, 5, seed=3), x @ ones, rtol=1e-5, atol=1e-5)


def test_sketches_keep_distances_on_average() -> None:
    x = models(2000)
    exact = (x[0] - x[9]).square().sum()
    found = [count_sketch(x[:1] - x[9:], 50, seed).square().sum() for seed in range(100)]
    torch.testing.assert_close(torch.stack(found).mean(), exact, rtol=0.1, atol=0)


def test_sketch_of_huge_values() -> None:
    assert count_sketch(torch.full((1, 9), 3e38), 1, seed=0).isfinite().all()
    assert not count_sketch(torch.full((1, 9), torch.nan), 3, seed=0).isfinite().any()


def test_mismatching_model_is_dropped() -> None:
    own = models(spread=0.001)

    def other_model(number: int, bank: Tensor) -> Tensor:
        bank[3] += number
        return bank

    rule = eq.SketchGuard(size=20)
    assert (run(rule, own).weights > 0).all()
    weights = run(rule, own, other_model).weights
    assert weights is not None
    liar = GRAPH.senders == 3
    assert (weights[liar] == 0).all()
    assert (weights[~liar] > 0).all()


def test_missing_model_is_absent() -> None:
    own = models(spread=0.001)
    inboxes = [GRAPH.deliver(eq.SketchGuard(size=20).as_sent(0, own))]
    full = GRAPH.deliver(own)
    # The second exchange has fewer messages, in other slots.
    inboxes.append(
        eq.Inbox(own, full.slots[:, [2, 0]], full.mask[:, [2, 0]], full.senders[:, [2, 0]])
    )
    replies = iter(inboxes)
    rule = eq.SketchGuard(size=20)
    out = eq.run_exchanges(rule, own, lambda sent: next(replies), t=0, total=9)[1]
    assert torch.equal(out.weights, torch.full((N, 2), 0.5))


def test_one_client_equals_batch() -> None:
    own = models()
    rule = eq.SketchGuard(size=20)
    together = run(rule, own)
    inboxes = [GRAPH.deliver(rule.as_sent(number, own)) for number in range(2)]
    for i in range(N):
        replies = [inbox.of(i) for inbox in inboxes]
        answer = partial(lambda answers, _: answers.pop(0), replies)
        one = eq.run_exchanges(rule, own[i], answer, t=1, total=10)[1]
        assert torch.equal(one.model, together.model[i])


def simulator(rule: Any, attack: Any = None, **options: Any) -> eq.Simulator:
    return eq.Simulator(
        trainer=lambda own, t: own,
        topology=GRAPH,
        rule=rule,
        models=models(),
        attack=attack,
        malicious=[0, 5] if attack else None,
        total=3,
        **options,
    )


def test_traffic() -> None:
    rule = eq.SketchGuard(gamma=0.12, size=20)
    one = simulator(rule)
    one.run(1)
    out = run(rule, models())
    accepted = (out.weights > 0).sum() / N
    # The limit of round 0 is larger than that of round 1 in `run`.
    fetched = rule.fetches(
        rule.as_sent(0, models()), GRAPH.deliver(rule.as_sent(0, models())), t=0, total=3
    )
    expected = 4 * (20 * 4 + 60 * float(fetched.sum()) / N)
    assert one.history[0].values["bytes"] == pytest.approx(expected)
    assert fetched.sum() / N >= accepted
    assert expected < 4 * 60 * 4


def test_lies_match_their_sketches() -> None:
    """Attacks forge models; their sketches are sent first, also those of random lies."""
    seen = []

    class Near(attacks.MessageAttack):
        def forge(self, known: Any) -> eq.Lies:
            seen.append(known.models.shape)
            noise = torch.randn(known.models.shape, generator=known.generator)
            return eq.Lies.per_sender(known.models + 1e-4 * noise)

    one = simulator(eq.SketchGuard(size=20), Near())
    one.run(1)
    assert seen == [(N, 60)]
    assert one.history[0].values["accepted_malicious"] > 0


@pytest.mark.parametrize(
    ("options", "found"),
    [({"size": 0}, "size must"), ({"gamma": -1.0}, "gamma must"), ({"seed": -1}, "seed must")],
)
def test_wrong_options(options: dict[str, Any], found: str) -> None:
    with pytest.raises(ValueError, match=found):
        eq.SketchGuard(**options)
