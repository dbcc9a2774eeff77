"""The simulator is Algorithm 3 of the BALANCE paper, in every setting of its sections 6 and 7."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import equipoise as eq
from equipoise import attacks
from equipoise._utils.rng import stream

# Most trainers here are functions of the models and the round.
pytestmark = pytest.mark.filterwarnings("ignore:trainer has no state_dict")

N, DEGREE, D, ROUNDS = 10, 6, 7, 5
MALICIOUS = [0, 1]
GRAPH = eq.Topology.regular(N, DEGREE, seed=1, malicious=MALICIOUS)
GOALS = 1 + 0.1 * torch.randn(N, D, generator=stream(0, "goals"), dtype=torch.float64)


def pull(models: Tensor, t: int) -> Tensor:
    """Local training on a quadratic loss: half of the way to the client's own optimum."""
    return models + 0.5 * (GOALS - models)


def losses(t: int) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda models, clients: (models - GOALS[clients]).square().sum(1)


def distance(models: Tensor) -> Tensor:
    return (models - GOALS.mean(0)).norm(dim=1)


def simulator(rule: Any = None, **options: Any) -> eq.Simulator:
    """Small, quick and in float64; malicious clients send noise if there is a rule to fool."""
    settings: dict[str, Any] = {
        "trainer": pull,
        "topology": GRAPH,
        "models": torch.ones(N, D, dtype=torch.float64),
        "malicious": MALICIOUS,
        "metrics": {"distance": distance},
        "total": ROUNDS,
        "loss_of": losses,
    }
    return eq.Simulator(rule=rule, **settings | options)


def noisy(rule: Any, **options: Any) -> eq.Simulator:
    return simulator(rule, attack=attacks.Gaussian(std=100.0), **options)


# Algorithm 3, with loops


def slow_round(
    models: np.ndarray, t: int, graph: eq.Topology, aggregate: Callable[..., Any], alpha: float
) -> np.ndarray:
    """Train, send, aggregate, mix: client by client, as the paper writes it."""
    trained = np.stack([w + 0.5 * (goal - w) for w, goal in zip(models, GOALS.numpy(), strict=True)])
    after = []
    for i in range(len(models)):
        received = [trained[j] for j in graph.neighbors(i).tolist()]
        after.append(alpha * trained[i] + (1 - alpha) * aggregate(trained[i], received, t))
    return np.stack(after)


def accepted_mean(own: np.ndarray, received: list[np.ndarray], t: int) -> np.ndarray:
    limit = 0.3 * math.exp(-t / ROUNDS) * np.linalg.norm(own)
    accepted = [w for w in received if np.linalg.norm(own - w) <= limit]
    return np.mean(accepted, axis=0) if accepted else own


@pytest.mark.parametrize(
    ("rule", "aggregate"),
    [
        (eq.FedAvg(), lambda own, received, t: np.mean(received, axis=0)),
        (eq.Median(), lambda own, received, t: np.median(received, axis=0)),
        (eq.Balance(), accepted_mean),
    ],
    ids=["FedAvg", "Median", "Balance"],
)
@pytest.mark.parametrize("alpha", [0.5, 0.1])
def test_rounds_are_those_of_algorithm_3(rule: Any, aggregate: Any, alpha: float) -> None:
    models = np.ones((N, D))
    run = simulator(rule, alpha=alpha)
    for t in range(ROUNDS):
        models = slow_round(models, t, GRAPH, aggregate, alpha)
        run.step()
        np.testing.assert_allclose(run.models.numpy(), models, rtol=1e-12)


# What is sent


def test_malicious_clients_lie_and_others_cannot() -> None:
    run = simulator(eq.FedAvg(), attack=attacks.Zero())
    run.step()
    trained = pull(torch.ones(N, D, dtype=torch.float64), 0)
    trained_lies = trained.clone()
    trained_lies[MALICIOUS] = 0
    for i in range(N):
        heard = trained_lies[GRAPH.neighbors(i)].mean(0)
        torch.testing.assert_close(run.models[i], 0.5 * trained[i] + 0.5 * heard)


