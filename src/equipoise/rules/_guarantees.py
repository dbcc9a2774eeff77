"""Tolerating more malicious neighbors than a rule guarantees anything for: a warning, or an error where asked for."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from torch import Tensor

from equipoise._utils.validation import check_count, check_flag

INNER = ("equipoise", "torch")  # packages whose frames stand between a rule and the code that called it

_given: ContextVar[list[str] | None] = ContextVar("_given", default=None)
_clients: ContextVar[Tensor | None] = ContextVar("_clients", default=None)


class GuaranteeWarning(UserWarning):
    """More malicious neighbors are tolerated than the rule guarantees anything for."""


def check_tolerance(tolerated: object, strict: object) -> None:
    """Raise unless these are valid hyper-parameters of a rule that expects malicious neighbors."""
    if tolerated is not None:
        check_count("tolerated", tolerated, 0)
    check_flag("strict", strict)


def check_guarantee(tolerated: Tensor, most: Tensor, degrees: Tensor, *, strict: bool) -> None:
    """Warn, or raise if ``strict``, where a client with neighbors tolerates more of them than ``most``; all are (n,).

    The warning names the first such client. Without malicious neighbors nothing can go wrong, so that 0 never warns.
    Degrees count messages, readable or not: a malicious neighbor that sends NaN cannot turn an error on. On a GPU the
    host waits for the result once.
    """
    beyond = (tolerated > (most if strict else most.clamp_min(0))) & (degrees > 0)
    if not beyond.any():
        return
    row = int(beyond.nonzero()[0])
    ids = _clients.get()
    client = row if ids is None else int(ids[row])
    found, limit, degree = int(tolerated[row]), int(most[row]), int(degrees[row])
    if strict and limit < 0:
        raise ValueError(
            f"client {client} must have more neighbors for strict=True, found {degree} with tolerated={found}"
        )
    if strict:
        raise ValueError(
            f"tolerated must be at most {limit} for client {client} with {degree} neighbors, found {found}; "
            "strict=False warns instead"
        )
    _warn(
        f"tolerated must be at most {max(0, limit)} for client {client} with {degree} neighbors, found {found}: "
        "the guarantee of the rule does not hold; strict=True makes this an error"
    )


def _warn(text: str) -> None:
    """Warn at the line of the caller's code; Python shows the same text once for each such line."""
    given = _given.get()
    if given:
        return
    level = 1
    frame = sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in INNER:
        frame = frame.f_back
        level += 1
    warnings.warn(text, GuaranteeWarning, stacklevel=level)
    if given is not None:
        given.append(text)


@contextmanager
def at_most_one_warning(given: list[str]) -> Iterator[None]:
    """Give only the first `GuaranteeWarning` of all blocks that share ``given``, an empty list, and add it there."""
    token = _given.set(_given.get() or given)
    try:
        yield
    finally:
        _given.reset(token)


@contextmanager
def without_warnings() -> Iterator[None]:
    """Give no `GuaranteeWarning`, where rules are deliberately called without a guarantee."""
    token = _given.set(["no warning is wanted"])
    try:
        yield
    finally:
        _given.reset(token)


@contextmanager
def serving(clients: Tensor) -> Iterator[None]:
    """Receiver i of an inbox is called ``clients[i]`` by warnings and errors."""
    token = _clients.set(clients)
    try:
        yield
    finally:
        _clients.reset(token)
