"""Warn or raise if ``tolerated`` exceeds the number that a rule has a guarantee for."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from torch import Tensor

from equipoise._utils.validation import check_count, check_flag

# Packages whose frames may stand between a rule and the code of the user that called it.
INNER_PACKAGES = ("equipoise", "torch")

_given: ContextVar[list[str] | None] = ContextVar("_given", default=None)
_served_clients: ContextVar[Tensor | None] = ContextVar("_served_clients", default=None)


class GuaranteeWarning(UserWarning):
    """``tolerated`` exceeds the number of malicious neighbors that the rule has a guarantee for."""


def check_tolerance(tolerated: object, strict: object) -> None:
    """Validate the options of a rule that expects malicious neighbors."""
    if tolerated is not None:
        check_count("tolerated", tolerated, 0)
    check_flag("strict", strict)


def check_guarantee(tolerated: Tensor, most: Tensor, degrees: Tensor, *, strict: bool) -> None:
    """Warn, or raise if ``strict``, where a client tolerates more than ``most``; all are (n,).

    The text names the first such client. A client without neighbors is at no risk. Without
    ``strict``, neither is one that tolerates 0. Degrees count all messages, finite or not: a
    malicious neighbor that sends NaN cannot cause an error. On a GPU the host waits for the result
    once.
    """
    # Without strict, a negative limit counts as 0: a client that expects no malicious neighbor
    # needs no guarantee.
    beyond = (tolerated > (most if strict else most.clamp_min(0))) & (degrees > 0)
    if not beyond.any():
        return
    # Receivers of an inbox may be some of the clients only: see `serving`.
    row = int(beyond.nonzero()[0])
    ids = _served_clients.get()
    client = row if ids is None else int(ids[row])
    found = int(tolerated[row])
    limit = int(most[row])
    degree = int(degrees[row])
    if strict and limit < 0:
        raise ValueError(
            f"client {client} must have more neighbors for strict=True, "
            f"found {degree} with tolerated={found}"
        )
    where = f"for client {client} with {degree} neighbors"
    if strict:
        raise ValueError(
            f"tolerated must be at most {limit} {where}, found {found}; strict=False warns instead"
        )
    _warn(
        f"tolerated must be at most {max(0, limit)} {where}, found {found}: "
        "the guarantee of the rule does not hold; strict=True makes this an error"
    )


def _warn(text: str) -> None:
    """Warn at the line of the caller's code; Python shows the same text once for each such line."""
    given = _given.get()
    if given:
        return
    level = 1
    frame = sys._getframe()
    # Point the warning at the first frame outside of the library, where the call can be changed.
    while frame.f_back is not None and _package(frame.f_globals) in INNER_PACKAGES:
        frame = frame.f_back
        level += 1
    warnings.warn(text, GuaranteeWarning, stacklevel=level)
    if given is not None:
        given.append(text)


def _package(frame_globals: dict[str, object]) -> str:
    return str(frame_globals.get("__name__", "")).partition(".")[0]


@contextmanager
def at_most_one_warning(given: list[str]) -> Iterator[None]:
    """Give only the first `GuaranteeWarning` of all blocks that share the list ``given``.

    The text of the warning is appended to the list, which is empty at first.
    """
    # An outer block that already gave its warning silences this one.
    token = _given.set(_given.get() or given)
    try:
        yield
    finally:
        _given.reset(token)


@contextmanager
def without_warnings() -> Iterator[None]:
    """Give no `GuaranteeWarning` in this block, where exceeding a guarantee is intended."""
    # A list that is not empty stands for a warning that was already given.
    token = _given.set(["no warning is wanted"])
    try:
        yield
    finally:
        _given.reset(token)


@contextmanager
def serving(clients: Tensor | None) -> Iterator[None]:
    """Let warnings and errors call receiver i of an inbox ``clients[i]``, or i for None.

    Within a block like this, ``clients`` are places in its clients.
    """
    outer = _served_clients.get()
    if clients is not None and outer is not None:
        clients = outer[clients.to(outer.device)]
    token = _served_clients.set(clients)
    try:
        yield
    finally:
        _served_clients.reset(token)