def test_an_attack_without_malicious_clients_does_nothing() -> None:
    quiet = simulator(eq.FedAvg(), malicious=None)
    attacked = simulator(eq.FedAvg(), malicious=[], attack=attacks.Gaussian())
    assert quiet.run() == attacked.run()


def test_lies_are_drawn_anew_in_every_round() -> None:
    class Heard:
        def __init__(self) -> None:
            self.lies: list[Tensor] = []

        def forge(self, known: attacks.Knowledge) -> eq.Lies | None:
            lies = attacks.Gaussian().forge(known)
            assert lies is not None
            self.lies.append(lies.rows)
            return lies

    heard = Heard()
    simulator(eq.FedAvg(), attack=heard).run()
    assert len(heard.lies) == ROUNDS
    assert not torch.equal(heard.lies[0], heard.lies[1])


def test_the_adversary_knows_the_round() -> None:
    class Spy:
        def forge(self, known: attacks.Knowledge) -> None:
            seen.append((known.inputs["t"], known.inputs["total"], known.rule))
            torch.testing.assert_close(known.models, pull(known.previous, 0))

    seen: list[Any] = []
    simulator(eq.Balance(), attack=Spy()).run()
    assert seen == [(t, ROUNDS, eq.Balance()) for t in range(ROUNDS)]


class Greedy:
    def forge(self, known: attacks.Knowledge) -> None:
        torch.rand(7, generator=known.inputs["generator"])


@pytest.mark.parametrize("attack", [attacks.Zero(), attacks.Adaptive(), attacks.Adaptive("literal"), Greedy()])
def test_what_victims_draw_is_theirs_however_often_an_attack_asks(attack: Any) -> None:
    drawn: list[float] = []

    def drawing(own: Tensor, received: Any, *, generator: torch.Generator, **inputs: Any) -> eq.Aggregated:
        drawn.append(float(torch.rand((), generator=generator)))
        return eq.FedAvg()(own, received)

    run = simulator(drawing, attack=attack)
    for t in range(ROUNDS):
        run.step()
        assert drawn[-1] == float(torch.rand((), generator=stream(0, "aggregation", t)))


def test_bytes_count_exchanges_and_neighbours() -> None:
    plain, talkative = simulator(eq.FedAvg()).run(), simulator(eq.LEARN()).run()
    assert plain.series("bytes")[1] == [DEGREE * D * 8] * ROUNDS
    assert talkative.series("bytes")[1] == [DEGREE * D * 8 * (math.ceil(math.log2(t + 1)) + 1) for t in range(ROUNDS)]
    assert simulator(eq.FedAvg(), topology=GRAPH.with_self_loops()).run().series("bytes")[1][0] == DEGREE * D * 8
    star = eq.Topology.from_edges(N, [(0, i) for i in range(1, N)])
    values = simulator(eq.FedAvg(), topology=star).run()[0].values
    assert (values["bytes"], values["bytes_max"]) == (2 * (N - 1) / N * D * 8, (N - 1) * D * 8)


def test_acceptance_rates() -> None:
    history = noisy(eq.Balance(gamma=0.5)).run()
    assert history.series("accepted_benign")[1] == [1.0] * ROUNDS
    assert history.series("accepted_malicious")[1] == [0.0] * ROUNDS
    with pytest.raises(ValueError, match="accepted_benign"):
        noisy(eq.Median()).run().series("accepted_benign")


def test_every_phase_is_timed() -> None:
    seconds = noisy(eq.Balance()).run()[-1].seconds
    assert set(seconds) == {"train", "forge", "deliver", "aggregate", "mix", "bookkeeping", "measure"}
    assert all(value > 0 for value in seconds.values())


def test_the_time_of_aggregation_is_that_of_the_rule_alone() -> None:
    class Slow:
        def forge(self, known: attacks.Knowledge) -> None:
            time.sleep(0.05)

    rounds = [one.seconds for one in simulator(eq.FedAvg(), attack=Slow()).run()]
    assert min(seconds["forge"] for seconds in rounds) >= 0.05
    assert min(seconds["aggregate"] for seconds in rounds) < 0.05  # in one of them nothing else came between


