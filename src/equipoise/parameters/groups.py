"""Named groups of parameters: adapters, heads, statistics of normalization layers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from equipoise._utils.validation import describe
from equipoise.parameters._entries import Entry, entries_of
from equipoise.parameters._patterns import Patterns, select

Ranges = tuple[tuple[int, int], ...]  # (start, end) of each piece, ascending


# Ranges instead of slices, which cannot be hashed: a rule with groups must be.
@dataclass(frozen=True)
class Groups(Mapping[str, "slice | Tensor"]):
    """The places of named groups of parameters in a vector; made by `groups`.

    ``groups[name]`` is an index of a vector or of stacked models: ``vector[groups["head"]]``,
    ``models[:, groups["head"]]``. It is a slice, hence a view, if the group is contiguous, and
    otherwise a tensor of positions.

    Args:
        ranges: the start and end of each piece of a group, by name.
        d: the number of elements of the vector.
    """

    ranges: tuple[tuple[str, Ranges], ...]
    d: int

    def __getitem__(self, name: str) -> slice | Tensor:
        ranges = dict(self.ranges)[name]
        if len(ranges) == 1:
            return slice(*ranges[0])
        return torch.cat([torch.arange(start, end) for start, end in ranges])

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in self.ranges)

    def __len__(self) -> int:
        return len(self.ranges)

    def size(self, name: str) -> int:
        """The number of elements of a group."""
        return sum(end - start for start, end in dict(self.ranges)[name])


def groups(
    module: nn.Module,
    patterns: Mapping[str, Patterns] | None = None,
    *,
    rest: str | None = None,
    buffers: bool = False,
    only: Patterns | None = None,
) -> Groups:
    """Find the places of groups of parameters in the vector of a module.

    Each element of the vector belongs to exactly one group: that of the first pattern that it
    matches.

    Args:
        module: the module whose vector is ``flatten(module, buffers=buffers, only=only)``.
        patterns: patterns by the name of the group; see `flatten` for patterns. By default, each
            parameter is a group with its own name.
        rest: the name of a group for all that no pattern matches, which is an error otherwise.
        buffers: as in `flatten`.
        only: as in `flatten`.

    >>> model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.LayerNorm(3))
    >>> eq.groups(model)["0.bias"]
    slice(6, 9, None)
    >>> groups = eq.groups(model, {"norm": torch.nn.LayerNorm}, rest="body")
    >>> groups["norm"], groups["body"]
    (slice(9, 15, None), slice(0, 9, None))
    """
    entries = entries_of(module, "module", buffers, only)
    if patterns is None:
        # A shared parameter has one entry, so names are unique.
        members = {entry.name: [entry] for entry in entries}
    else:
        members = _assigned(module, entries, patterns, rest)
    starts = _starts(entries)
    ranges = tuple((name, _ranges(group, starts)) for name, group in members.items())
    return Groups(ranges, sum(entry.tensor.numel() for entry in entries))


def _assigned(
    module: nn.Module, entries: list[Entry], patterns: Mapping[str, Patterns], rest: str | None
) -> dict[str, list[Entry]]:
    """The entries of each group."""
    _check_names(patterns, rest)
    members: dict[str, list[Entry]] = {}
    left = entries
    for name, pattern in patterns.items():
        # By name: tensors cannot be compared by one truth value.
        chosen = {entry.name for entry in select(module, entries, pattern, f"patterns[{name!r}]")}
        members[name] = [entry for entry in left if entry.name in chosen]
        left = [entry for entry in left if entry.name not in chosen]
        if not members[name]:
            found = f"{name!r}, whose parameters all match an earlier one"
            raise ValueError(f"patterns must give each group a parameter, found {found}")
    if not left:
        return members
    if rest is None:
        expected = "match every parameter, unless rest names a group for the others"
        raise ValueError(f"patterns must {expected}, found no match for {left[0].name!r}")
    return members | {rest: left}


def _check_names(patterns: object, rest: str | None) -> None:
    """Raise unless the patterns have names, and the rest has another one."""
    if not isinstance(patterns, Mapping) or not patterns:
        expected = "patterns by the name of their group"
        raise ValueError(f"patterns must be {expected}, found {describe(patterns)}")
    if rest in patterns:
        raise ValueError(f"rest must name another group than patterns, found {rest!r}")


def _starts(entries: list[Entry]) -> dict[str, int]:
    starts = {}
    end = 0
    for entry in entries:
        starts[entry.name] = end
        end += entry.tensor.numel()
    return starts


def _ranges(group: list[Entry], starts: dict[str, int]) -> Ranges:
    """The pieces of a group; those that touch are one."""
    pieces = [(starts[entry.name], starts[entry.name] + entry.tensor.numel()) for entry in group]
    cuts = [i for i, (one, other) in enumerate(pairwise(pieces), start=1) if one[1] != other[0]]
    bounds = pairwise([0, *cuts, len(pieces)])
    return tuple((pieces[first][0], pieces[end - 1][1]) for first, end in bounds)
