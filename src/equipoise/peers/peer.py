"""A client that is a process of its own and exchanges models with its neighbors."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from itertools import count
from threading import Lock
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor

from equipoise._utils.validation import check_count, describe, is_floating, is_number
from equipoise.messages import Inbox
from equipoise.messages.wire import pack_parts
from equipoise.peers._alarms import Alarms, logger
from equipoise.peers._arriving import Position
from equipoise.peers._mailbox import Mailbox
from equipoise.peers.credentials import Credentials
from equipoise.peers.grpc_transport import GrpcTransport
from equipoise.peers.report import Report, kind_of
from equipoise.peers.transport import CHUNK_BYTES, Transport
from equipoise.rules import Aggregator, MultiExchange, at_most_one_warning, run_exchanges, serving
from equipoise.types import Aggregated


class Peer:
    """One client of decentralized training, in a process of its own.

    In each round, `exchange` sends a model to all neighbors and returns an `Inbox` with what they
    have sent, by the deadline at the latest. Neighbors are not trusted: whatever one of them sends,
    it can only make its own message absent. ``inbox.absences`` says why a message is absent.

    A peer starts to listen when it is entered as a context manager, by `start`, or at the first
    exchange.

    Args:
        name: the name of this peer.
        neighbors: the address ``"host:port"`` of each neighbor by name, or only their names with a
            ``transport`` that knows where they are.
        listen: the address to listen at; port 0 picks a free one.
        credentials: certificates for mutual TLS, see `Credentials`. Without them, anybody who
            reaches the port can speak in the name of a neighbor, and addresses that are not on
            this machine are an error.
        insecure: allow other addresses without credentials.
        names: the names of all clients, if they are known. The id of a client is its position in
            their alphabetical order; by default, in that of this peer and its neighbors. So ties
            between messages, which go to the lowest id, are resolved alike by all peers.
        dtype: the dtype of values on the wire, by default that of the models. float16, bfloat16
            and int8 make messages smaller, and inexact.
        stash: how many messages of a neighbor that is ahead may wait for later exchanges. The
            messages of k neighbors take at most ``k * (4 + stash)`` models of memory, or
            ``k * (2 + stash)`` without late messages; those of float64, if a neighbor sends these.
        max_staleness: a message that came too late for its round stands in for an absent one if it
            is at most so many rounds old; 0 drops late messages. Then a silent neighbor can keep
            others apart: no exchange ends before its deadline, and a peer that is late by more than
            that once is late in every round.
        alarm_after: a neighbor that is absent or rejected in so many exchanges in a row is logged,
            to the logger ``equipoise.peers``.
        transport: what carries the messages, by default gRPC, which needs ``equipoise[peers]``.

    >>> network = eq.peers.InMemoryNetwork()
    >>> with eq.Peer("a", ["b"], transport=network.transport("a")) as peer:
    ...     own = torch.zeros(2)
    ...     inbox = peer.exchange(own, 0, deadline=0.01)
    ...     print(eq.Balance()(own, inbox, t=0, total=10).model)
    tensor([0., 0.])
    """

    def __init__(
        self,
        name: str,
        neighbors: Mapping[str, str] | Iterable[str],
        *,
        listen: str | None = None,
        credentials: Credentials | None = None,
        insecure: bool = False,
        names: Iterable[str] | None = None,
        dtype: torch.dtype | None = None,
        stash: int = 1,
        max_staleness: int = 1,
        alarm_after: int = 10,
        transport: Transport | None = None,
    ) -> None:
        check_count("stash", stash, 1)
        check_count("max_staleness", max_staleness, 0)
        check_count("alarm_after", alarm_after, 1)
        addresses = dict(neighbors) if isinstance(neighbors, Mapping) else None
        found = sorted(neighbors)
        self.names = _all_names(name, found, names)
        self.name = name
        self.neighbors = tuple(found)
        self.ids = {other: i for i, other in enumerate(self.names)}
        self._senders = tuple(self.ids[other] for other in found)
        if transport is None:
            transport = _grpc_transport(name, addresses, listen, credentials, insecure)
        self._transport = transport
        self._dtype = dtype
        self._mailbox = Mailbox(found, stash=stash, max_staleness=max_staleness)
        self._alarms = Alarms(name, alarm_after)
        self._position: Position | None = None
        self._end = 0.0  # the deadline of the last exchange
        self._inbox: Inbox | None = None  # the last one
        self._exchanges = 0
        self._alone = 0
        self._warned: list[str] = []
        self._is_started = False
        self._is_closed = False
        self._turn = Lock()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {list(self.neighbors)})"

    # Life

    def start(self) -> None:
        """Begin to listen. A second call does nothing."""
        if self._is_closed:
            raise RuntimeError("a closed peer cannot start again, make a new one")
        if not self._is_started:
            self._transport.start(self._mailbox)
            self._is_started = True

    def close(self) -> None:
        """Stop listening and sending. A closed peer cannot start again.

        Messages of the last exchange that are still on their way get until its deadline: a neighbor
        that trains longer may not have taken them yet.
        """
        self._mailbox.drain(self._end)
        self._close_now()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # After an error or Ctrl-C there is nothing to wait for.
        if error is None:
            self._mailbox.drain(self._end)
        self._close_now()

    def _close_now(self) -> None:
        self._is_closed = True
        self._transport.close()

    # Rounds

    def exchange(self, own: Tensor, t: int, *, deadline: float, exchange: int = 0) -> Inbox:
        """Send ``own`` (d,) to all neighbors, and receive theirs.

        Returns when every neighbor has been heard, at the latest after ``deadline`` seconds. A
        neighbor without a message in time is absent. Rounds must increase from call to call, and
        may be skipped.

        Args:
            own: the model to send; it is not kept.
            t: the round.
            deadline: the number of seconds that the exchange may take.
            exchange: the number of this exchange within its round, for rules with several.
        """
        check_seconds("deadline", deadline)
        end = time.monotonic() + deadline
        if not self._turn.acquire(blocking=False):
            raise RuntimeError("exchange must end before the next one begins, found two at a time")
        try:
            position = self._next_position(own, t, exchange)
            self.start()
            self._end = end
            inbox = self._talk(own.detach(), position, end)
        finally:
            self._turn.release()
        self._note(inbox)
        return inbox

    def _talk(self, own: Tensor, position: Position, end: float) -> Inbox:
        """Send own to all neighbors and receive their messages until the time ``end``."""
        payload = self._pack(own, position)
        self._mailbox.begin(own, position)
        self._position = position
        for neighbor in self.neighbors:
            # On a busy machine, the time can be over before the message is on its way.
            self._transport.send(neighbor, payload, max(0.0, end - time.monotonic()))
        return self._mailbox.finish(self._senders, end)

    def _pack(self, model: Tensor, position: Position) -> list[bytes]:
        """A message in chunks."""
        t, exchange = position
        header, values = pack_parts(
            model, round=t, sender=self.name, exchange=exchange, dtype=self._dtype
        )
        # The only copy of the values, so that the model may change while the message is sent.
        first = CHUNK_BYTES - len(header)
        rest = range(first, len(values), CHUNK_BYTES)
        chunks = [header + values[:first]]
        return chunks + [bytes(values[start : start + CHUNK_BYTES]) for start in rest]

    def _next_position(self, own: Tensor, t: int, exchange: int) -> Position:
        if not is_floating(own) or own.dim() != 1 or not own.numel():
            expected = "a floating-point tensor of shape (d,) with d > 0"
            raise ValueError(f"own must be {expected}, found {describe(own)}")
        check_count("t", t, 0)
        check_count("exchange", exchange, 0)
        position = Position(int(t), int(exchange))
        if self._position is not None and position <= self._position:
            last = f"t={self._position.t}, exchange={self._position.exchange}"
            found = f"t={position.t}, exchange={position.exchange}"
            raise ValueError(f"t must increase with each exchange, found {found} after {last}")
        return position

    def run_exchanges(
        self,
        rule: Aggregator | MultiExchange,
        own: Tensor,
        t: int,
        *,
        deadline: float,
        **inputs: Any,
    ) -> tuple[Tensor, Aggregated]:
        """Run all exchanges of a round with any rule, also one that exchanges several times.

        Returns the model to mix with, and the aggregate, as `equipoise.run_exchanges` does; the
        other arguments are the round inputs of the rule. The deadline holds for each exchange. What
        the rule accepted is counted in `report`.
        """
        numbers = count()

        def exchange(sent: Tensor) -> Inbox:
            return self.exchange(sent, t, deadline=deadline, exchange=next(numbers))

        known = len(self._warned)
        me = torch.tensor([self.ids[self.name]])
        with at_most_one_warning(self._warned), serving(me):
            mixed_with, out = run_exchanges(rule, own, exchange, t=t, **inputs)
        for text in self._warned[known:]:
            logger.warning("peer %s: %s", self.name, text)
        self.record(out)
        return mixed_with, out

    def newest_round(self, *, tolerated: int | None = None) -> int | None:
        """The newest round that more than ``tolerated`` neighbors have reached, None before that.

        At least one of them is benign if at most ``tolerated`` are malicious, so malicious
        neighbors alone cannot choose the round, not even while the others are silent. By default,
        half of the neighbors are tolerated. A peer that was stopped or restarted goes on there:
        ``t = max(t + 1, peer.newest_round(tolerated=1) or 0)``. A small number lets peers meet
        again after a fault that has hit most of them: the others may be rounds ahead, and do not
        wait.
        """
        announced = sorted(self._mailbox.newest_rounds(), reverse=True)
        if tolerated is None:
            tolerated = len(announced) // 2
        check_count("tolerated", tolerated, 0)
        newest = announced[tolerated] if tolerated < len(announced) else -1
        return None if newest < 0 else newest

    # Counts and alarms

    def record(self, out: Aggregated) -> None:
        """Count which messages of the last exchange the rule accepted; see `report`."""
        inbox = self._inbox
        if inbox is None or out.weights is None:
            return
        present = inbox.present[0].tolist()
        weights = out.weights.reshape(-1).tolist()
        accepted: list[str] = []
        rejected: list[str] = []
        for name, weight, is_present in zip(self.neighbors, weights, present, strict=True):
            if is_present:
                (accepted if weight > 0 else rejected).append(name)
        self._mailbox.count_decisions(accepted, rejected)
        self._alone += bool(rejected) and not accepted
        self._alarms.note_rejections(accepted, rejected)

    def report(self) -> Report:
        """The counts of this peer so far."""
        neighbors, strangers = self._mailbox.reports()
        return Report(neighbors, self._exchanges, self._alone, strangers)

    def _note(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self._exchanges += 1
        reasons = {self.names[sender]: reason for sender, reason in inbox.absences.items()}
        self._mailbox.count_absences({name: kind_of(x) for name, x in reasons.items()})
        self._alone += len(reasons) == len(self.neighbors)
        self._alarms.note_absences(self.neighbors, reasons)


def check_seconds(name: str, value: object) -> None:
    """Raise unless ``value`` is a finite number of seconds greater than 0."""
    if not is_number(value) or not 0 < value < math.inf:
        raise ValueError(f"{name} must be a finite number of seconds > 0, found {value!r}")


def _all_names(name: str, neighbors: list[str], names: Iterable[str] | None) -> tuple[str, ...]:
    """The names of all known clients in the order of their ids."""
    for one in (name, *neighbors):
        if not isinstance(one, str) or not one:
            raise ValueError(f"names of peers must be strings that are not empty, found {one!r}")
    if name in neighbors:
        raise ValueError(f"neighbors must be other peers, found {name!r}, the peer itself")
    if len(set(neighbors)) < len(neighbors):
        raise ValueError(f"neighbors must have distinct names, found {neighbors}")
    known = {name, *neighbors}
    if names is None:
        return tuple(sorted(known))
    everyone = set(names)
    if not known <= everyone:
        missing = sorted(known - everyone)
        raise ValueError(f"names must hold all clients, found none for {', '.join(missing)}")
    return tuple(sorted(everyone))


def _grpc_transport(
    name: str,
    addresses: dict[str, str] | None,
    listen: str | None,
    credentials: Credentials | None,
    insecure: bool,
) -> Transport:
    if addresses is None:
        expected = 'neighbors must map names to addresses, such as {"site-b": "host:7000"}'
        raise ValueError(f"{expected}, found names without addresses")
    if listen is None:
        raise ValueError('listen must be an address, such as "0.0.0.0:7000", found None')
    return GrpcTransport(name, addresses, listen=listen, credentials=credentials, insecure=insecure)
