"""Trying to break a law, and telling how it was done."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Generic, TypeVar

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import SearchStrategy

from equipoise._utils.validation import check_count

CaseT = TypeVar("CaseT")


class Law(Generic[CaseT]):
    """A law and the cases that it is tried on: ``law(subject, case)`` raises an AssertionError where it is broken."""

    def __init__(self, check: Callable[[object, CaseT], None], cases: SearchStrategy[CaseT], says: object) -> None:
        self.check, self.cases = check, cases
        self.says = (inspect.getdoc(says) or "").partition("\n\n")[0].replace("\n", " ")

    def __call__(self, subject: object, case: CaseT) -> None:
        """Check one case; a subject that leaves autograd switched off, or on, does so for this case only."""
        with torch.set_grad_enabled(torch.is_grad_enabled()):
            self.check(subject, case)

    def __repr__(self) -> str:
        return f"Law({self.says!r})"


def chosen(laws: Mapping[str, Law[CaseT]], only: Iterable[str] | None, skip: Iterable[str]) -> dict[str, Law[CaseT]]:
    """The laws of these names, or all, without those to skip."""
    names, left_out = list(laws if only is None else _listed("laws", only)), set(_listed("skip", skip))
    for argument, given_names in (("laws", names), ("skip", left_out)):
        unknown = sorted(set(given_names) - laws.keys())
        if unknown:
            raise ValueError(f"{argument} must be of {', '.join(laws)}, found {unknown[0]!r}")
    return {name: laws[name] for name in names if name not in left_out}


def _listed(argument: str, names: Iterable[str]) -> list[str]:
    if isinstance(names, str):
        raise ValueError(f"{argument} must be a list of names, found the string {names!r}")
    return list(names)


def try_to_break(laws: Mapping[str, Law[CaseT]], subject: object, examples: int, kind: str) -> None:
    """Raise an AssertionError that names the first law which is broken, and shows the smallest case in which it is."""
    check_count("examples", examples, 1)
    for name, law in laws.items():
        broken: list[CaseT] = []
        try:
            _search(law, subject, examples, broken)
        except Exception as error:
            if not broken:  # hypothesis itself could not go on
                raise
            why = str(error) if isinstance(error, AssertionError) else f"raised {type(error).__name__}: {error}"
            raise AssertionError(
                f"{kind} {subject!r} breaks the law {name!r}.\nThe law: {law.says}\nFound: {why}\n"
                f"The smallest case that was found:\n{broken[-1]}"
            ) from error


def _search(law: Law[CaseT], subject: object, examples: int, broken: list[CaseT]) -> None:
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        report_multiple_bugs=False,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.differing_executors],
    )
    @given(law.cases)
    def check(case: CaseT) -> None:
        try:
            law(subject, case)
        except Exception:
            broken.append(case)  # hypothesis tries the smallest one last
            raise

    check()
