"""Selection networks by the 0-1 principle."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.kernels import _selection_networks


def run_network(network: _selection_networks.Network, items: list[int]) -> list[int]:
    values = list(items)
    for i, j, low, high in network.steps:
        pair = sorted((values[i], values[j]))
        values[i] = pair[0] if low else -99
        values[j] = pair[1] if high else -99
    return [values[position] for position in network.kept]


@pytest.mark.parametrize(
    "build",
    [_selection_networks.middle, _selection_networks.sorting, _selection_networks.extraction],
)
@pytest.mark.parametrize("count", range(1, 12))
def test_zero_one_principle(build, count: int) -> None:
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
    assert sorted(run_network(_selection_networks.middle(len(items), trim), items)) == kept
    assert run_network(_selection_networks.sorting(len(items), trim), items) == kept
