"""The search for a case that breaks a law, and its report."""

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
    """A law and its cases: ``law(subject, case)`` raises an AssertionError if the law is broken.

    The statement of the law is the summary of the docstring of ``documented``.
    """

    def __init__(
        self,
        check: Callable[[object, CaseT], None],
        cases: SearchStrategy[CaseT],
        documented: object,
    ) -> None:
        self.check = check
        self.cases = cases
        summary = (inspect.getdoc(documented) or "").partition("\n\n")[0]
        self.statement = summary.replace("\n", " ")

    def __call__(self, subject: object, case: CaseT) -> None:
        """Check one case, and restore the autograd mode if the subject changes it."""
        # The law `purity` reports the change; the next law must not suffer from it.
        with torch.set_grad_enabled(torch.is_grad_enabled()):
            self.check(subject, case)

    def __repr__(self) -> str:
        return f"Law({self.statement!r})"


def select_laws(
    laws: Mapping[str, Law[CaseT]], only: Iterable[str] | None, skip: Iterable[str]
) -> dict[str, Law[CaseT]]:
    """Return the laws with these names, or all, without those to skip."""
    names = list(laws) if only is None else _as_names("laws", only)
    skipped = _as_names("skip", skip)
    # Unknown names in `skip` too: a misspelled one would skip nothing.
    for argument, given_names in (("laws", names), ("skip", skipped)):
        unknown = sorted(set(given_names) - laws.keys())
        if unknown:
            raise ValueError(f"{argument} must be of {', '.join(laws)}, found {unknown[0]!r}")
    return {name: laws[name] for name in names if name not in skipped}


def _as_names(argument: str, names: Iterable[str]) -> list[str]:
    # A string is an iterable of names of one character each.
    if isinstance(names, str):
        raise ValueError(f"{argument} must be a list of names, found the string {names!r}")
    return list(names)


def require_laws(laws: Mapping[str, Law[CaseT]], subject: object, examples: int, kind: str) -> None:
    """Raise an AssertionError with the first broken law and the smallest case that breaks it."""
    check_count("examples", examples, 1)
    for name, law in laws.items():
        broken: list[CaseT] = []
        try:
            _search(law, subject, examples, broken)
        except Exception as error:
            if not broken:  # the error is hypothesis's own
                raise
            found = str(error)
            if not isinstance(error, AssertionError):
                found = f"raised {type(error).__name__}: {error}"
            raise AssertionError(
                f"{kind} {subject!r} breaks the law {name!r}.\n"
                f"The law: {law.statement}\n"
                f"Found: {found}\n"
                f"The smallest case that was found:\n{broken[-1]}"
            ) from error


def _search(law: Law[CaseT], subject: object, examples: int, broken: list[CaseT]) -> None:
    """Run hypothesis on a law; append the cases that break it."""

    @settings(
        max_examples=examples,
        deadline=None,  # the first call loads the kernels
        database=None,  # a check must not depend on earlier runs
        report_multiple_bugs=False,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.differing_executors],
    )
    @given(law.cases)
    def check(case: CaseT) -> None:
        try:
            law(subject, case)
        except Exception:
            broken.append(case)  # hypothesis tries the smallest case last
            raise

    check()
