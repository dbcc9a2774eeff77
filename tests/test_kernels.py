"""The kernels against float64, on every path that they can take."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from equipoise import UBAR, Inbox, Krum, Topology, kernels
from equipoise.kernels import _blocks as blocks
from equipoise.kernels import _distances as closeness
from equipoise.kernels import _order_statistics as order
from equipoise.kernels import _selection_networks as networks
from equipoise.kernels import _weighted_sums as mixture
from equipoise.kernels import native
from equipoise.rules import _candidate_losses

GRAPHS = {
    "dense": Topology.regular(20, 10, seed=1),
    "complete": Topology.complete(12),
    "sparse": Topology.regular(60, 2, seed=2),
    "star": Topology.from_edges(30, [(0, i) for i in range(1, 30)]),
    "directed": Topology.from_edges(
        9, [(i, j) for i in range(9) for j in range(9) if (i * j + i) % 4 == 1], directed=True
    ),
}


@pytest.fixture(params=GRAPHS)
def graph(request: pytest.FixtureRequest) -> Topology:
    return GRAPHS[request.param]


@pytest.fixture(params=["fast", "small"])
def fast_or_small(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both what small problems take and what large ones take, whatever the size."""
    monkeypatch.setattr(closeness, "SMALL", -1 if request.param == "fast" else 1 << 60)


