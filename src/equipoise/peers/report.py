"""Counts of the messages of a peer's neighbors."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


def kind_of(reason: str) -> str:
    """The part of a reason before the colon, such as ``late``."""
    return reason.partition(":")[0]


@dataclass
class NeighborReport:
    """Counts of one neighbor since the peer was made.

    Args:
        received: messages that counted in an exchange.
        stale: how many of them were of an earlier round.
        absent: exchanges without a message that counted, by kind of reason, such as ``silent``,
            ``late``, ``malformed`` or ``non-finite``.
        accepted: messages to which the rule gave a weight.
        rejected: messages to which it gave none.
        refused: messages that were not taken at all, by kind of reason. A neighbor may send many
            in one exchange.
        sent: messages that the neighbor has taken.
        unsent: messages that did not get to the neighbor, by kind of reason.
        bytes_received: size of all complete messages.
        bytes_sent: size of the messages that the neighbor has taken.
        seconds_waited: the time from the start of an exchange to the message, summed over the
            messages that arrived during their exchange or before it.
    """

    received: int = 0
    stale: int = 0
    absent: Counter[str] = field(default_factory=Counter)
    accepted: int = 0
    rejected: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    sent: int = 0
    unsent: Counter[str] = field(default_factory=Counter)
    bytes_received: int = 0
    bytes_sent: int = 0
    seconds_waited: float = 0.0

    @property
    def latency(self) -> float:
        """Mean seconds from the start of an exchange to the message of this neighbor."""
        return self.seconds_waited / max(1, self.received - self.stale)


@dataclass(frozen=True)
class Report:
    """The counts of a peer so far; print it for a table.

    Args:
        neighbors: counts by name.
        exchanges: number of completed exchanges.
        alone: exchanges in which no message was present, or the rule accepted none.
        strangers: refused messages of peers that are not neighbors, by kind of reason.

    >>> neighbors = {"site-b": eq.peers.NeighborReport(received=9, accepted=8, rejected=1)}
    >>> print(eq.peers.Report(neighbors, exchanges=10))
    10 exchanges, 0 alone
    neighbor  received  accepted  rejected  absent  latency ms  MB in  MB out
    site-b           9         8         1       0         0.0    0.0     0.0
    """

    neighbors: dict[str, NeighborReport]
    exchanges: int = 0
    alone: int = 0
    strangers: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        width = max((len(name) for name in self.neighbors), default=0)
        width = max(width, len("neighbor"))
        columns = ("received", "accepted", "rejected", "absent", "latency ms", "MB in", "MB out")
        lines = [f"{self.exchanges} exchanges, {self.alone} alone"]
        lines.append("  ".join([f"{'neighbor':{width}}", *columns]))
        for name, of in self.neighbors.items():
            numbers = (
                f"{of.received}",
                f"{of.accepted}",
                f"{of.rejected}",
                f"{of.absent.total()}",
                f"{1e3 * of.latency:.1f}",
                f"{of.bytes_received / 1e6:.1f}",
                f"{of.bytes_sent / 1e6:.1f}",
            )
            cells = [f"{x:>{len(column)}}" for x, column in zip(numbers, columns, strict=True)]
            reasons = ", ".join(f"{kind} {count}" for kind, count in of.absent.most_common())
            lines.append("  ".join([f"{name:{width}}", *cells, reasons]).rstrip())
        if self.strangers:
            found = ", ".join(f"{kind} {count}" for kind, count in self.strangers.items())
            lines.append(f"refused from others: {found}")
        return "\n".join(lines)
