"""Wrong arguments of rules are errors that say what was expected."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

import equipoise as eq
from tests.hostile import ABSENT, HONEST, INPUTS, OWN, D, every_rule, loss_of

pytestmark = pytest.mark.filterwarnings("ignore::equipoise.GuaranteeWarning")


WRONG_SHAPES = {
    "another d": (OWN, HONEST[:, :4], "received|own"),
    "a list": (OWN, list(HONEST), "received"),
    "one message without k": (OWN, HONEST[0], "received"),
    "three dimensions": (OWN, HONEST[None], "received"),
    "integers": (OWN, HONEST.long(), "received"),
    "integer own": (OWN.long(), HONEST, "own"),
    "own with three dimensions": (HONEST[None], HONEST, "own"),
    "own of no dimension": (OWN[0], HONEST, "own"),
    "another dtype": (OWN.double(), HONEST, "own|received|dtype"),
    "own is a list": (OWN.tolist(), HONEST, "own"),
    "received is None": (OWN, None, "received"),
    "many own, one inbox": (HONEST, eq.Inbox(HONEST, torch.tensor([[0, 1]])), "own"),
    "one own, many inboxes": (OWN, eq.Inbox(HONEST, torch.tensor([[0, 1], [2, 3]])), "own"),
    "many own, a stack": (HONEST, HONEST, "received|own|[Ii]nbox"),
    "bank of another d": (HONEST, eq.Inbox(HONEST[:, :4], torch.arange(4)[:, None]), "own"),
    "bank of another dtype": (
        HONEST,
        eq.Inbox(HONEST.double(), torch.arange(4)[:, None]),
        "own|dtype",
    ),
}


@every_rule
@pytest.mark.parametrize("wrong", WRONG_SHAPES.values(), ids=WRONG_SHAPES)
def test_wrong_shapes(rule: Any, wrong: tuple[Any, Any, str]) -> None:
    own, received, match = wrong
    with pytest.raises(ValueError, match=match):
        rule(own, received, **INPUTS)


MISSING = {
    "t": (eq.Balance(), {"total": 8}, r"\bt\b"),
    "total": (eq.Balance(), {"t": 2}, "total"),
    "krum's tolerated": (eq.Krum(), {}, "tolerated"),
    "trimmed mean's tolerated": (eq.TrimmedMean(), {}, "tolerated"),
    "ubar's tolerated": (eq.UBAR(), {"loss_of": loss_of}, "tolerated"),
    "loss_of": (eq.UBAR(tolerated=1), {}, "loss_of"),
    "samples": (eq.FedAvg(weighted=True), {}, "samples"),
}


@pytest.mark.parametrize("missing", MISSING.values(), ids=MISSING)
def test_missing_inputs(missing: tuple[Any, dict[str, Any], str]) -> None:
    rule, inputs, name = missing
    with pytest.raises(TypeError, match=name):
        rule(OWN, HONEST, **inputs)


WRONG_INPUTS = {
    "t is total": (eq.Balance(), {"t": 8}, r"\bt\b"),
    "t beyond total": (eq.Balance(), {"t": 9}, r"\bt\b"),
    "t negative": (eq.Balance(), {"t": -1}, r"\bt\b"),
    "krum: negative": (eq.Krum(), {"tolerated": -1}, "tolerated"),
    "krum: negative for one": (eq.Krum(), {"tolerated": torch.tensor([-1])}, "tolerated"),
    "krum: too many": (eq.Krum(), {"tolerated": torch.tensor([1, 2])}, "tolerated"),
    "krum: two dimensions": (eq.Krum(), {"tolerated": torch.tensor([[1]])}, "tolerated"),
    "krum: fractions": (eq.Krum(), {"tolerated": torch.tensor([0.5])}, "tolerated"),
    "trimmed mean: negative": (eq.TrimmedMean(), {"tolerated": -1}, "tolerated"),
    "trimmed mean: too many": (eq.TrimmedMean(), {"tolerated": torch.tensor([1, 2])}, "tolerated"),
    "ubar: negative": (eq.UBAR(), {"tolerated": -1}, "tolerated"),
    "ubar: one loss too few": (
        eq.UBAR(),
        {"loss_of": lambda models: torch.zeros(len(models) - 1)},
        "loss_of must return one loss per model",
    ),
    "ubar: one loss too many": (
        eq.UBAR(),
        {"loss_of": lambda models: torch.zeros(len(models) + 1)},
        "loss_of must return one loss per model",
    ),
    "fedavg: samples of one client too few": (
        eq.FedAvg(weighted=True),
        {"samples": torch.ones(len(HONEST) - 1)},
        f"samples must have one number per client, at least {len(HONEST)}",
    ),
    "fedavg: samples as a column": (
        eq.FedAvg(weighted=True),
        {"samples": torch.ones(len(HONEST), 1)},
        "samples must have one number per client",
    ),
    "fedavg: a negative number of samples": (
        eq.FedAvg(weighted=True),
        {"samples": torch.tensor([3, -1, *[5] * 20])},
        "samples must be finite and >= 0",
    ),
}


@pytest.mark.parametrize("wrong", WRONG_INPUTS.values(), ids=WRONG_INPUTS)
def test_wrong_inputs(wrong: tuple[Any, dict[str, Any], str]) -> None:
    rule, inputs, name = wrong
    with pytest.raises(ValueError, match=name):
        rule(OWN, HONEST, **INPUTS | inputs)


WRONG_OPTIONS = {
    "gamma negative": (lambda: eq.Balance(gamma=-0.1), "gamma"),
    "gamma NaN": (lambda: eq.Balance(gamma=float("nan")), "gamma"),
    "gamma infinite": (lambda: eq.Balance(gamma=float("inf")), "gamma"),
    "kappa negative": (lambda: eq.Balance(kappa=-1.0), "kappa"),
    "kappa NaN": (lambda: eq.Balance(kappa=float("nan")), "kappa"),
    "kappa infinite": (lambda: eq.Balance(kappa=float("inf")), "kappa"),
    "median's gamma negative": (lambda: eq.BalanceMedian(gamma=-0.1), "gamma"),
    "median's gamma NaN": (lambda: eq.BalanceMedian(gamma=float("nan")), "gamma"),
    "krum's tolerated": (lambda: eq.Krum(tolerated=-1)(OWN, HONEST), "tolerated"),
    "trimmed mean's tolerated": (lambda: eq.TrimmedMean(tolerated=-1)(OWN, HONEST), "tolerated"),
    "ubar's tolerated": (lambda: eq.UBAR(tolerated=-1)(OWN, HONEST, loss_of=loss_of), "tolerated"),
    "learn's tolerated": (
        lambda: eq.run_exchanges(eq.LEARN(tolerated=-1), OWN, lambda sent: HONEST, update=OWN, t=1),
        "tolerated",
    ),
    "empty": (lambda: eq.UBAR(empty="worst"), "empty"),
    "tau": (lambda: eq.SCClip(tau="mean"), "tau"),
    "tau negative": (lambda: eq.SCClip(tau=-1.0), "tau"),
    "tau NaN": (lambda: eq.SCClip(tau=float("nan")), "tau"),
    "mode": (lambda: eq.SCClip(mode="angle"), "mode"),
    "own_update": (lambda: eq.LEARN(own_update="doubled"), "own_update"),
    "alpha": (lambda: eq.LEARN(own_update="mixed", alpha=1.5), "alpha"),
}


@pytest.mark.parametrize("wrong", WRONG_OPTIONS.values(), ids=WRONG_OPTIONS)
def test_wrong_options(wrong: tuple[Any, str]) -> None:
    build, name = wrong
    with pytest.raises(ValueError, match=name):
        build()


def test_per_client_count() -> None:
    inbox = eq.Inbox(HONEST, torch.tensor([[1], [0], [3], [2]]))
    with pytest.raises(ValueError, match="rules"):
        eq.PerClient([eq.FedAvg(), eq.Median()])(HONEST, inbox)


@pytest.mark.parametrize(
    ("rule", "most"),
    [(eq.Krum(strict=True), 0), (eq.TrimmedMean(strict=True), 1)],
    ids=["krum", "trimmed-mean"],
)
def test_strict_limit(rule: Any, most: int) -> None:
    """For four messages Krum needs 4 >= 2 f + 3, so f = 0; the trimmed mean 2 f < 4, so f = 1."""
    lenient = dataclasses.replace(rule, strict=False)
    assert torch.equal(
        rule(OWN, HONEST, tolerated=most).model, lenient(OWN, HONEST, tolerated=most).model
    )
    with pytest.raises(ValueError, match="tolerated"):
        rule(OWN, HONEST, tolerated=most + 1)
    assert lenient(OWN, HONEST, tolerated=most + 1).model.isfinite().all()


@pytest.mark.parametrize(("own_update", "most"), [("included", 2), ("mixed", 1)])
def test_strict_learn_raises_early(own_update: Any, most: int) -> None:
    """Of four updates f = 1 can be trimmed, of five f = 2; the error comes after one exchange."""
    rule = eq.LEARN(own_update=own_update, strict=True)
    models = torch.randn(5, D)
    sent = []

    def exchange(messages: Tensor) -> eq.Inbox:
        sent.append(messages)
        return eq.Topology.complete(5).deliver(messages)

    with pytest.raises(ValueError, match="tolerated"):
        eq.run_exchanges(rule, models, exchange, t=1, total=9, update=models, tolerated=most + 1)
    assert len(sent) == 1


@pytest.mark.parametrize(
    "rule", [eq.Krum(strict=True), eq.TrimmedMean(strict=True)], ids=["krum", "trimmed-mean"]
)
def test_strict_counts_all_messages(rule: Any) -> None:
    """NaN cannot make a receiver raise; clients without neighbors need not tolerate any."""
    received = torch.cat([HONEST, ABSENT["nan"][None]])
    assert rule(OWN, received, tolerated=1).model.isfinite().all()
    assert torch.equal(rule(OWN, HONEST[:0], tolerated=1).model, OWN)


@pytest.mark.parametrize(
    "rule", [eq.Krum(strict=True), eq.TrimmedMean(strict=True)], ids=["krum", "trimmed-mean"]
)
def test_strict_in_a_batch(rule: Any) -> None:
    slots = torch.tensor([[1, 2, 3, 0, 1]] * 4)
    mask = torch.tensor([[True] * 5, [True] * 5, [True] + [False] * 4, [False] * 5])
    inbox = eq.Inbox(HONEST, slots, mask)
    with pytest.raises(ValueError, match="client 2"):
        rule(HONEST, inbox, tolerated=1)
    fair = eq.Inbox(HONEST, slots, mask & (torch.arange(4) != 2)[:, None])
    assert torch.equal(
        rule(HONEST, fair, tolerated=torch.tensor([1, 1, 0, 0])).model[2:], HONEST[2:]
    )


@pytest.mark.parametrize(
    "count", [1, torch.tensor(1), torch.tensor([1])], ids=["int", "scalar", "vector"]
)
def test_tolerated_types(count: Any) -> None:
    expected = eq.TrimmedMean(tolerated=1)(OWN, HONEST).model
    assert torch.equal(eq.TrimmedMean()(OWN, HONEST, tolerated=count).model, expected)
    assert not torch.equal(eq.TrimmedMean(tolerated=0)(OWN, HONEST).model, expected)


@every_rule
def test_ignored_inputs(rule: Any) -> None:
    others = {"update": OWN, "generator": torch.Generator(), "state": None}
    ignored = {name: value for name, value in others.items() if name not in rule.needs}
    out = rule(OWN, HONEST, **INPUTS, **ignored)
    assert torch.equal(out.model, rule(OWN, HONEST, **INPUTS).model)


@pytest.mark.parametrize("kind", ["sparse", "nested"])
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_not_dense(kind: str) -> None:
    received = HONEST.to_sparse() if kind == "sparse" else torch.nested.nested_tensor(list(HONEST))
    with pytest.raises(
        ValueError, match=f"received must be a floating-point tensor of shape .*{kind}"
    ):
        eq.FedAvg()(OWN, received)
    with pytest.raises(ValueError, match=f"bank must be a floating-point tensor of shape .*{kind}"):
        eq.Inbox(received, torch.zeros(1, 2, dtype=torch.int64))
    with pytest.raises(
        ValueError, match=f"model must be a floating-point tensor of shape .*{kind}"
    ):
        eq.mix(HONEST, received)


def test_out_expanded() -> None:
    with pytest.raises(
        ValueError, match="out must have memory for every element, found an expanded tensor"
    ):
        eq.Median()(OWN, HONEST, out=torch.empty(1).expand(D))


def test_out_of_one_client() -> None:
    own = OWN[None]
    inbox = eq.Inbox.of_one(HONEST)
    # A single row may have any stride: no other row can overlap it.
    out = torch.empty(D).as_strided((1, D), (0, 1))
    torch.testing.assert_close(
        eq.Median()(own, inbox, out=out).model, eq.Median()(own, inbox).model
    )


def test_loss_of_none_is_missing() -> None:
    with pytest.raises(TypeError, match="UBAR needs loss_of"):
        eq.UBAR(0)(OWN, HONEST, loss_of=None)  # type: ignore[arg-type]
    inbox = eq.Topology.complete(4).deliver(HONEST)
    with pytest.raises(TypeError, match="UBAR needs loss_of"):
        eq.PerClient([eq.UBAR(0)] * 4)(HONEST, inbox, loss_of=None)  # type: ignore[arg-type]


def test_per_client_errors() -> None:
    class Remembering(eq.FedAvg):
        def __call__(self, own: Any, received: Any, **inputs: Any) -> eq.Aggregated:  # type: ignore[override,misc]
            return dataclasses.replace(eq.FedAvg()(own, received), state={"round": OWN})

    graph = eq.Topology.complete(4)
    with pytest.raises(ValueError, match=r"rules must hold no state in PerClient, found \{'round'"):
        eq.PerClient([Remembering()] * 4)(HONEST, graph.deliver(HONEST))
    with pytest.raises(
        ValueError, match="rules must be rules with one exchange a round, found the class Median"
    ):
        eq.PerClient([eq.Median])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="rules must be one per client, found Median"):
        eq.PerClient(eq.Median())  # type: ignore[arg-type]
    with pytest.raises(
        ValueError, match="rules must hold at least one rule to draw from, found none"
    ):
        eq.PerClient.drawn([], 3)
    with pytest.raises(ValueError, match=r"generator must be a torch.Generator, found int"):
        eq.PerClient.drawn([eq.Median()], 3, 5)  # type: ignore[arg-type]


def test_not_numbers() -> None:
    for make, name in (
        (lambda: eq.SCClip(tau=None), "tau"),  # type: ignore[arg-type]
        (lambda: eq.LEARN(alpha="x"), "alpha"),  # type: ignore[arg-type]
        (lambda: eq.draw_malicious(10, ".2"), "share"),  # type: ignore[arg-type]
    ):
        with pytest.raises(ValueError, match=f"{name} must be"):
            make()


def test_out_rows_overlap() -> None:
    own = torch.ones(2, 10)
    out = torch.zeros(30).as_strided((2, 10), (2, 1))
    with pytest.raises(
        ValueError, match=r"out must have memory for every element, found .* strides \(2, 1\)"
    ):
        eq.Median()(own, eq.Topology.complete(2).deliver(own), out=out)
    turned = torch.zeros(10, 2).T
    assert torch.equal(
        eq.Median()(own, eq.Topology.complete(2).deliver(own), out=turned).model, own
    )


@pytest.mark.parametrize("value", ["1", 1 + 0j, 2**70, 0.5, True], ids=repr)
def test_tolerated_not_integer(value: Any) -> None:
    with pytest.raises(ValueError, match=r"tolerated must be whole numbers >= 0, found "):
        eq.Krum()(OWN, HONEST, tolerated=value)


def test_progress_not_callable() -> None:
    with pytest.raises(ValueError, match=r"progress must be a function of t and total, found 0\.5"):
        eq.Balance(progress=0.5)  # type: ignore[arg-type]
