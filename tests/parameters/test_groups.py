"""Groups of parameters, and vectors of some of the parameters."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import equipoise as eq


def network() -> nn.Sequential:
    """0: linear (9), 1: batch norm (6, and 6 statistics), 2: linear (4)."""
    return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))


class TestOnly:
    def test_name(self) -> None:
        model = network()
        assert torch.equal(eq.flatten(model, only="0.bias"), model[0].bias)

    def test_module(self) -> None:
        model = network()
        assert torch.equal(eq.flatten(model, only="2"), eq.flatten(model[2]))

    def test_wildcards_cover_several_layers(self) -> None:
        model = network()
        expected = torch.cat([layer.bias for layer in model])
        assert torch.equal(eq.flatten(model, only="*.bias"), expected)

    def test_class_of_modules(self) -> None:
        model = network()
        found = eq.flatten(model, only=nn.BatchNorm1d, buffers=True)
        assert torch.equal(found, eq.flatten(model[1], buffers=True))

    def test_statistics_alone(self) -> None:
        model = network()
        found = eq.flatten(model, only="*.running_*", buffers=True)
        assert torch.equal(found, torch.cat([model[1].running_mean, model[1].running_var]))

    def test_order_is_that_of_the_vector(self) -> None:
        model = network()
        expected = torch.cat([eq.flatten(model[0]), eq.flatten(model[2])])
        assert torch.equal(eq.flatten(model, only=["2", "0"]), expected)

    def test_trainable(self) -> None:
        model = network()
        model[0].requires_grad_(False)
        expected = torch.cat([eq.flatten(model[1]), eq.flatten(model[2])])
        assert torch.equal(eq.flatten(model, only=eq.trainable), expected)

    def test_frozen_integers_are_left_out(self) -> None:
        model = nn.Module()
        model.quantized = nn.Parameter(torch.ones(4, dtype=torch.int8), requires_grad=False)
        model.adapter = nn.Parameter(torch.ones(2))
        assert torch.equal(eq.flatten(model, only=eq.trainable), torch.ones(2))

    def test_unflatten_leaves_the_rest(self) -> None:
        model = network()
        before = eq.flatten(model, buffers=True)
        eq.unflatten(torch.full((4,), 7.0), model, only="2")
        after = eq.flatten(model, buffers=True)
        place = eq.groups(model, buffers=True)["2.weight"].start
        changed = (after != before).nonzero().flatten()
        assert changed.tolist() == list(range(place, place + 4))

    def test_stacks(self) -> None:
        models = [network() for _ in range(3)]
        stacked = eq.stack_models(models, only="0")
        assert torch.equal(stacked[1], eq.flatten(models[1], only="0"))
        eq.unstack_models(stacked + 1, models, only="0")
        assert torch.equal(eq.stack_models(models, only="0"), stacked + 1)

    @pytest.mark.parametrize(
        ("only", "message"),
        [
            ("0.bais", r"found '0.bais', which matches none of 6; did you mean '0.bias'\?"),
            (nn.Conv2d, "only must match parameters of Sequential, found Conv2d"),
            ([], "or several of them, found none"),
            (torch.Tensor, "found the class Tensor"),
            (3, "found int"),
            ([3], "found int"),
        ],
    )
    def test_wrong_patterns(self, only: object, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            eq.flatten(network(), only=only)  # type: ignore[arg-type]


class TestGroups:
    def test_every_parameter_is_a_group(self) -> None:
        model = network()
        vector = eq.flatten(model)
        groups = eq.groups(model)
        for name, parameter in model.named_parameters():
            assert torch.equal(vector[groups[name]], parameter.flatten())

    def test_contiguous_groups_are_views(self) -> None:
        vector = eq.flatten(network())
        vector[eq.groups(network(), {"head": "2"}, rest="body")["head"]].zero_()
        assert not vector[-4:].any()

    def test_scattered_groups_select_their_pieces(self) -> None:
        model = network()
        groups = eq.groups(model, {"bias": "*.bias"}, rest="weight")
        expected = eq.flatten(model, only="*.bias")
        assert torch.equal(eq.flatten(model)[groups["bias"]], expected)

    def test_the_first_match_counts(self) -> None:
        groups = eq.groups(network(), {"norm": nn.BatchNorm1d, "bias": "*.bias"}, rest="weight")
        assert groups.size("norm") == 6
        assert groups.size("bias") == 4

    def test_buffers_follow(self) -> None:
        groups = eq.groups(network(), {"statistics": "*.running_*"}, rest="rest", buffers=True)
        assert groups["statistics"] == slice(19, 25)
        assert groups.d == 25

    def test_tied_parameters_occur_once(self) -> None:
        model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        model[1].weight = model[0].weight
        assert eq.groups(model).d == len(eq.flatten(model))

    @given(
        st.lists(st.sampled_from(["0", "1", "2", "*.bias", "*.weight"]), min_size=1, unique=True)
    )
    def test_groups_partition_the_vector(self, patterns: list[str]) -> None:
        model = network()
        try:
            groups = eq.groups(model, dict(zip("abcd", patterns, strict=False)), rest="z")
        except ValueError as error:
            assert "all match an earlier one" in str(error)  # noqa: PT017
            return
        count = torch.zeros(groups.d)
        for name in groups:
            count[groups[name]] += 1
        assert torch.equal(count, torch.ones(groups.d))
        assert sum(map(groups.size, groups)) == groups.d

    def test_equal_groups_are_equal(self) -> None:
        first = eq.groups(network(), {"head": "2"}, rest="body")
        second = eq.groups(network(), {"head": "2"}, rest="body")
        assert first == second
        assert hash(first) == hash(second)
        assert first != eq.groups(network(), {"head": "0"}, rest="body")

    @pytest.mark.parametrize(
        ("patterns", "rest", "message"),
        [
            ({"head": "2"}, None, "found no match for '0.weight'"),
            ({"head": "2"}, "head", "rest must name another group"),
            ({"head": "2", "again": "2.*"}, "body", "found 'again', whose parameters all match"),
            ({"head": "3"}, "body", r"patterns\['head'\] must match parameters"),
            ({}, "body", "patterns must be patterns by the name of their group"),
            ("2", "body", "found str"),
        ],
    )
    def test_wrong_groups(self, patterns: object, rest: str | None, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            eq.groups(network(), patterns, rest=rest)  # type: ignore[arg-type]