# The settings of sections 6 and 7


def test_alpha_per_client() -> None:
    """Case I."""
    alpha = torch.linspace(0, 1, N, dtype=torch.float64)
    run = simulator(eq.FedAvg(), alpha=alpha)
    run.step()
    trained = pull(torch.ones(N, D, dtype=torch.float64), 0)
    heard = torch.stack([trained[GRAPH.neighbors(i)].mean(0) for i in range(N)])
    torch.testing.assert_close(run.models, alpha[:, None] * trained + (1 - alpha[:, None]) * heard)


def test_alpha_redrawn_each_round() -> None:
    """Case II."""
    drawn: list[Tensor] = []

    def draw(t: int, generator: torch.Generator) -> Tensor:
        drawn.append(torch.rand(N, generator=generator))
        return drawn[-1]

    history = simulator(eq.FedAvg(), alpha=eq.EachRound(draw)).run()
    assert len(drawn) == ROUNDS
    assert not torch.equal(drawn[0], drawn[1])
    assert history == simulator(eq.FedAvg(), alpha=lambda t: drawn[t]).run()


@pytest.mark.filterwarnings("ignore::equipoise.GuaranteeWarning")
def test_a_rule_per_client() -> None:
    """Case III: with equal rules it is that rule, and every client follows its own."""
    assert noisy(eq.PerClient([eq.Median()] * N)).run().worst("distance") == noisy(eq.Median()).run().worst("distance")
    mixed = eq.PerClient.drawn([eq.Median(), eq.Balance(), eq.Krum(), eq.UBAR()], N, stream(0, "rules"))
    assert len(set(mixed.rules)) > 1
    assert noisy(mixed).run().worst("distance")[1][-1] < 1


def test_a_rule_redrawn_each_round() -> None:
    """Case IV."""
    rules: list[eq.PerClient] = []

    def draw(t: int, generator: torch.Generator) -> eq.PerClient:
        rules.append(eq.PerClient.drawn([eq.Median(), eq.Balance(), eq.TrimmedMean()], N, generator))
        return rules[-1]

    history = noisy(eq.EachRound(draw)).run()
    assert len(set(rules)) == ROUNDS
    assert history.worst("distance")[1][-1] < 1


def test_own_among_what_is_aggregated() -> None:
    """Instead of alpha, as Pasquini et al. do."""
    run = simulator(eq.FedAvg(), topology=GRAPH.with_self_loops(), alpha=0.0)
    run.step()
    trained = pull(torch.ones(N, D, dtype=torch.float64), 0)
    for i in range(N):
        torch.testing.assert_close(run.models[i], trained[[i, *GRAPH.neighbors(i).tolist()]].mean(0))


def test_different_initial_models() -> None:
    """Each its own: BALANCE accepts nobody, and everybody trains alone, as its inequality says."""
    start = torch.randn(N, D, generator=stream(0, "start"), dtype=torch.float64)
    start = 100 * start / start.norm(dim=1, keepdim=True)
    run, alone = (simulator(rule, models=start, total=3) for rule in (eq.Balance(gamma=0.01), None))
    assert run.run().series("accepted_benign")[1][0] == 0
    alone.run()
    torch.testing.assert_close(run.models, alone.models)


@pytest.mark.parametrize("p", [0.2, 1.0])
def test_clients_that_disconnect(p: float) -> None:
    run = noisy(eq.Balance(), topology=eq.EachRound(lambda t, generator: GRAPH.drop(p, generator)))
    history = run.run()
    if p == 1:
        alone = simulator(None)
        alone.run()
        torch.testing.assert_close(run.models, alone.models)
        assert history.series("bytes")[1] == [0] * ROUNDS
    else:
        assert len(set(history.series("bytes")[1])) > 1


def test_a_graph_that_is_a_function_of_the_round() -> None:
    graphs = [eq.Topology.ring(N), eq.Topology.complete(N)]
    history = simulator(eq.FedAvg(), topology=lambda t: graphs[t % 2]).run()
    assert history.series("bytes")[1] == [(2 if t % 2 == 0 else N - 1) * D * 8 for t in range(ROUNDS)]


