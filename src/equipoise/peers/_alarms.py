"""Log lines about neighbors that are absent or rejected for long, and about rounds alone."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Mapping

logger = logging.getLogger("equipoise.peers")


class Alarms:
    """Says once that something is wrong, and once that it is over.

    Args:
        peer: the name of the peer.
        after: how many exchanges in a row a neighbor may be absent, or rejected, without a word.
    """

    def __init__(self, peer: str, after: int) -> None:
        self._peer = peer
        self._after = after
        self._absent: Counter[str] = Counter()
        self._rejected: Counter[str] = Counter()
        self._is_unheard = False
        self._is_alone = False

    def note_absences(self, neighbors: Collection[str], reasons: Mapping[str, str]) -> None:
        """Take note of which neighbors were absent from an exchange, and why."""
        for name in neighbors:
            self._count(self._absent, name, name in reasons, f"absent ({reasons.get(name)})")
        was_unheard = self._is_unheard
        self._is_unheard = len(reasons) == len(neighbors)
        if self._is_unheard and not was_unheard:
            self._say_alone("no neighbor sent a usable message")

    def note_rejections(self, accepted: Collection[str], rejected: Collection[str]) -> None:
        """Take note of which messages the rule accepted, of those that were present."""
        for name in (*accepted, *rejected):
            self._count(self._rejected, name, name in rejected, "rejected by the rule")
        if not accepted and not rejected:
            return
        was_alone = self._is_alone
        self._is_alone = not accepted
        if self._is_alone and not was_alone:
            self._say_alone("the rule accepted no message")

    def _count(self, streaks: Counter[str], name: str, is_bad: bool, what: str) -> None:
        if is_bad:
            streaks[name] += 1
            if streaks[name] == self._after:
                text = "peer %s: neighbor %s was %s in %d exchanges in a row"
                logger.warning(text, self._peer, name, what, self._after)
        elif streaks.pop(name, 0) >= self._after:
            kind = what.partition(" ")[0]
            logger.info("peer %s: neighbor %s is no longer %s", self._peer, name, kind)

    def _say_alone(self, why: str) -> None:
        logger.warning("peer %s: alone, %s; its model is its own", self._peer, why)
