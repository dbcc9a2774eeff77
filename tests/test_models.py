"""The paper's models: arithmetic, initial weights, and random numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

import equipoise as eq
from equipoise.models import cnn, initial_models, linear_regression, logistic_regression

MAKERS: dict[str, Callable[..., nn.Sequential]] = {
    "cnn": lambda **options: cnn((2, 12, 10), 3, **options),
    "linear": lambda **options: linear_regression(7, **options),
    "logistic": lambda **options: logistic_regression(12, 4, **options),
}
INPUTS = {"cnn": (2, 12, 10), "linear": (7,), "logistic": (3, 2, 2)}

every_model = pytest.mark.parametrize("name", MAKERS)
every_init = pytest.mark.parametrize("init", ["xavier", "torch"])


def weights(module: nn.Module) -> list[Tensor]:
    return [x.detach() for x in module.parameters() if x.dim() > 1]


def biases(module: nn.Module) -> list[Tensor]:
    return [x.detach() for x in module.parameters() if x.dim() == 1]


def fans(weight: Tensor) -> tuple[int, int]:
    """MXNet's fan_in and fan_out: channels times the size of the kernel."""
    kernel = math.prod(weight.shape[2:])
    return weight.shape[1] * kernel, weight.shape[0] * kernel


# Outputs


def test_cnn_size():
    shapes = [tuple(x.shape) for x in cnn().parameters()]
    assert shapes == [
        (30, 1, 3, 3),
        (30,),
        (50, 30, 3, 3),
        (50,),
        (100, 1250),
        (100,),
        (10, 100),
        (10,),
    ]
    assert eq.flatten(cnn()).shape == (139960,)


def test_cnn_computes_table_4():
    x, (a, b, c, d) = torch.randn(3, 1, 28, 28), weights(cnn())
    f = nn.functional
    x1 = f.max_pool2d(f.conv2d(x, a).relu(), 2)
    x2 = f.max_pool2d(f.conv2d(x1, b).relu(), 2)
    expected = (x2.reshape(3, 1250) @ c.T).relu() @ d.T
    assert torch.allclose(cnn()(x), expected, atol=1e-5)


@pytest.mark.parametrize(
    ("shape", "classes", "parameters"),
    [
        ((3, 84, 84), 2, 840 + 13550 + (50 * 19 * 19 + 1) * 100 + 202),  # CelebA, as in LEAF
        ((3, 32, 32), 10, 840 + 13550 + (50 * 6 * 6 + 1) * 100 + 1010),
        ((1, 10, 10), 1, 300 + 13550 + (50 + 1) * 100 + 101),
        ((1, 10, 14), 5, 300 + 13550 + (50 * 2 + 1) * 100 + 505),
        ((1, 14, 10), 5, 300 + 13550 + (50 * 2 + 1) * 100 + 505),
    ],
)
def test_cnn_takes_other_images(shape: tuple[int, int, int], classes: int, parameters: int):
    model = cnn(shape, classes)
    assert eq.flatten(model).shape == (parameters,)
    assert model(torch.randn(2, *shape)).shape == (2, classes)


@settings(max_examples=25)
@given(height=st.integers(1, 24), width=st.integers(1, 24))
def test_cnn_image_sizes(height: int, width: int):
    if min(height, width) < 10:
        with pytest.raises(ValueError, match=r"at least 10, found \(1, "):
            cnn((1, height, width))
    else:
        assert cnn((1, height, width))(torch.randn(2, 1, height, width)).shape == (2, 10)


@pytest.mark.parametrize("count", [0, 1, 5])
def test_linear_output_shape(count: int):
    model, x = linear_regression(3), torch.randn(count, 3)
    weight, bias = model.parameters()
    eq.unflatten(torch.tensor([1.0, 10.0, 100.0, 0.5]), model)
    assert model(x).shape == (count,)
    assert torch.allclose(model(x), x @ torch.tensor([1.0, 10.0, 100.0]) + 0.5)
    assert (weight.shape, bias.shape) == ((1, 3), (1,))


def test_linear_single_input():
    assert linear_regression(3)(torch.randn(3)).shape == ()


def test_logistic_flattens_inputs():
    model, x = logistic_regression(64, 10), torch.randn(5, 1, 8, 8)
    assert eq.flatten(model).shape == (650,)
    assert torch.equal(model(x), model(x.reshape(5, 64)))
    assert torch.allclose(model(x), x.reshape(5, 64) @ weights(model)[0].T, atol=1e-5)


# Initial weights