@pytest.mark.parametrize("half", ["first", "second"])
def test_an_attack_in_one_half_of_the_rounds(half: str) -> None:
    window = attacks.Window(attacks.Gaussian(std=1e3), *((0, 3) if half == "first" else (3, 6)))
    history = simulator(eq.FedAvg(), attack=window, total=6).run()
    hurt = [error > 10 for error in history.worst("distance")[1]]
    assert hurt[:3] == [half == "first"] * 3
    assert hurt[3:] == [True] * 3  # what the first half did is not undone in three rounds


@pytest.mark.parametrize("share", [0.0, 0.3, 0.8])
def test_any_fraction_of_malicious_clients(share: float) -> None:
    malicious = eq.draw_malicious(N, share, seed=3)
    assert len(malicious) == round(share * N)
    history = noisy(eq.Balance(), malicious=malicious, topology=eq.Topology.complete(N)).run()
    assert history.malicious == tuple(malicious.tolist())
    assert history.worst("distance")[1][-1] < 1


def test_local_training_only() -> None:
    run = simulator(None)
    history = run.run()
    torch.testing.assert_close(run.models, GOALS + (1 - GOALS) * 0.5**ROUNDS)
    assert "bytes" not in history[0].values


@pytest.mark.filterwarnings("ignore::equipoise.GuaranteeWarning")
@pytest.mark.parametrize("rule", [eq.LEARN(), eq.UBAR(), eq.FLTrust(), eq.SCClip(), eq.BalanceMedian(), eq.Krum()])
@pytest.mark.parametrize("attack", [attacks.Gaussian(), attacks.LIE(), attacks.SignFlip(), attacks.Dissensus()])
def test_every_rule_runs_under_every_kind_of_attack(rule: Any, attack: Any) -> None:
    history = simulator(rule, attack=attack).run()
    assert len(history) == ROUNDS
    assert history.worst("distance")[1][-1] < 2


@pytest.mark.parametrize("name", ["models", "previous"])
def test_an_attack_cannot_change_the_models_of_others(name: str) -> None:
    class Negated:
        def forge(self, known: attacks.Knowledge) -> eq.Lies:
            lies = getattr(known, name)
            lies *= -1
            return eq.Lies.per_sender(lies)

    run = simulator(eq.Balance(), attack=Negated())
    with pytest.raises(ValueError, match=f"attack modified {name} in place; clone it first"):
        run.step()
    assert (run.t, len(run.history)) == (0, 0)


@pytest.mark.parametrize("name", ["models", "previous"])
@pytest.mark.parametrize("write", [np.negative, np.sort, lambda x: x + 1e-6])
def test_writes_through_numpy_are_noticed(name: str, write: Any) -> None:
    class Spoiling:
        def forge(self, known: attacks.Knowledge) -> None:
            values = getattr(known, name).numpy()
            values[...] = write(values)

    run = simulator(
        eq.FedAvg(),
        attack=Spoiling(),
        models=torch.randn(N, 7000),
        trainer=lambda models, t: models + 1,
        metrics={},
    )
    with pytest.raises(ValueError, match=f"attack modified {name} in place; clone it first"):
        run.step()


def test_an_attack_cannot_change_the_graph() -> None:
    class Rewiring:
        def forge(self, known: attacks.Knowledge) -> None:
            known.topology.senders.numpy()[0] = 0

    with pytest.raises(ValueError, match=r"attack modified topology\.senders in place"):
        simulator(eq.FedAvg(), attack=Rewiring(), topology=eq.Topology.complete(N)).step()


def test_an_attack_changes_only_copies_of_small_inputs() -> None:
    class Meddling:
        def forge(self, known: attacks.Knowledge) -> None:
            known.inputs["tolerated"].zero_()
            known.malicious[:] = True

    tolerated = torch.ones(N, dtype=torch.int64)
    run, honest = (simulator(eq.TrimmedMean(), attack=attack, tolerated=tolerated) for attack in (Meddling(), None))
    run.run()
    honest.run()
    assert run.malicious.nonzero().flatten().tolist() == MALICIOUS
    assert tolerated.sum() == N
    assert torch.equal(run.models, honest.models)


