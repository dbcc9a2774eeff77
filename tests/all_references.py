"""All references of rules, by the name of the rule."""

from __future__ import annotations

from collections.abc import Callable

from tests import gossip_references, received_references, references
from tests.references import Answer

REFERENCES: dict[str, Callable[..., Answer]] = (
    references.REFERENCES | received_references.RECEIVED | gossip_references.GOSSIP
)