def test_cnn_norm():
    # The variance of a weight is b^2 / 3; summed over all weights this is 13.464 squared.
    variances = [2.24 / (sum(fans(x)) / 2) / 3 * x.numel() for x in weights(cnn())]
    assert math.sqrt(sum(variances)) == pytest.approx(13.464, abs=1e-3)
    norms = torch.tensor([float(eq.flatten(cnn(seed=seed)).norm()) for seed in range(10)])
    assert float(norms.mean()) == pytest.approx(13.464, abs=0.05)
    assert float((norms - 13.464).abs().max()) < 0.2


def test_torch_init_norm():
    assert float(eq.flatten(cnn(init="torch")).norm()) == pytest.approx(8.08, abs=0.05)


@pytest.mark.parametrize(
    ("make", "magnitude"),
    [
        (lambda: cnn(seed=3), 2.24),
        (lambda: linear_regression(3000, seed=3), 1.0),
        (lambda: logistic_regression(561, 6, seed=3), 1.0),
    ],
    ids=["cnn", "linear", "logistic"],
)
def test_xavier_bounds(make: Callable[[], nn.Sequential], magnitude: float):
    model = make()
    for weight in weights(model):
        bound = math.sqrt(magnitude / (sum(fans(weight)) / 2))
        scaled = weight.flatten() / bound
        assert float(scaled.abs().max()) <= 1 + 1e-6
        assert float(scaled.abs().max()) > 0.97
        # Kolmogorov and Smirnov: the distance to the distribution function is larger than
        # this with probability 1e-4.
        expected = torch.linspace(0, 1, len(scaled))
        assert float(((scaled.sort().values + 1) / 2 - expected).abs().max()) < 2.2 / math.sqrt(
            len(scaled)
        )
    assert all(not bias.any() for bias in biases(model))


@pytest.mark.parametrize("layer", ["0", "3", "7", "9"])
def test_torch_bounds(layer: str):
    weight, bias = (x.detach() for x in cnn(init="torch").get_submodule(layer).parameters())
    bound = 1 / math.sqrt(fans(weight)[0])
    assert 0.97 * bound < float(weight.abs().max()) <= bound * (1 + 1e-6)
    assert 0.5 * bound < float(bias.abs().max()) <= bound * (1 + 1e-6)


@every_model
@every_init
def test_the_seed_decides(name: str, init: str):
    first = eq.flatten(MAKERS[name](init=init, seed=5))
    torch.manual_seed(17)
    assert torch.equal(first, eq.flatten(MAKERS[name](init=init, seed=5)))
    assert not torch.equal(first, eq.flatten(MAKERS[name](init=init, seed=6)))


@every_model
def test_initializations_differ(name: str):
    assert not torch.equal(eq.flatten(MAKERS[name]()), eq.flatten(MAKERS[name](init="torch")))


def test_independent_weights():
    models = torch.stack([eq.flatten(cnn((1, 10, 10), seed=seed)) for seed in range(8)])
    correlations = torch.corrcoef(models) - torch.eye(8)
    assert float(correlations.abs().max()) < 5 / math.sqrt(models.shape[1])


@every_model
@every_init
def test_generator_is_untouched(name: str, init: str):
    torch.manual_seed(1)
    before = torch.get_rng_state()
    MAKERS[name](init=init)
    assert torch.equal(torch.get_rng_state(), before)


@every_init
def test_generator_after_error(init: str, monkeypatch: pytest.MonkeyPatch):
    before = torch.get_rng_state()

    def broken(*_: Any, **__: Any) -> None:
        torch.rand(1)
        raise RuntimeError("no memory")

    monkeypatch.setattr(nn, "Linear", broken)
    with pytest.raises(RuntimeError, match="no memory"):
        linear_regression(3, init=init)
    assert torch.equal(torch.get_rng_state(), before)


@every_model
@every_init
def test_default_device(name: str, init: str):
    with torch.device("meta"):
        module = MAKERS[name](init=init)
    assert torch.equal(eq.flatten(module), eq.flatten(MAKERS[name](init=init)))


# Plain modules


@every_model
def test_state_dict_roundtrip(name: str):
    saved = MAKERS[name](seed=1)
    loaded = MAKERS[name](seed=2)
    loaded.load_state_dict(saved.state_dict())
    assert torch.equal(eq.flatten(loaded), eq.flatten(saved))
    assert all(x.requires_grad and x.is_leaf for x in loaded.parameters())
    assert not list(loaded.buffers())


@every_model
def test_flat_vector_as_parameters(name: str):
    module, x = MAKERS[name](seed=1), torch.randn(4, *INPUTS[name])
    expected = module(x)
    values = {key: value.detach() for key, value in module.named_parameters()}
    assert torch.equal(functional_call(MAKERS[name](seed=2), values, (x,)), expected)