def test_learn_is_attacked_in_all_of_its_exchanges() -> None:
    """Updates start from nothing, models from the models before training; and it is known what updates are of."""

    class Spy:
        def forge(self, known: attacks.Knowledge) -> None:
            updates = known.origin is not None and torch.equal(known.origin, run.models)
            assert updates == bool((known.previous == 0).all())
            seen.append((known.inputs["t"], updates))

    seen: list[tuple[int, bool]] = []
    run = simulator(eq.LEARN(), attack=Spy(), total=3)
    run.run()
    assert seen == [(0, False), (1, True), (1, False), (2, True), (2, True), (2, False)]


def test_two_runs_of_one_trainer_with_momentum_are_the_same() -> None:
    """What a trainer remembers belongs to a run."""
    x, y = torch.randn(6, 2), torch.tensor([0, 1, 2, 0, 1, 2])
    model = nn.Linear(2, 3)
    trainer = eq.LocalSGD(model, nn.functional.cross_entropy, [(x, y)] * 3, lr=0.1, momentum=0.9)
    models = [
        eq.Simulator(trainer, eq.Topology.complete(3), eq.Median(), eq.flatten(model).repeat(3, 1), total=4)
        for _ in range(2)
    ]
    for one in models:
        one.run()
    assert torch.equal(models[0].models, models[1].models)


class Counter(nn.Module):
    """A trainer that is a module, whose state_dict is not a copy but the buffer itself."""

    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, models: Tensor, t: int) -> Tensor:
        self.count += 1
        return models + self.count


def test_a_round_that_fails_leaves_no_trace_in_a_trainer_that_is_a_module() -> None:
    def interrupted(models: Tensor) -> Tensor:
        if not seen:
            seen.append(True)
            raise KeyboardInterrupt
        return models[:, 0]

    seen: list[bool] = []
    trainer = Counter()
    run = eq.Simulator(
        trainer, eq.Topology.complete(3), None, torch.zeros(3, 1), total=3, metrics={"first": interrupted}
    )
    with pytest.raises(KeyboardInterrupt):
        run.run()
    assert (trainer.count, run.t) == (0, 0)
    run.run()
    assert run.models.flatten().tolist() == [6.0] * 3


def test_a_trainer_that_cannot_be_set_back_does_not_hide_what_went_wrong() -> None:
    class Forgetful:
        def __call__(self, models: Tensor, t: int) -> Tensor:
            raise KeyboardInterrupt

        def state_dict(self) -> dict[str, Tensor]:
            return {}

    with pytest.raises(KeyboardInterrupt):
        simulator(eq.Median(), trainer=Forgetful()).run()


def test_a_first_round_that_fails_does_not_decide_how_many_there_will_be() -> None:
    run = simulator(eq.Median(), total=None, metrics={"wrong": lambda models: 1})
    with pytest.raises(ValueError, match=r"metrics\['wrong'\] must return"):
        run.run(3)
    run.metrics = {}
    assert len(run.run(4)) == 4
    assert run.total == 4


def test_who_is_malicious_does_not_change_with_the_mask_that_said_so() -> None:
    mask = torch.zeros(N, dtype=torch.bool)
    mask[MALICIOUS] = True
    run = noisy(eq.Median(), malicious=mask)
    mask.logical_not_()
    assert run.malicious.nonzero().flatten().tolist() == MALICIOUS


def test_numbers_of_numpy_are_numbers(tmp_path: Path) -> None:
    run = simulator(eq.Median(), total=None, evaluate_every=np.int64(2), seed=np.int64(3))
    run.run(np.int64(4), checkpoint=tmp_path / "run")
    assert [one.t for one in run.history.evaluated] == [1, 3]
    again = simulator(eq.Median(), total=np.int64(4), evaluate_every=2, seed=3)
    again.load(tmp_path / "run")
    assert torch.equal(again.models, run.models)