def near_consensus(n: int, d: int, spread: float, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(n + d)
    common = torch.randn(d, generator=generator, dtype=torch.float64)
    return (common + spread * torch.randn(n, d, generator=generator, dtype=torch.float64)).to(dtype)


def direct(own: Tensor, inbox: Inbox) -> Tensor:
    messages = inbox.bank.double()[inbox.slots]
    return (messages - own.double()[:, None]).norm(dim=2).where(inbox.present, torch.inf)


@pytest.mark.usefixtures("fast_or_small")
@pytest.mark.parametrize("d", [3, 5000, 20001])
@pytest.mark.parametrize("spread", [1.0, 1e-4, 1e-6])
def test_squared_distances_hold_1e_6_near_consensus(graph: Topology, d: int, spread: float) -> None:
    models = near_consensus(graph.n, d, spread)
    inbox = graph.deliver(models)
    measured, truth = kernels.distances(models, inbox)[0].square(), direct(models, inbox).square()
    torch.testing.assert_close(measured, truth, rtol=1e-6, atol=0)


@pytest.mark.usefixtures("fast_or_small")
@pytest.mark.parametrize("outlier", [1e4, 1e20, 3e38, 1e-30, 0.0])
def test_one_client_far_away_spoils_nobody_elses_distances(graph: Topology, outlier: float) -> None:
    models = near_consensus(graph.n, 5000, 1e-4)
    models[1] = outlier * torch.ones(5000) if outlier > 1e30 else outlier * models[1]
    inbox = graph.deliver(models)
    measured, truth = kernels.distances(models, inbox)[0].square(), direct(models, inbox).square()
    torch.testing.assert_close(measured, truth, rtol=1e-6, atol=0)


@pytest.mark.usefixtures("fast_or_small")
def test_two_clusters_far_apart(graph: Topology) -> None:
    models = near_consensus(graph.n, 5000, 1e-4)
    models[::2] += 7
    inbox = graph.deliver(models)
    measured, truth = kernels.distances(models, inbox)[0].square(), direct(models, inbox).square()
    torch.testing.assert_close(measured, truth, rtol=1e-6, atol=0)


@pytest.mark.usefixtures("fast_or_small")
@pytest.mark.parametrize("spread", [1.0, 1e-4])
@pytest.mark.parametrize("outlier", [1.0, 1e4, 1e20, 0.0])
@pytest.mark.parametrize("own_is_bank", [True, False])
def test_distances_between_messages(graph: Topology, spread: float, outlier: float, own_is_bank: bool) -> None:
    models = near_consensus(graph.n, 5000, spread)
    models[1] *= outlier
    models[3] = models[2]
    inbox = graph.deliver(models)
    own = models if own_is_bank else models.clone()
    for group, squares in kernels.message_distances(own, inbox):
        messages = models.double()[group.rows]
        truth = (messages[:, :, None] - messages[:, None, :]).square().sum(3)
        torch.testing.assert_close(squares, truth, rtol=1e-6, atol=0)
        assert torch.equal(squares, squares.mT)
        assert torch.equal(group.rows, inbox.slots[group.receivers[:, None], group.columns])
    assert sorted(torch.cat([g.receivers for g, _ in kernels.message_distances(own, inbox)]).unique().tolist()) == (
        (inbox.counts > 0).nonzero().flatten().tolist()
    )


def test_the_rows_of_one_receiver_are_never_mixed_up_with_those_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(closeness, "BUDGET", 1000)
    graph = Topology.regular(200, 4, seed=0)
    models = near_consensus(200, 5000, 1e-2)
    groups = list(kernels.message_distances(models, graph.deliver(models)))
    assert len(groups) > 1  # more than one piece
    for group, squares in groups:
        messages = models.double()[group.rows]
        truth = (messages[:, :, None] - messages[:, None, :]).square().sum(3)
        torch.testing.assert_close(squares, truth, rtol=1e-6, atol=0)


def test_few_long_models_are_copied_at_once_to_centre_messages_on(monkeypatch: pytest.MonkeyPatch) -> None:
    copied, squared_distances_of_each = [], closeness.squared_distances_of_each

    def counted(centres: Tensor, *others: Tensor) -> tuple[Tensor, Tensor]:
        copied.append(centres.numel())
        return squared_distances_of_each(centres, *others)

    monkeypatch.setattr(closeness, "squared_distances_of_each", counted)
    monkeypatch.setattr(closeness, "BUDGET", 25_000)
    models = near_consensus(80, 100_000, 1e-2)
    inbox = Topology.ring(80).deliver(models)
    with native.disabled():
        served = sum(len(group.receivers) for group, _ in kernels.message_distances(models, inbox))
    assert (served, sum(copied)) == (80, models.numel())
    assert max(copied) <= 8 * closeness.BUDGET


@pytest.mark.parametrize("remembered", [1 << 21, 0])
@pytest.mark.parametrize("budget", [1 << 19, 1000])
def test_one_near_tie_costs_krum_few_exact_distances(
    budget: int, remembered: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All receivers share those between the two rivals and everybody else, in however many pieces they are served."""
    computed, careful_squares = [], closeness.careful_squares

    def counted(bank: Tensor, left: Tensor, *others: Tensor) -> tuple[Tensor, Tensor]:
        computed.append(len(left))
        return careful_squares(bank, left, *others)

    monkeypatch.setattr(closeness, "careful_squares", counted)
    monkeypatch.setattr(closeness, "SMALL", -1)
    monkeypatch.setattr(closeness, "BUDGET", budget)
    monkeypatch.setattr(closeness, "REMEMBERED", remembered)
    models, graph = near_consensus(30, 5000, 1e-2), Topology.complete(30)
    models[7] = 1.001 * models.mean(0)
    models[4] = models[7]
    models[4, 0] = torch.nextafter(models[4, 0], torch.tensor(9.0))
    weights = Krum(tolerated=5)(models, graph.deliver(models)).weights
    squares = torch.cdist(models.double(), models.double(), compute_mode="donot_use_mm_for_euclid_dist").square()
    for receiver in range(30):
        heard = graph.senders[receiver]
        scores = squares[heard][:, heard].sort(1).values[:, : 29 - 5 - 1].sum(1)
        assert weights[receiver].argmax() == scores.argmin()
    assert len(computed) > 0
    assert remembered == 0 or sum(computed) <= 2 * 30 + 1


@pytest.mark.usefixtures("fast_or_small")
@pytest.mark.parametrize("outlier", [-1.0, 1e20, 1e-30, 0.0])
@pytest.mark.parametrize("d", [5000, 70001])
def test_cosines(graph: Topology, outlier: float, d: int) -> None:
    models = torch.randn(graph.n, d, generator=torch.Generator().manual_seed(3))
    models[1] *= outlier
    inbox = graph.deliver(models)
    unit = torch.nn.functional.normalize(models.double(), dim=1, eps=0).nan_to_num()
    truth = (unit @ unit.T).gather(1, inbox.slots).where(inbox.present, 0)
    torch.testing.assert_close(kernels.cosines(models, inbox)[0], truth, rtol=1e-6, atol=5e-7)


@pytest.mark.usefixtures("fast_or_small")
def test_cosines_of_orthogonal_models_are_exactly_zero() -> None:
    bank = torch.zeros(2, 6000)
    bank[0, ::2], bank[1, 1::2] = 3, 7
    inbox = Inbox(bank, torch.tensor([[1], [0]]))
    assert torch.equal(kernels.cosines(bank, inbox)[0], torch.zeros(2, 1, dtype=torch.float64))


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 3), st.sampled_from([-3, -2, -1, 1, 2, 3]), st.sampled_from([5, 9000]))
def test_a_message_on_the_threshold_is_decided_as_float64_would(seed: int, ulps: int, d: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    own = torch.randn(2, d, generator=generator)
    message = own[0] + 0.3 * torch.randn(d, generator=generator)
    inbox = Inbox(torch.stack([message, message]), torch.tensor([[0], [1]]))
    apart = (message.double() - own.double()).norm(dim=1)
    factor = float(apart[0] / own[0].double().norm()) * (1 + ulps * 1e-9)
    expected = (apart <= factor * own.double().norm(dim=1))[:, None]
    apart, sizes = kernels.distances(own, inbox)
    accepted = kernels.within(own, inbox, sizes, apart, factor)
    assert torch.equal(accepted, expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("d", [1, 7, 4096, 9000])
def test_norms(dtype: torch.dtype, d: int) -> None:
    x = torch.randn(6, d, generator=torch.Generator().manual_seed(d)).to(dtype)
    x[1], x[2, -1], x[3, 0], x[4] = 0, torch.nan, -torch.inf, torch.finfo(dtype).max
    x[5] = torch.finfo(dtype).tiny
    truth = x.double().norm(dim=1)
    if dtype == torch.float64:
        truth[4] = torch.finfo(dtype).max if d == 1 else torch.nan
        truth[5] = torch.finfo(dtype).tiny * d**0.5
    truth = truth.where(truth.isfinite(), torch.nan)
    torch.testing.assert_close(kernels.norms(x), truth, rtol=1e-6, atol=0, equal_nan=True)


@pytest.mark.parametrize("dense", [0, 1 << 60], ids=["sparse", "dense"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("d", [1, 9000])
def test_combine(graph: Topology, dense: int, dtype: torch.dtype, d: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mixture, "DENSE", dense)
    generator = torch.Generator().manual_seed(d)
    models = torch.randn(graph.n, d, generator=generator).to(dtype)
    inbox = graph.deliver(models)
    weights = torch.rand(inbox.slots.shape, generator=generator, dtype=torch.float64)
    weights = weights.where(inbox.present & (weights > 0.3), 0) / inbox.k
    own_weights = torch.rand(graph.n, generator=generator, dtype=torch.float64).round()
    truth = (weights[:, :, None] * models.double()[inbox.slots]).sum(1) + own_weights[:, None] * models.double()
    found = kernels.combine(models, own_weights, inbox, weights)
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), truth, rtol=4 * torch.finfo(dtype).eps, atol=4 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("dense", [0, 1 << 60], ids=["sparse", "dense"])
def test_combine_never_touches_what_has_no_weight(dense: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mixture, "DENSE", dense)
    bank = torch.tensor([[1.0], [torch.nan], [torch.inf], [3e38]])
    inbox = Inbox(bank, torch.tensor([[0, 1, 2, 3], [0, 1, 2, 3]]), keep_nonfinite=True)
    weights = torch.tensor([[0.5, 0, 0, 0], [0, 0, 0, 1e-38]], dtype=torch.float64)
    own = torch.tensor([[4.0], [torch.nan]])
    found = kernels.combine(own, torch.tensor([0.5, 0], dtype=torch.float64), inbox, weights)
    torch.testing.assert_close(found, torch.tensor([[2.5], [3.0]]))


def test_combine_adds_several_huge_messages_of_one_receiver() -> None:
    bank = torch.tensor([[3e38], [3e38], [-3e38], [5.0]])
    inbox = Inbox(bank, torch.tensor([[0, 1, 2, 3]]))
    weights = torch.tensor([[0.25, 0.25, 0.25, 0.25]], dtype=torch.float64)
    found = kernels.combine(torch.zeros(1, 1), torch.zeros(1, dtype=torch.float64), inbox, weights)
    torch.testing.assert_close(found, torch.tensor([[0.75e38]]))


def run_network(network: networks.Network, items: list[int]) -> list[int]:
    values = list(items)
    for i, j, low, high in network.steps:
        values[i], values[j] = (min(values[i], values[j]) if low else -99), (max(values[i], values[j]) if high else -99)
    return [values[position] for position in network.kept]


@pytest.mark.parametrize("build", [networks.middle, networks.sorting, networks.extraction])
@pytest.mark.parametrize("count", range(1, 12))
def test_networks_on_all_lists_of_zeros_and_ones(build, count: int) -> None:
    """By the 0-1 principle a network that is right for these is right for everything."""
    for trim in range((count + 1) // 2):
        network = build(count, trim)
        for items in itertools.product((0, 1), repeat=count):
            assert sorted(run_network(network, list(items))) == sorted(items)[trim : count - trim]


@settings(deadline=None)
@given(st.lists(st.integers(-5, 5), min_size=12, max_size=130), st.data())
def test_long_networks(items: list[int], data: st.DataObject) -> None:
    trim = data.draw(st.integers(0, (len(items) - 1) // 2))
    kept = sorted(items)[trim : len(items) - trim]
    assert sorted(run_network(networks.middle(len(items), trim), items)) == kept
    assert run_network(networks.sorting(len(items), trim), items) == kept


def reference_trimmed_mean(own: Tensor, inbox: Inbox, trim: Tensor, include_own: bool) -> Tensor:
    rows = []
    for i in range(inbox.n):
        values = inbox.bank.double()[inbox.slots[i][inbox.present[i]]]
        if include_own and len(values):
            values = torch.cat([values, own[i : i + 1].double()])
        ordered = values.sort(dim=0).values
        rows.append(ordered[int(trim[i]) : len(ordered) - int(trim[i])].mean(0) if len(values) else own[i].double())
    return torch.stack(rows)


@pytest.mark.parametrize("path", ["as it comes", "narrow", "sorted"])
@pytest.mark.parametrize("include_own", [False, True])
@pytest.mark.parametrize("own_is_bank", [True, False])
@pytest.mark.parametrize("d", [1, 40, 600])
def test_trimmed_mean(
    graph: Topology, path: str, include_own: bool, own_is_bank: bool, d: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(order, "LARGEST", 0 if path == "sorted" else 512)
    monkeypatch.setattr(order, "WIDTH", 90 if path == "narrow" else 24576)
    generator = torch.Generator().manual_seed(d)
    models = torch.randn(graph.n, d, generator=generator)
    models[1] *= 3e38
    models[::3] = models[::3].round()
    models[2] = torch.nan
    inbox = graph.deliver(models)
    own = models if own_is_bank else models.clone()
    counts = (inbox.counts + include_own).clamp_min(1)
    trim = torch.randint(0, 100, (graph.n,), generator=generator) % ((counts + 1) // 2)
    found = kernels.trimmed_mean(own, inbox, trim, include_own=include_own)
    truth = reference_trimmed_mean(own, inbox, trim, include_own).float()
    defined = own.isfinite().all(1) | (not include_own)
    torch.testing.assert_close(found[defined], truth[defined], rtol=2e-6, atol=2e-6, equal_nan=True)


@settings(deadline=None)
@given(st.data())
def test_leaving_one_out_of_a_shared_sorting_is_exact(data: st.DataObject) -> None:
    n, numbers = (
        data.draw(st.integers(3, 9)),
        st.sampled_from([-3e38, -1e30, -2.0, 0.0, 0.0, 1.0, 1.0, 5.0, 1e30, 3e38]),
    )
    models = torch.tensor(data.draw(st.lists(st.lists(numbers, min_size=2, max_size=2), min_size=n, max_size=n)))
    inbox = Topology.complete(n).deliver(models)
    trim = torch.tensor(data.draw(st.lists(st.integers(0, (n - 2) // 2), min_size=n, max_size=n)))
    truth = reference_trimmed_mean(models, inbox, trim, False)
    found = kernels.trimmed_mean(models, inbox, trim).double()
    window = torch.stack([_largest_kept(inbox, i, int(trim[i])) for i in range(n)])
    assert ((found - truth).abs() <= 1e-6 * window).all()


def _largest_kept(inbox: Inbox, i: int, trim: int) -> Tensor:
    ordered = inbox.bank.double()[inbox.slots[i]].sort(dim=0).values
    return ordered[trim : len(ordered) - trim].abs().amax(0)


@pytest.mark.parametrize("budget", [1, 30, 200, 5000])
def test_however_many_models_ubar_shows_at_a_time(monkeypatch: pytest.MonkeyPatch, budget: int) -> None:
    graph, targets = Topology.regular(20, 10, seed=0), torch.randn(20, 10, generator=torch.Generator().manual_seed(1))
    models = torch.randn(20, 10, generator=torch.Generator().manual_seed(0))
    inputs = dict(tolerated=2, loss_of=lambda models, clients: (models - targets[clients]).square().sum(1))
    expected = UBAR()(models, graph.deliver(models), **inputs)
    monkeypatch.setattr(_candidate_losses, "COPIED_CANDIDATES", budget)
    found = UBAR()(models, graph.deliver(models), **inputs)
    assert torch.equal(found.weights, expected.weights)
    alone = UBAR()(models[3], models[graph.neighbors(3)], **inputs | {"loss_of": lambda x: inputs["loss_of"](x, [3])})
    assert torch.equal(alone.weights, expected.weights[3])


def test_values_are_sorted_with_nan_last() -> None:
    values = torch.tensor([[3.0, torch.nan, -torch.inf], [0.0, -1.0, torch.inf]], dtype=torch.float64)
    torch.testing.assert_close(blocks.ascending(values), values.sort(dim=1).values, equal_nan=True)
