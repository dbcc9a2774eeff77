"""Peers in one process: rounds, reports, and errors of the caller."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor

import equipoise as eq
from equipoise.peers import Endpoint, InMemoryNetwork, Peer

OWN = torch.zeros(3)


def peers(*names: str, **options: Any) -> list[Peer]:
    """A complete graph of peers."""
    network = InMemoryNetwork()
    return [
        Peer(name, [x for x in names if x != name], transport=network.transport(name), **options)
        for name in names
    ]


def alone(**options: Any) -> Peer:
    """A peer whose only neighbor is silent."""
    return Peer("a", ["b"], transport=InMemoryNetwork().transport("a"), **options)


def together(found: list[Peer], models: list[Tensor], t: int) -> list[eq.Inbox]:
    with ThreadPoolExecutor(len(found)) as pool:
        return list(pool.map(lambda peer, own: peer.exchange(own, t, deadline=60.0), found, models))


def test_everybody_hears_everybody() -> None:
    found = peers("a", "b", "c")
    inboxes = together(found, [torch.full((2,), float(i)) for i in range(3)], 0)
    assert [inbox.bank[inbox.slots[0]].mean(1).tolist() for inbox in inboxes] == [
        [1.0, 2.0],
        [0.0, 2.0],
        [0.0, 1.0],
    ]
    assert [inbox.senders.tolist() for inbox in inboxes] == [[[1, 2]], [[0, 2]], [[0, 1]]]


def test_silent_neighbor_costs_the_deadline() -> None:
    begun = time.monotonic()
    with alone() as peer:
        inbox = peer.exchange(OWN, 0, deadline=0.05)
    assert 0.05 <= time.monotonic() - begun < 5
    assert not inbox.mask.any()
    assert eq.Balance()(OWN, inbox, t=0, total=1).model.equal(OWN)


def test_deadline_can_pass_before_sending() -> None:
    timeouts: list[float] = []

    class Recorder:
        def start(self, endpoint: Endpoint) -> None: ...
        def close(self) -> None: ...
        def send(self, neighbor: str, chunks: Sequence[bytes], timeout: float) -> None:
            timeouts.append(timeout)

    Peer("a", ["b"], transport=Recorder()).exchange(OWN, 0, deadline=1e-9)
    assert timeouts == [0.0]


def test_ids_follow_names_of_all_clients() -> None:
    network = InMemoryNetwork()
    peer = Peer("c", ["e", "b"], names="fedcba", transport=network.transport("c"))
    assert peer.neighbors == ("b", "e")
    assert peer.names == tuple("abcdef")
    with peer:
        assert peer.exchange(OWN, 0, deadline=0.01).senders.tolist() == [[1, 4]]


def test_rounds_must_increase() -> None:
    with alone() as peer:
        peer.exchange(OWN, 3, deadline=0.01)
        with pytest.raises(ValueError, match="t must increase with each exchange, found t=3"):
            peer.exchange(OWN, 3, deadline=0.01)
        peer.exchange(OWN, 3, deadline=0.01, exchange=1)
        peer.exchange(OWN, 9, deadline=0.01)


def test_failed_exchange_can_be_repeated() -> None:
    with alone(dtype=torch.int8) as peer:
        with pytest.raises(ValueError, match="must be finite"):
            peer.exchange(OWN / 0, 0, deadline=0.01)
        peer.exchange(OWN, 0, deadline=0.01)


def test_exchanges_of_two_threads_are_an_error() -> None:
    with alone() as peer, ThreadPoolExecutor(1) as pool:
        first = pool.submit(peer.exchange, OWN, 0, deadline=1.0)
        while not peer._turn.locked():
            time.sleep(0.001)
        with pytest.raises(RuntimeError, match="found two at a time"):
            peer.exchange(OWN, 1, deadline=0.01)
        first.result()


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"own": torch.zeros(2, 3)}, r"own must be a floating-point tensor of shape \(d,\)"),
        ({"own": torch.zeros(3, dtype=torch.int64)}, "own must be a floating-point"),
        ({"own": torch.zeros(0)}, "d > 0"),
        ({"t": -1}, "t must be an integer at least 0"),
        ({"deadline": 0}, "deadline must be a finite number of seconds > 0, found 0"),
        ({"deadline": float("inf")}, "deadline must be a finite number of seconds"),
        ({"exchange": 0.5}, "exchange must be an integer at least 0"),
    ],
)
def test_wrong_arguments_of_exchange(changes: dict[str, Any], text: str) -> None:
    arguments: dict[str, Any] = {"own": OWN, "t": 0, "deadline": 0.01, **changes}
    with alone() as peer, pytest.raises(ValueError, match=text):
        peer.exchange(arguments.pop("own"), arguments.pop("t"), **arguments)


@pytest.mark.parametrize(
    ("name", "neighbors", "options", "text"),
    [
        ("a", ["a", "b"], {}, "neighbors must be other peers, found 'a'"),
        ("a", ["b", "b"], {}, "neighbors must have distinct names"),
        ("", ["b"], {}, "names of peers must be strings that are not empty"),
        ("a", [1], {}, "names of peers must be strings"),
        ("a", ["b"], {"names": ["a"]}, "names must hold all clients, found none for b"),
        ("a", ["b"], {"stash": 0}, "stash must be an integer at least 1"),
        ("a", ["b"], {"max_staleness": -1}, "max_staleness must be an integer at least 0"),
        ("a", ["b"], {"transport": None}, "found names without addresses"),
        ("a", {"b": "localhost:1"}, {"transport": None}, "listen must be an address"),
    ],
)
def test_wrong_arguments_of_peer(
    name: str, neighbors: Any, options: dict[str, Any], text: str
) -> None:
    transport = InMemoryNetwork().transport("a")
    with pytest.raises(ValueError, match=text):
        Peer(name, neighbors, **{"transport": transport, **options})


def test_report_counts_reasons_and_decisions() -> None:
    found = peers("a", "b", "c")
    models = [torch.ones(3), torch.full((3,), torch.nan), torch.full((3,), 100.0)]
    inbox = together(found, models, 0)[0]
    found[0].record(eq.Balance()(models[0], inbox, t=0, total=1))
    report = found[0].report()
    assert report.neighbors["b"].absent == {"non-finite": 1}
    assert (report.neighbors["c"].accepted, report.neighbors["c"].rejected) == (0, 1)
    assert report.alone == 1
    assert report.exchanges == 1
    assert "non-finite 1" in str(report)


def test_report_is_a_copy() -> None:
    with alone() as peer:
        peer.report().neighbors["b"].received = 9
        assert peer.report().neighbors["b"].received == 0


def test_run_exchanges_serves_rules_with_several() -> None:
    found = peers("a", "b")

    def play(peer: Peer) -> eq.Aggregated:
        inputs = {"total": 50, "tolerated": 0, "update": OWN}
        return peer.run_exchanges(eq.LEARN(), OWN + 1, 8, deadline=60.0, **inputs)[1]

    with ThreadPoolExecutor(2) as pool:
        outs = list(pool.map(play, found))
    assert [out.model.tolist() for out in outs] == [[1.0] * 3] * 2
    report = found[0].report()
    assert report.exchanges > 1
    assert report.neighbors["b"].received == report.exchanges


def test_newest_round_is_of_the_majority() -> None:
    found = peers("a", "b", "c", "d")
    a = found[0]
    assert a.newest_round() is None
    a.exchange(OWN, 0, deadline=0.01)
    for peer, t in zip(found[1:], (10**12, 7, 5), strict=True):
        peer.exchange(OWN, t, deadline=0.05)
    assert a.newest_round() == 7


def test_early_minority_does_not_choose_newest_round() -> None:
    a, b, c, d = peers("a", "b", "c", "d")
    a.exchange(OWN, 0, deadline=0.01)
    b.exchange(OWN, 10**12, deadline=0.05)
    assert a.newest_round() is None
    c.exchange(OWN, 4, deadline=0.05)
    assert a.newest_round() == 4
    d.exchange(OWN, 5, deadline=0.05)
    assert a.newest_round() == 5


def test_newest_round_tolerates_malicious_neighbors() -> None:
    a, b, c, d, _ = peers("a", "b", "c", "d", "e")
    a.exchange(OWN, 0, deadline=0.01)
    for peer, t in ((b, 10**12), (c, 9), (d, 7)):
        peer.exchange(OWN, t, deadline=0.05)
    found = [a.newest_round(tolerated=count) for count in range(5)]
    assert found == [10**12, 9, 7, None, None]
    with pytest.raises(ValueError, match="tolerated must be an integer at least 0"):
        a.newest_round(tolerated=-1)


def test_peer_without_neighbors_knows_no_round() -> None:
    assert Peer("a", [], transport=InMemoryNetwork().transport("a")).newest_round() is None


def test_skipping_to_newest_round_joins_the_others() -> None:
    found = peers("a", "b", "c")
    a, *others = found
    a.exchange(OWN, 0, deadline=0.01)
    with ThreadPoolExecutor(2) as pool:
        ahead = [pool.submit(peer.exchange, OWN + 1, 6, deadline=60.0) for peer in others]
        while a.newest_round() != 6:
            time.sleep(0.001)
        assert a.exchange(OWN, 6, deadline=60.0).mask.all()
        assert all(one.result().mask.all() for one in ahead)


def test_peer_starts_at_first_exchange() -> None:
    peer = alone()
    peer.exchange(OWN, 0, deadline=0.01)
    peer.close()
    peer.close()


def test_closed_peer_cannot_go_on() -> None:
    peer = alone()
    peer.exchange(OWN, 0, deadline=0.01)
    peer.close()
    with pytest.raises(RuntimeError, match="a closed peer cannot start again"):
        peer.exchange(OWN, 1, deadline=60.0)
    begun = time.monotonic()
    peer.close()  # nothing is on its way
    assert time.monotonic() - begun < 30


class HeldTransport:
    """Answers a message at once, and does not say that it has been delivered."""

    closed = False

    def start(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint

    def send(self, neighbor: str, chunks: Sequence[bytes], timeout: float) -> None:
        incoming = self.endpoint.open(neighbor)
        incoming.write(eq.pack(OWN, round=0, sender=neighbor))
        incoming.complete()
        incoming.close()

    def close(self) -> None:
        self.closed = True


def test_closing_waits_for_last_message() -> None:
    transport = HeldTransport()
    peer = Peer("a", ["b"], transport=transport)
    peer.exchange(OWN, 0, deadline=60.0)
    with ThreadPoolExecutor(1) as pool:
        closing = pool.submit(peer.close)
        time.sleep(0.05)
        assert not transport.closed
        transport.endpoint.sent("b", 1, None)
        closing.result()
    assert transport.closed


def test_error_closes_at_once() -> None:
    transport = HeldTransport()
    peer = Peer("a", ["b"], transport=transport)
    peer.exchange(OWN, 0, deadline=60.0)
    error = KeyError()
    peer.__exit__(KeyError, error, error.__traceback__)
    assert transport.closed


def test_closing_waits_no_longer_than_deadline() -> None:
    begun = time.monotonic()
    with alone() as peer:
        peer.exchange(OWN, 0, deadline=0.05)
    assert time.monotonic() - begun < 5


def test_models_are_not_modified() -> None:
    own = torch.ones(3, requires_grad=True)
    with alone() as peer:
        peer.exchange(own, 0, deadline=0.01)
    assert own.requires_grad
    assert own.tolist() == [1.0] * 3


def test_broken_guarantee_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    a, b = peers("a", "b")

    def play() -> None:
        for t in range(3):
            a.run_exchanges(eq.Krum(tolerated=5), OWN, t, deadline=60.0)

    with ThreadPoolExecutor(1) as pool:
        others = [pool.submit(b.exchange, OWN, t, deadline=60.0) for t in range(3)]
        with pytest.warns(eq.GuaranteeWarning):
            play()
    assert all(one.result().mask.all() for one in others)
    told = [line for line in caplog.messages if "guarantee" in line]
    assert len(told) == 1
    assert told[0].startswith("peer a: tolerated must be at most")