def test_a_new_checkpoint_does_not_change_how_rounds_are_counted(tmp_path: Path) -> None:
    run = simulator(eq.Median(), total=9)
    run.run(4)
    assert len(run.run(3, checkpoint=tmp_path / "run")) == 7
    assert len(run.run(8, checkpoint=tmp_path / "run")) == 8  # of a file that is there, from the start


def test_tolerated_is_what_each_client_hears_this_round() -> None:
    def tolerated(**options: Any) -> Any:
        class Asked:
            def __call__(self, own: Tensor, received: Any, **inputs: Any) -> eq.Aggregated:
                seen.append(inputs["tolerated"])
                return eq.FedAvg()(own, received)

        seen: list[Any] = []
        simulator(Asked(), total=1, **options).run()
        return seen[0]

    assert tolerated().tolist() == [0] * N
    assert tolerated(attack=attacks.Zero()).tolist() == GRAPH.malicious_neighbors(MALICIOUS).tolist()
    assert tolerated(attack=attacks.Zero(), tolerated=3) == 3
    ring = eq.Topology.ring(N)
    assert (
        tolerated(attack=attacks.Zero(), topology=lambda t: ring).tolist()
        == ring.malicious_neighbors(MALICIOUS).tolist()
    )


@pytest.mark.filterwarnings("ignore::equipoise.GuaranteeWarning")
@pytest.mark.parametrize("attack", [None, attacks.Zero()], ids=["no attack", "Zero"])
@pytest.mark.parametrize("rule", [eq.Krum, eq.TrimmedMean], ids=lambda rule: rule.__name__)
def test_what_a_rule_was_made_with_goes_before_the_true_number(rule: Any, attack: Any) -> None:
    def models(rule: Any, **options: Any) -> Tensor:
        run = simulator(rule, attack=attack, total=3, **options)
        run.run()
        return run.models

    expected = models(rule(), tolerated=1)
    assert torch.equal(models(rule(tolerated=1)), expected)
    assert not torch.equal(models(rule()), expected)
    assert torch.equal(models(rule(tolerated=3), tolerated=1), expected)
    assert torch.equal(models(eq.PerClient([rule(tolerated=1)] * N)), expected)


@pytest.mark.parametrize("each", [False, True], ids=["one rule", "PerClient"])
def test_a_rule_of_ones_own_is_told_what_training_changed(each: bool) -> None:
    def halved(own: Tensor, received: eq.Inbox, *, update: Tensor, **_: Any) -> eq.Aggregated:
        return eq.Aggregated(own - update / 2)

    run = simulator(eq.PerClient([halved] * N) if each else halved, alpha=0.0)
    before = run.models
    run.step()
    torch.testing.assert_close(run.models, (before + pull(before, 0)) / 2)


# Runs


def test_a_trainer_that_writes_to_its_models_is_an_error() -> None:
    """Attacks on updates compare with what was there before, and a round that fails is to leave no trace."""

    def trainer(models: Tensor, t: int) -> Tensor:
        models += 1
        return models

    with pytest.raises(ValueError, match="trainer modified models in place; clone it first"):
        simulator(eq.Median(), trainer=trainer).step()


def test_clients_that_accept_nobody_are_counted() -> None:
    """Three benign strangers among others, who believe each other."""
    models = torch.ones(N, D, dtype=torch.float64)
    strangers = [i for i in range(N) if i not in MALICIOUS][:3]
    models[strangers] *= torch.tensor([10.0, 100.0, 1000.0], dtype=torch.float64)[:, None]
    run = simulator(eq.Balance(), trainer=lambda models, t: models, topology=eq.Topology.complete(N), models=models)
    history = run.run()
    summary = history.summary()
    assert (summary["isolated"], summary["alone"]) == (3, 0)
    assert "3 benign clients accepted no message in the last round: check initial models" in str(history)
    assert "isolated" not in simulator(eq.Median()).run().summary()
    assert simulator(eq.FedAvg()).run().summary()["isolated"] == 0


