"""Choose parameters by name, by the kind of their layer, or by a function."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Protocol, TypeVar

from torch import Tensor, nn

from equipoise._utils.validation import describe

Pattern = str | type[nn.Module] | Callable[[str, Tensor], bool]
Patterns = Pattern | Iterable[Pattern]


class Named(Protocol):
    """A parameter or buffer with its name in the module."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def tensor(self) -> Tensor:
        """Its values."""


NamedT = TypeVar("NamedT", bound=Named)


def trainable(name: str, parameter: Tensor) -> bool:
    """Whether a parameter is trained: the pattern ``only=eq.trainable`` leaves out frozen ones.

    >>> model = torch.nn.Sequential(torch.nn.Linear(9, 9), torch.nn.Linear(9, 2))
    >>> _ = model[0].requires_grad_(False)
    >>> eq.flatten(model, only=eq.trainable).shape
    torch.Size([20])
    """
    return parameter.requires_grad


def select(
    module: nn.Module, entries: Sequence[NamedT], patterns: Patterns, argument: str
) -> list[NamedT]:
    """The entries that match one of the patterns, in their order.

    Raises:
        ValueError: a pattern matches no entry, which is most likely a misspelled name.
    """
    chosen: set[str] = set()
    for pattern in _as_patterns(patterns, argument):
        found = [entry.name for entry in entries if _matches(module, entry, pattern)]
        if not found:
            raise ValueError(_no_match(module, entries, pattern, argument))
        chosen.update(found)
    return [entry for entry in entries if entry.name in chosen]


def _as_patterns(patterns: Patterns, argument: str) -> list[Pattern]:
    expected = f"{argument} must be a name with wildcards, a class of modules or a function"
    if isinstance(patterns, str) or callable(patterns):
        found = [patterns]
    elif isinstance(patterns, Iterable):
        found = list(patterns)
    else:
        raise ValueError(f"{expected}, or several of them, found {describe(patterns)}")
    if not found:
        raise ValueError(f"{expected}, or several of them, found none")
    for pattern in found:
        if isinstance(pattern, type) and not issubclass(pattern, nn.Module):
            raise ValueError(f"{expected}, found the class {pattern.__name__}")
        if not isinstance(pattern, str) and not callable(pattern):
            raise ValueError(f"{expected}, found {describe(pattern)}")
    return found


def _matches(module: nn.Module, entry: Named, pattern: Pattern) -> bool:
    if isinstance(pattern, str):
        # The name of a module stands for all of its parameters.
        return fnmatchcase(entry.name, pattern) or fnmatchcase(entry.name, f"{pattern}.*")
    if isinstance(pattern, type):
        return isinstance(module.get_submodule(entry.name.rpartition(".")[0]), pattern)
    return bool(pattern(entry.name, entry.tensor))


def _no_match(module: nn.Module, entries: Sequence[Named], pattern: Pattern, argument: str) -> str:
    names = [entry.name for entry in entries]
    if isinstance(pattern, str):
        owners = [name.rpartition(".")[0] for name in names]
        close = get_close_matches(pattern, dict.fromkeys([*names, *owners]), n=1)
        hint = f"; did you mean {close[0]!r}?" if close else f"; the first is {names[0]!r}"
        shown = repr(pattern)
    else:
        hint = ""
        shown = getattr(pattern, "__name__", repr(pattern))
    return (
        f"{argument} must match parameters of {type(module).__name__}, found {shown}, "
        f"which matches none of {len(names)}{hint}"
    )
