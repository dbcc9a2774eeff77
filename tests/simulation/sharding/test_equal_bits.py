"""A simulation in several processes has the bits of one in a single process."""

from __future__ import annotations

import dataclasses
from dataclasses import is_dataclass
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

import equipoise as eq
from tests.simulation.sharding.pool import SIZE, Pool
from tests.simulation.sharding.small_shards import EVERY_ATTACK, EVERY_RULE, Setting, played

pytestmark = pytest.mark.filterwarnings("ignore::equipoise.GuaranteeWarning")
# Without these, torch chooses the order of its sums by the shape of the whole problem.
needs_kernels = pytest.mark.skipif(not eq.native_available, reason="holds for the C kernels")


def check(pool: Pool, setting: Setting, *sizes: int) -> None:
    models, rounds = played(None, setting)
    if not eq.native_available:
        for ranks in sizes:
            found, _ = pool.call(played, setting, ranks=ranks)[0]
            torch.testing.assert_close(found, models, rtol=1e-3, atol=1e-5)
        return
    for ranks in sizes:
        (found, history), *others = pool.call(played, setting, ranks=ranks)
        assert torch.equal(found.view(torch.int32), models.view(torch.int32)), ranks
        assert history == rounds, ranks
        for other, theirs in others:
            assert torch.equal(other.view(torch.int32), models.view(torch.int32))
            # The values of clients are kept by the first rank.
            assert theirs == [dataclasses.replace(record, clients={}) for record in rounds]


def test_every_public_rule_and_attack_is_listed() -> None:
    rules = {type(Setting(rule=name).simulator().rule) for name in EVERY_RULE}
    assert rules >= set(filter(is_dataclass, vars(eq.rules).values()))
    attacks = set(map(type, EVERY_ATTACK.values()))
    public = filter(is_dataclass, vars(eq.attacks).values())
    assert attacks >= {x for x in public if hasattr(x, "forge") or hasattr(x, "poison")}


@needs_kernels
@pytest.mark.parametrize("rule", EVERY_RULE)
def test_every_rule(pool: Pool, rule: str) -> None:
    check(pool, Setting(rule=rule, attack="LIE", gossip="metropolis"), 3)


@needs_kernels
@pytest.mark.parametrize("attack", EVERY_ATTACK)
def test_every_attack(pool: Pool, attack: str) -> None:
    check(pool, Setting(rule="median", attack=attack), 3)


@pytest.mark.parametrize("graph", ["complete", "ring", "directed", "loops", "dropping"])
@pytest.mark.parametrize("rule", ["balance", "learn-included"])
def test_every_graph(pool: Pool, rule: str, graph: str) -> None:
    check(pool, Setting(rule=rule, graph=graph), 1, 2, 3, 4)


@needs_kernels
@pytest.mark.parametrize(("rule", "model", "n"), [("krum", "tanh", 12), ("bulyan", "linear", 5)])
def test_nan_that_is_kept(pool: Pool, rule: str, model: str, n: int) -> None:
    """Several lies are one row of NaN, which has distance 0 to itself in every process."""
    poisoned = Setting(rule=rule, model=model, n=n, attack="NonFinite", keep_nonfinite=True)
    check(pool, dataclasses.replace(poisoned, graph="random", rounds=2, seed=0), 1, 2, 3, 4)


def played_over_network(group: Any, setting: Setting) -> tuple[Tensor, list[eq.Round]]:
    """Without the memory that processes on one machine share."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EQUIPOISE_SHARED_MEMORY", "0")
        return played(group, setting)


@pytest.mark.parametrize("graph", ["directed", "dropping"])
def test_rows_over_the_network(pool: Pool, graph: str) -> None:
    setting = Setting(rule="learn-included", graph=graph, partition="scattered")
    models, rounds = pool.call(played_over_network, setting, ranks=4)[0]
    expected, history = pool.call(played, setting, ranks=4)[0]
    torch.testing.assert_close(models, expected, rtol=0, atol=0)
    assert rounds == history


@pytest.mark.parametrize("model", ["wide", "regression", "tanh", "random", "convolution"])
def test_every_model(pool: Pool, model: str) -> None:
    check(pool, Setting(model=model, n=17, momentum=0.9, steps=2, attack="feature-noise"), 2, 4)


@pytest.mark.parametrize("partition", ["scattered", "bisection", "modularity"])
def test_every_partition(pool: Pool, partition: str) -> None:
    check(pool, Setting(partition=partition, alpha="each", rule="per-client"), 2, 4)


def is_possible(setting: Setting) -> bool:
    """Whether one process can run it, too."""
    asks_rule = setting.attack.startswith(("Adaptive", "Tuned"))
    asks_exchanges = asks_rule and hasattr(EVERY_RULE[setting.rule], "exchanges")
    flips_numbers = setting.attack in ("label-flip", "backdoor") and setting.model == "regression"
    divides_later = setting.graph == "dropping" and setting.partition in ("bisection", "modularity")
    too_many_subsets = setting.rule in ("mda", "smea") and setting.n > 14
    return not (asks_exchanges or flips_numbers or divides_later or too_many_subsets)


settings_drawn = st.builds(
    Setting,
    rule=st.sampled_from(sorted(EVERY_RULE)),
    attack=st.sampled_from(sorted(EVERY_ATTACK)),
    n=st.integers(5, 20),
    graph=st.sampled_from(["random", "complete", "ring", "directed", "loops", "dropping"]),
    model=st.sampled_from(["linear", "regression", "tanh", "random", "convolution"]),
    alpha=st.sampled_from(["half", "each", "drawn"]),
    gossip=st.sampled_from([None, "metropolis", "lazy", "laplacian", "uniform"]),
    momentum=st.sampled_from([0.0, 0.9]),
    steps=st.integers(1, 3),
    partition=st.sampled_from(["contiguous", "scattered", "bisection", "modularity"]),
    train_malicious=st.booleans(),
    keep_nonfinite=st.booleans(),
    rounds=st.integers(1, 4),
    seed=st.integers(0, 2**20),
).filter(is_possible)
shared = settings(
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


@needs_kernels
@settings(shared, max_examples=25)
@given(setting=settings_drawn, ranks=st.integers(1, SIZE))
def test_any_setting(pool: Pool, setting: Setting, ranks: int) -> None:
    check(pool, setting, ranks)


@needs_kernels
@pytest.mark.exhaustive
@settings(shared, max_examples=300)
@given(setting=settings_drawn)
def test_any_setting_and_number_of_ranks(pool: Pool, setting: Setting) -> None:
    check(pool, setting, 1, 2, 3, 4)


def played_on_a_mesh(group: Any, setting: Setting) -> tuple[Tensor, list[eq.Round]]:
    from torch.distributed.device_mesh import DeviceMesh

    simulator = setting.simulator(DeviceMesh.from_group(group, "cpu"), group.size())
    simulator.run()
    return simulator.all_models(), list(simulator.history)


def test_device_mesh_is_a_group(pool: Pool) -> None:
    expected = pool.call(played, Setting(), ranks=2)
    found = pool.call(played_on_a_mesh, Setting(), ranks=2)
    for (models, rounds), (others, history) in zip(expected, found, strict=True):
        assert torch.equal(models, others)
        assert rounds == history