@every_model
def test_vmap_training(name: str):
    modules, x = [MAKERS[name](seed=seed) for seed in range(3)], torch.randn(3, 4, *INPUTS[name])
    values, _ = stack_module_state(modules)

    def loss(parameters: dict[str, Tensor], inputs: Tensor) -> Tensor:
        out: Tensor = functional_call(modules[0], parameters, (inputs,))
        return out.square().sum()

    together = vmap(torch.func.grad(loss))(values, x)
    for i, module in enumerate(modules):
        module.zero_grad()
        module(x[i]).square().sum().backward()
        for key, parameter in module.named_parameters():
            assert torch.allclose(together[key][i], parameter.grad, atol=1e-4, rtol=1e-4)


# The models that clients start from


def seeded(seed: int) -> nn.Sequential:
    return logistic_regression(6, 3, seed=seed)


def unseeded(seed: int) -> nn.Linear:
    return nn.Linear(6, 3)


def test_same_initial_models():
    models = initial_models(seeded, 4, seed=9)
    assert torch.equal(models, eq.flatten(seeded(9)).expand(4, -1))
    models[0] = 0  # rows have memory of their own
    assert models[1:].any()


def test_own_initial_models():
    models = initial_models(seeded, 50, same=False, seed=9)
    assert models.shape == (50, 21)
    assert len(models.unique(dim=0)) == 50
    assert torch.equal(models, initial_models(seeded, 50, same=False, seed=9))
    nearby = initial_models(seeded, 50, same=False, seed=10)
    assert len(torch.cat([models, nearby]).unique(dim=0)) == 100


def test_distance_of_own_models():
    # Far above the paper's gamma = 0.3: BALANCE accepts nobody in the first round.
    models = initial_models(lambda seed: cnn(seed=seed), 3, same=False)
    relative = (models[0] - models[1:]).norm(dim=1) / models[0].norm()
    assert torch.allclose(relative, torch.full((2,), math.sqrt(2)), atol=0.03)


@pytest.mark.parametrize("same", [True, False])
def test_make_ignores_its_seed(same: bool):
    first = initial_models(unseeded, 3, same=same, seed=4)
    torch.manual_seed(11)
    before = torch.get_rng_state()
    assert torch.equal(initial_models(unseeded, 3, same=same, seed=4), first)
    assert torch.equal(torch.get_rng_state(), before)
    assert len(first.unique(dim=0)) == (1 if same else 3)


@pytest.mark.parametrize("same", [True, False])
def test_dtype_is_kept(same: bool):
    assert initial_models(lambda seed: seeded(seed).double(), 2, same=same).dtype == torch.float64


# Bad input


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: cnn((1, 8, 8)),
            r"shape must have a height and a width of at least 10, found \(1, 8, 8\).*logistic",
        ),
        (lambda: cnn((28, 28)), r"shape must be \(channels, height, width\), found \(28, 28\)"),  # type: ignore[arg-type]
        (lambda: cnn(28), r"shape must be \(channels, height, width\), found 28"),  # type: ignore[arg-type]
        (lambda: cnn((0, 28, 28)), "channels in shape must be an integer at least 1, found 0"),
        (lambda: cnn((1, 28, 2.5)), "width in shape must be an integer at least 1, found 2.5"),  # type: ignore[arg-type]
        (lambda: cnn(classes=0), "classes must be an integer at least 1, found 0"),
        (lambda: cnn(init="he"), "init must be 'xavier' or 'torch', found 'he'"),  # type: ignore[arg-type]
        (lambda: cnn(seed=-1), "seed must be an integer >= 0, found -1"),
        (lambda: linear_regression(0), "features must be an integer at least 1, found 0"),
        (lambda: logistic_regression(0, 2), "features must be an integer at least 1, found 0"),
        (lambda: logistic_regression(2, 0), "classes must be an integer at least 1, found 0"),
        (lambda: initial_models(seeded, 0), "n must be an integer at least 1, found 0"),
        (
            lambda: initial_models(3, 2),
            "make must be a function from a seed to a torch.nn.Module, found int",
        ),  # type: ignore[arg-type]
        (
            lambda: initial_models(lambda seed: 3, 2),
            "make must return a torch.nn.Module, found int",
        ),  # type: ignore[arg-type, return-value]
        (
            lambda: initial_models(lambda seed: nn.Linear(1 + seed % 5, 1), 20, same=False),
            r"make must return modules of one shape for all seeds, "
            r"found float32 \(\d,\) and float32 \(\d,\)",
        ),
    ],
)
def test_bad_input(call: Callable[[], Any], message: str):
    with pytest.raises(ValueError, match=message):
        call()