def test_a_run_depends_on_its_seed_alone() -> None:
    def run(seed: int, torch_seed: int) -> eq.History:
        torch.manual_seed(torch_seed)
        return noisy(eq.FedAvg(), topology=eq.EachRound(lambda t, g: GRAPH.drop(0.3, g)), seed=seed).run()

    assert run(1, torch_seed=3) == run(1, torch_seed=4)
    assert run(1, torch_seed=3) != run(2, torch_seed=3)


def test_steps_are_the_rounds_of_a_run() -> None:
    whole, steps = noisy(eq.Balance()), noisy(eq.Balance())
    history = whole.run()
    for t in range(ROUNDS):
        assert steps.step() == history[t]
    assert torch.equal(whole.models, steps.models)


def test_a_run_in_two_parts() -> None:
    run = noisy(eq.Balance())
    run.run(2)
    assert (run.t, len(run.history)) == (2, 2)
    run.run()
    assert run.history == noisy(eq.Balance()).run()


def test_metrics_are_taken_when_asked_and_at_the_end() -> None:
    assert [one.t for one in simulator(eq.FedAvg(), evaluate_every=2).run().evaluated] == [1, 3, 4]
    assert [one.t for one in simulator(eq.FedAvg(), evaluate_every={0, 3}).run().evaluated] == [0, 3, 4]


def test_a_run_that_diverges_goes_on_and_says_so() -> None:
    run = simulator(eq.FedAvg(), attack=attacks.NonFinite(), keep_nonfinite=True)
    history = run.run()
    hit = [i for i in range(N) if i not in MALICIOUS and GRAPH.malicious_neighbors(MALICIOUS)[i]]
    assert [client for client, t in history.diverged.items() if t == 0] == hit
    assert math.isnan(history.worst("distance")[1][-1])
    assert "diverged             8, the first in round 0" in str(history)


def test_clients_that_accept_nobody_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    strangers = torch.randn(N, D, dtype=torch.float64)
    run = simulator(eq.Balance(gamma=0.01), models=strangers)
    history = run.run(progress=True)
    assert "no message accepted" in capsys.readouterr().err
    assert history.summary()["alone"] == len(history)
    (line,) = [line for line in str(history).splitlines() if line.startswith("alone")]
    assert "5 of 5 rounds, in which benign clients accepted no message: check initial models, learning rate" in line
    assert simulator(eq.FedAvg(), models=strangers).run().summary()["alone"] == 0


def test_the_given_models_are_not_touched() -> None:
    start = torch.ones(N, D, dtype=torch.float64)
    noisy(eq.FedAvg(), models=start).run()
    assert (start == 1).all()


def test_a_failed_round_changes_nothing() -> None:
    def fails(models: Tensor, t: int) -> Tensor:
        if t == 3 and broken:
            raise KeyboardInterrupt
        return pull(models, t)

    broken = [True]
    run = noisy(eq.Balance(), trainer=fails)
    with pytest.raises(KeyboardInterrupt):
        run.run()
    assert (run.t, len(run.history)) == (3, 3)
    broken.clear()
    assert run.run() == noisy(eq.Balance()).run()


def test_progress_shows_the_worst_error(capsys: pytest.CaptureFixture[str]) -> None:
    history = noisy(eq.Balance()).run(progress=False)
    assert capsys.readouterr().err == ""
    noisy(eq.Balance()).run(progress=True)
    assert f"round 5/5 [########################] 0:00 worst distance {history.worst('distance')[1][-1]:.4g}" in (
        capsys.readouterr().err
    )


