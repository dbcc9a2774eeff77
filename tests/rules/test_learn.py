"""LEARN under hostile messages and wrong arguments."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import equipoise as eq
from equipoise.kernels.native import _library as library
from tests.cases import LEARNS
from tests.hostile import ABSENT, FINITE, HONEST, OWN

pytestmark = pytest.mark.filterwarnings("ignore::equipoise.GuaranteeWarning")


every_learn = pytest.mark.parametrize("rule", LEARNS.values(), ids=LEARNS)


@pytest.mark.parametrize("name", ["update", "t", "tolerated"])
def test_missing_inputs_of_learn(name: str) -> None:
    inputs = {"update": 0.1 * OWN, "t": 1, "tolerated": 1}
    del inputs[name]
    with pytest.raises(TypeError, match=rf"\b{name}\b"):
        eq.run_exchanges(eq.LEARN(), OWN, lambda sent: HONEST, **inputs)


@every_learn
def test_learn_is_not_callable(rule: Any) -> None:
    assert not callable(rule)


@every_learn
@pytest.mark.parametrize("message", ABSENT.values(), ids=ABSENT)
def test_absent_messages(rule: Any, message: Tensor) -> None:
    inputs = {"update": 0.1 * OWN, "t": 3, "tolerated": 1}
    with_it = eq.run_exchanges(rule, OWN, lambda sent: torch.cat([message[None], HONEST]), **inputs)
    without = eq.run_exchanges(rule, OWN, lambda sent: HONEST, **inputs)
    torch.testing.assert_close(with_it[0], without[0])
    torch.testing.assert_close(with_it[1].model, without[1].model)


@every_learn
@pytest.mark.parametrize("message", FINITE.values(), ids=FINITE)
def test_hostile_messages(rule: Any, message: Tensor) -> None:
    """With one tolerated of five, the result stays between the messages of the others."""
    heard = torch.cat([message[None], HONEST])
    intermediate, out = eq.run_exchanges(
        rule, OWN, lambda sent: heard, update=OWN, t=3, tolerated=1
    )
    everything = torch.cat([HONEST, OWN[None]])
    for model in (intermediate, out.model):
        assert (model >= everything.min(0).values - 1e-5).all()
        assert (model <= everything.max(0).values + 1e-5).all()


def test_inputs_unchanged() -> None:
    own = OWN.clone()
    update = (0.1 * OWN).clone()
    eq.run_exchanges(eq.LEARN(tolerated=1), own, lambda sent: HONEST, update=update, t=5)
    assert torch.equal(own, OWN)
    assert torch.equal(update, 0.1 * OWN)


def test_update_shape() -> None:
    with pytest.raises(ValueError, match="update"):
        eq.run_exchanges(eq.LEARN(tolerated=1), OWN, lambda sent: HONEST, update=OWN[:3], t=5)


def test_numpy_round() -> None:
    found = [
        eq.run_exchanges(eq.LEARN(1), OWN, lambda sent: HONEST, t=t, update=0.1 * OWN)[1].model
        for t in (3, np.int64(3))
    ]
    assert torch.equal(*found)
    with pytest.raises(ValueError, match=r"t must be an integer at least 0, found 1\.5"):
        eq.run_exchanges(eq.LEARN(1), OWN, lambda sent: HONEST, t=1.5, update=OWN)  # type: ignore[arg-type]


def test_huge_agreement_ignored() -> None:
    own = torch.tensor([1.0, 2.0]).half()
    update = torch.tensor([-20.0, 0.0]).half()
    lie = torch.full((1, 2), 65504.0).half()
    rule = eq.LEARN(tolerated=1, own_update="excluded")
    model, out = eq.run_exchanges(rule, own, lambda sent: lie, t=1, update=update)
    assert model.tolist() == [1.0, 65504.0]
    assert out.model.isfinite().all()


@pytest.mark.parametrize("count", [510, 511, 512, 513])
def test_kernel_message_limit(count: int) -> None:
    """Own is one more."""
    own = torch.randn(300)
    update = torch.randn(300)
    received = torch.randn(count, 300)
    expected = torch.cat([received, update[None]]).double().sort(0).values[100:-100].mean(0)
    sent: list[Tensor] = []
    eq.run_exchanges(
        eq.LEARN(tolerated=100), own, lambda x: (sent.append(x), received)[1], t=1, update=update
    )
    torch.testing.assert_close(sent[1], (own + (expected.float() - update)), rtol=1e-4, atol=1e-5)


def test_learn_out_is_own() -> None:
    own = torch.ones(3)
    with pytest.raises(ValueError, match="out must not share memory"):
        eq.run_exchanges(
            eq.LEARN(tolerated=0),
            own,
            lambda sent: sent[None] * 5,
            t=0,
            update=own.clone(),
            out=own,
        )
    assert own.tolist() == [1, 1, 1]


@pytest.mark.parametrize("native", [True, False])
def test_nonfinite_update(native: bool) -> None:
    own = torch.randn(6, 4)
    update = torch.randn(6, 4)
    update[2] = torch.nan
    graph = eq.Topology.ring(6)
    sent = list[Tensor]()

    def exchange(messages: Tensor) -> eq.Inbox:
        sent.append(messages.clone())
        return graph.deliver(messages)

    with nullcontext() if native else library.disabled():
        eq.run_exchanges(eq.LEARN(tolerated=1), own, exchange, t=3, update=update)
    assert all(messages[2].isnan().all() for messages in sent[:2])
    assert all(messages[[0, 1, 3, 4, 5]].isfinite().all() for messages in sent)
    torch.testing.assert_close(sent[1][3], torch.stack([update[3], update[4]]).mean(0))
