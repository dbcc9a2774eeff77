"""The results of a run: one record per round, and summaries of them."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import copy
from itertools import chain
from pathlib import Path
from typing import Any

from equipoise._utils.atomic_write import atomic_write
from equipoise._utils.validation import Clients, as_mask, check_count
from equipoise.simulation._long_table import LONG_COLUMNS, LongRow, as_csv, as_frame, long_rows
from equipoise.simulation.record import Round as Round
from equipoise.simulation.record import as_list, as_round

HISTORY_FORMAT = 1  # the version number in files that to_json writes
ISOLATION_ADVICE = "check initial models, learning rate and the rule's limit"


class History:
    """The rounds of a run of n clients, in order.

    Maxima and means are those over benign clients: the maximum of a metric is Max.TER, Max.MSE or
    Max.ASR of the BALANCE paper. If one of the values is NaN, so is their maximum. Two histories
    are equal if their clients and results are equal; names and times do not matter.

    Args:
        n: number of clients.
        malicious: bool mask (n,) or client ids; at least one client must be benign.
        name: a label for tables and figures.
        rounds: the records to begin with.
        seed: the seed of the run, if it has one.

    >>> from equipoise.simulation.history import History, Round
    >>> history = History(3, malicious=[2], name="Balance")
    >>> history.add(Round(0, {"error": (0.5, 0.75, 1.0)}, {"consensus": 0.5}))
    >>> history.add(Round(1))
    >>> history.add(Round(2, {"error": (0.25, 0.125, 1.0)}, {"consensus": 0.25}))
    >>> history
    History(n=3, malicious=1, rounds=3)
    >>> history.worst("error")
    ([0, 2], [0.75, 0.25])
    >>> print(history)
    Balance: 3 clients, 1 malicious, 3 rounds
    max_error    0.25
    mean_error   0.1875
    tail_error   0.25
    consensus    0.25
    diverged     0
    """

    def __init__(
        self,
        n: int,
        malicious: Clients | None = None,
        name: str = "",
        rounds: Iterable[Round] = (),
        seed: int | None = None,
    ) -> None:
        check_count("n", n, 1)
        if seed is not None:
            check_count("seed", seed, 0)
        if not isinstance(name, str):
            raise ValueError(f"name must be a string, found {name!r}")
        is_malicious = as_mask(malicious, n).tolist()
        # Maxima and means are over benign clients, so there must be one.
        if all(is_malicious):
            raise ValueError(f"malicious must leave a benign client, found all {n} clients")
        self.n = int(n)
        self.name = name
        self.seed = seed if seed is None else int(seed)
        self.malicious = tuple(i for i in range(n) if is_malicious[i])
        self.benign = tuple(i for i in range(n) if not is_malicious[i])
        self.diverged: dict[int, int] = {}
        """Benign clients with a non-finite model, and the round after which it first was."""
        self.evaluated: list[Round] = []
        """The rounds that hold metrics of clients."""
        self._rounds: list[Round] = []
        for record in rounds:
            self.add(record)

    def add(self, round: Round) -> None:
        """Append a round; its number must be larger than those of the rounds before."""
        # Gaps are allowed: a history need not hold every round.
        if self._rounds and round.t <= self._rounds[-1].t:
            last = self._rounds[-1].t
            raise ValueError(f"round must come after round {last}, found round {round.t}")
        for metric, values in round.clients.items():
            if len(values) != self.n:
                expected = f"{self.n} values of {metric}, one per client"
                raise ValueError(f"round must hold {expected}, found {len(values)}")
        for client in round.diverged:
            check_count("diverged", client, 0, self.n - 1)
        self._rounds.append(round)
        if round.clients:
            self.evaluated.append(round)
        # Malicious clients may hold any models. Of each benign one, the first round counts.
        for client in set(round.diverged).difference(self.malicious, self.diverged):
            self.diverged[client] = round.t

    def extended(self, round: Round) -> History:
        """A copy with one more round; this history stays as it is.

        >>> before = History(2)
        >>> after = before.extended(Round(0))
        >>> len(before), len(after)
        (0, 1)
        """
        # Records are shared: a copy of two lists takes microseconds, even after many rounds.
        longer = copy(self)
        longer._rounds = self._rounds.copy()
        longer.evaluated = self.evaluated.copy()
        longer.diverged = self.diverged.copy()
        longer.add(round)
        return longer

    def __len__(self) -> int:
        return len(self._rounds)

    def __getitem__(self, index: int) -> Round:
        return self._rounds[index]

    def __iter__(self) -> Iterator[Round]:
        return iter(self._rounds)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, History):
            return NotImplemented
        return (self.n, self.malicious, self._rounds) == (other.n, other.malicious, other._rounds)

    def __repr__(self) -> str:
        return f"History(n={self.n}, malicious={len(self.malicious)}, rounds={len(self)})"

    def __str__(self) -> str:
        head = f"{self.n} clients, {len(self.malicious)} malicious, {len(self)} rounds"
        if self.name:
            head = f"{self.name}: {head}"
        table = {name: f"{value:.4g}" for name, value in self.summary().items() if name != "rounds"}
        accepted_none = "benign clients accepted no message"
        # `alone` is the stronger finding: in such a round all benign clients are isolated.
        if any(record.alone for record in self):
            table["alone"] += (
                f" of {len(self)} rounds, in which {accepted_none}: {ISOLATION_ADVICE}"
            )
        elif float(table.get("isolated", 0)):
            table["isolated"] += f" {accepted_none} in the last round: {ISOLATION_ADVICE}"
        if "idle" in table:
            table["idle"] += " malicious clients not trained: no client hears their models"
        if self.diverged:
            table["diverged"] += f", the first in round {min(self.diverged.values())}"
        width = max(map(len, table)) + 2
        return "\n".join([head, *(f"{name:<{width}}{text}" for name, text in table.items())])

    # One metric, over rounds or over clients

    def worst(self, metric: str) -> tuple[list[int], list[float]]:
        """The rounds in which a metric was measured, and its maximum over benign clients."""
        return self._over_rounds(metric, _maximum)

    def mean(self, metric: str) -> tuple[list[int], list[float]]:
        """The rounds in which a metric was measured, and its mean over benign clients."""
        return self._over_rounds(metric, _mean_or_nan)

    def series(self, name: str) -> tuple[list[int], list[float]]:
        """The rounds in which a value of the whole system was recorded, and that value.

        >>> rounds = [Round(t, values={"consensus": 1 / 2**t}) for t in range(3)]
        >>> history = History(2, rounds=rounds)
        >>> history.series("consensus")
        ([0, 1, 2], [1.0, 0.5, 0.25])
        """
        # A name that is not hashable would raise a TypeError.
        found = [record for record in self if isinstance(name, str) and name in record.values]
        if not found:
            names = sorted({name for record in self for name in record.values})
            known = f"one of {names}" if names else "a recorded value, but the history has none"
            raise ValueError(f"name must be {known}, found {name!r}")
        return [record.t for record in found], [record.values[name] for record in found]

    def per_client(self, metric: str, t: int | None = None) -> tuple[float, ...]:
        """A metric of each client, malicious ones included, in round ``t`` or when last measured.

        >>> history = History(2, malicious=[1], rounds=[Round(0, {"error": (0.25, 1.0)})])
        >>> history.per_client("error")
        (0.25, 1.0)
        """
        rounds = self._measured(metric)
        # Not the last round of the run, which may have no metrics.
        chosen = rounds if t is None else [record for record in rounds if record.t == t]
        if not chosen:
            measured = _abbreviated([record.t for record in rounds])
            expected = f"a round in which {metric} was measured, {measured}"
            raise ValueError(f"t must be {expected}, found {t!r}")
        return chosen[-1].clients[metric]

    def _over_rounds(
        self, metric: str, reduce: Callable[[list[float]], float]
    ) -> tuple[list[int], list[float]]:
        rounds = self._measured(metric)
        values = [reduce(self._of_benign(record, metric)) for record in rounds]
        return [record.t for record in rounds], values

    def _of_benign(self, record: Round, metric: str) -> list[float]:
        values = record.clients[metric]
        return [values[client] for client in self.benign]

    def _measured(self, metric: str) -> list[Round]:
        known = self.metrics()
        if metric in known:
            return [record for record in self.evaluated if metric in record.clients]
        if known:
            raise ValueError(f"metric must be one of {known}, found {metric!r}")
        advice = 'pass Simulator(..., metrics={"error": ...}) and run at least one round'
        reason = f"the history has no metrics: {advice}"
        raise ValueError(f"metric {metric!r} was not measured, {reason}")

    def metrics(self) -> list[str]:
        """The names of the metrics of clients that were measured."""
        return _distinct(record.clients for record in self.evaluated)

    # All metrics and values

    def summary(self) -> dict[str, float]:
        """The results of the run by name.

        For every metric, ``max_`` and ``mean_`` are over benign clients in the last evaluation, and
        ``tail_`` is the mean of the maxima in the last 5 % of rounds, at least in the last one.
        ``consensus``, ``isolated``, the number of benign clients that accepted no message, and
        ``idle``, the number of malicious clients that were not trained because no client hears
        their models, are those of the last round. All other values of the whole system are means
        over rounds; an ``accepted_`` rate is NaN in a round without such messages, which is then
        left out.
        ``train_seconds`` and the like are per round. ``alone`` is the number of rounds in which
        benign clients received messages and accepted none. ``diverged`` is a number of benign
        clients.
        """
        found: dict[str, float] = {"rounds": len(self)}
        # Metrics of clients, in their last evaluation
        for metric in self.metrics():
            last = self._of_benign(self._measured(metric)[-1], metric)
            found[f"max_{metric}"] = _maximum(last)
            found[f"mean_{metric}"] = _mean_or_nan(last)
            found[f"tail_{metric}"] = self._tail(metric)
        # Values of the whole system, and times
        for name in _distinct(record.values for record in self):
            found[name] = self._summarized(name)
        for phase in _distinct(record.seconds for record in self):
            # A phase that a round does not have took no time: the phases add up to a round.
            seconds = sum(record.seconds.get(phase, 0.0) for record in self)
            found[f"{phase}_seconds"] = seconds / len(self)
        # Without weights, it is not known which messages a rule accepted.
        if "accepted_benign" in found or "accepted_malicious" in found:
            found["alone"] = sum(record.alone for record in self)
        found["diverged"] = len(self.diverged)
        return found

    def _summarized(self, name: str) -> float:
        """The value of the last round if it describes a state, otherwise the mean over rounds."""
        values = self.series(name)[1]
        if name in ("consensus", "isolated", "idle"):
            return values[-1]
        if name.startswith("accepted_"):
            # NaN: no such message was received, which says nothing about the rule.
            values = [x for x in values if not math.isnan(x)]
        return _mean_or_nan(values)

    def _tail(self, metric: str) -> float:
        rounds, worst = self.worst(metric)
        total = self[-1].t + 1
        # 20 t >= 19 total is t >= 0.95 total in integers, which do not round.
        tail = [x for t, x in zip(rounds, worst, strict=True) if 20 * t >= 19 * total]
        return _mean_or_nan(tail or worst[-1:])

    def status(self) -> str:
        """One line for a progress bar: the last evaluation, and any problem of the run.

        >>> History(2, rounds=[Round(0, {"error": (0.25, 0.5)})]).status()
        'worst error 0.5'
        """
        notes = []
        # Empty before the first evaluation.
        for record in self.evaluated[-1:]:
            for metric in record.clients:
                notes.append(f"worst {metric} {_maximum(self._of_benign(record, metric)):.4g}")
        if self.diverged:
            notes.append(f"{len(self.diverged)} benign clients not finite")
        elif self._rounds and self._rounds[-1].alone:
            notes.append("no message accepted")
        return ", ".join(notes)

    def rows(self) -> list[dict[str, Any]]:
        """A long table: one row for every round, client and metric.

        ``client`` is None for values of the whole system. Clients that diverged have a row with the
        metric ``diverged`` and the value 1.

        >>> History(1, rounds=[Round(0, {"error": (0.25,)})]).rows()
        [{'round': 0, 'client': 0, 'malicious': False, 'metric': 'error', 'value': 0.25}]
        """
        return [dict(zip(LONG_COLUMNS, row, strict=True)) for row in self._long_rows()]

    def frame(self) -> Any:
        """The long table as a ``pandas.DataFrame``; needs ``pip install "equipoise[frames]"``."""
        return as_frame(self._long_rows())

    def _long_rows(self) -> Iterator[LongRow]:
        return long_rows(self, frozenset(self.malicious))

    # Files

    def to_csv(self, path: str | os.PathLike[str]) -> None:
        """Write the long table; numbers read back exactly, and None is an empty field."""
        _write(path, as_csv(self._long_rows()))

    def to_dict(self) -> dict[str, Any]:
        """The whole history as strict JSON types; :meth:`from_dict` reads it back exactly."""
        return {
            "format": HISTORY_FORMAT,
            "name": self.name,
            "seed": self.seed,
            "n": self.n,
            "malicious": list(self.malicious),
            "rounds": [record.to_dict() for record in self],
        }

    def to_json(self, path: str | os.PathLike[str]) -> None:
        """Write the whole history as strict JSON, one line for each round.

        JSON has no NaN or infinities: they become the strings nan, inf and -inf.
        """
        data = self.to_dict()
        rounds = ",\n".join(json.dumps(record, allow_nan=False) for record in data.pop("rounds"))
        # [:-1] opens the object again, to add the rounds line by line.
        _write(path, f'{json.dumps(data)[:-1]}, "rounds": [\n{rounds}\n]}}\n')

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> History:
        """The history that :meth:`to_dict` returned.

        >>> history = History(1, name="alone", rounds=[Round(0, {"error": (torch.nan,)})])
        >>> History.from_dict(history.to_dict()) == history
        True
        """
        if not isinstance(data, Mapping):
            raise ValueError(f"data must be a mapping, found {type(data).__name__}")
        missing = [key for key in ("format", "name", "n", "malicious", "rounds") if key not in data]
        if missing:
            raise ValueError(
                f"data must hold {', '.join(missing)}, found {_abbreviated(list(data))}"
            )
        # Before the rounds, which another format may write differently.
        if data["format"] != HISTORY_FORMAT:
            raise ValueError(f"format must be {HISTORY_FORMAT}, found {data['format']!r}")
        rounds = map(as_round, as_list("rounds", data["rounds"]))
        # Files of earlier versions have no seed.
        return cls(data["n"], data["malicious"], data["name"], rounds, data.get("seed"))

    @classmethod
    def from_json(cls, path: str | os.PathLike[str]) -> History:
        """The history that :meth:`to_json` wrote; any other file is a ValueError."""
        try:
            return cls.from_dict(json.loads(Path(path).read_text(encoding="utf-8")))
        # Forged values meet many checks: numbers of the wrong type, or n beyond any memory.
        except (ValueError, TypeError, RuntimeError, OverflowError) as error:
            found = f"{os.fspath(path)} is not a history that to_json wrote: {error}"
            raise ValueError(found) from error


def _write(path: str | os.PathLike[str], text: str) -> None:
    with atomic_write(path, "history") as file:
        file.write(text.encode())


def _distinct(groups: Iterable[Iterable[str]]) -> list[str]:
    # In the order of their first appearance, which a set would not keep.
    return list(dict.fromkeys(chain.from_iterable(groups)))


def _maximum(values: list[float]) -> float:
    # max() returns or skips NaN, depending on its position.
    return math.nan if any(map(math.isnan, values)) else max(values)


def _mean_or_nan(values: list[float]) -> float:
    # Empty if all values of an accepted_ rate were left out.
    return sum(values) / len(values) if values else math.nan


def _abbreviated(values: list[Any]) -> str:
    """The values, or the first and last two of many."""
    shown = values if len(values) < 6 else [*values[:2], "...", *values[-2:]]
    return ", ".join(map(str, shown))