# Errors


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"models": torch.ones(N)}, r"models must be a floating-point tensor of shape \(n, d\), found float32 \(10,\)"),
        ({"topology": eq.Topology.ring(4)}, "topology must be a Topology of 10 clients, as models has, found 4 cl"),
        ({"topology": lambda t: "ring"}, "topology must be a Topology of 10 clients, as models has, found str"),
        ({"rule": "Balance"}, r"rule must be a rule such as Median\(\), found str"),
        ({"trainer": lambda models, t: models[:3]}, r"trainer must return models like float64 \(10, 7\), found .*3, 7"),
        ({"malicious": [10]}, "malicious must be from 0 to 9, found 10"),
        ({"alpha": 1.5}, r"alpha must be in \[0, 1\], found 1.5"),
        ({"total": 0}, "total must be an integer at least 1, found 0"),
        ({"evaluate_every": 0}, "evaluate_every must be an integer at least 1, found 0"),
        ({"evaluate_every": 2.0}, "evaluate_every must be an integer at least 1, found 2.0"),
        ({"evaluate_every": None}, "evaluate_every must be an integer at least 1, found None"),
        ({"seed": -1}, "seed must be an integer at least 0, found -1"),
        ({"metrics": {"a": 3}}, r"metrics\['a'\] must be a function, found int"),
        ({"metrics": {1: distance}}, "metrics must be functions by name, found 1 for a name"),
        ({"trainer": None}, "trainer must be a function, found NoneType"),
        ({"loss_of": 3}, "loss_of must be a function, found int"),
        ({"attack": attacks.LabelFlip({3: 5})}, "trainer must have a method poisoned.*for LabelFlip.*found function"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_bad_arguments(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        simulator(**{"rule": eq.FedAvg()} | options).run()


def test_rounds_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match="rounds must end by total = 5, found 6 from round 0"):
        simulator(eq.FedAvg()).run(6)
    with pytest.raises(ValueError, match="rounds must be given, here or as total of the Simulator"):
        simulator(eq.FedAvg(), total=None).run()
    assert len(simulator(eq.Balance(), total=None).run(3)) == 3


def test_a_rule_that_needs_losses_says_so() -> None:
    with pytest.raises(TypeError, match="UBAR needs loss_of"):
        simulator(eq.UBAR(), loss_of=None).run()


# With real training


@pytest.fixture(scope="module")
def digits() -> tuple[eq.data.Dataset, list[tuple[Tensor, Tensor]]]:
    dataset = eq.data.digits()
    return dataset, dataset.split(eq.data.by_group(dataset, 20, p=0.5, seed=0))


def train_digits(
    digits: tuple[eq.data.Dataset, list[tuple[Tensor, Tensor]]],
    rule: Any,
    attack: Any = None,
    rounds: int = 150,
    **options: Any,
) -> eq.History:
    dataset, clients = digits
    malicious = eq.draw_malicious(20, 0.2, seed=0)
    model = eq.models.logistic_regression(64, 10)
    run = eq.Simulator(
        eq.LocalSGD(model, nn.functional.cross_entropy, clients, lr=0.1, batch_size=16),
        eq.Topology.regular(20, 10, seed=0, malicious=malicious),
        rule,
        eq.flatten(model).expand(20, -1),
        attack=attack,
        malicious=malicious,
        metrics={"error": eq.metrics.ErrorRate(model, dataset.test_x, dataset.test_y)},
        evaluate_every=rounds // 6,
        **options,
    )
    return run.run(rounds)


END_TO_END = {
    "Gaussian": attacks.Gaussian(),
    "KrumAttack": attacks.KrumAttack(),
    "TrimAttack": attacks.TrimAttack(),
    "SignFlip": attacks.SignFlip(space="model"),
    "Dissensus": attacks.Dissensus(epsilon=30.0),
}


@pytest.fixture(scope="module")
def undisturbed(digits: Any) -> float:
    return train_digits(digits, eq.FedAvg()).summary()["max_error"]


def test_digits_are_learnt(undisturbed: float) -> None:
    assert undisturbed < 0.2


@pytest.mark.parametrize("attack", END_TO_END)
def test_balance_under_attack_stays_near_fedavg_without(attack: str, digits: Any, undisturbed: float) -> None:
    """And FedAvg under attack learns nothing: after 60 rounds without one, its clients get at most 30 % wrong."""
    safe = train_digits(digits, eq.Balance(), END_TO_END[attack])
    unsafe = train_digits(digits, eq.FedAvg(), END_TO_END[attack], rounds=60)
    assert safe.summary()["max_error"] < undisturbed + 0.06
    assert unsafe.summary()["max_error"] > 0.8
