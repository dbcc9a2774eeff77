"""What happened in a run: one record per round, and what it amounts to."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from equipoise._utils.atomic_write import atomic_write
from equipoise._utils.validation import Clients, as_mask, check_count
from equipoise.simulation import _long_table as tidy
from equipoise.simulation.record import Round as Round
from equipoise.simulation.record import as_list, as_round

FORMAT = 1  # of saved histories
ADVICE = "check initial models, learning rate and the rule's limit"


class History:
    """The rounds of a run of n clients, in order.

    What is said of all clients is said of the benign ones: the maximum of a metric is the paper's Max.TER, Max.MSE or
    Max.ASR. A NaN among the values is their maximum, so that it cannot hide. Two histories are equal if clients and
    results are, whatever their names and however long they took.

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

    def __init__(self, n: int, malicious: Clients | None = None, name: str = "", rounds: Iterable[Round] = ()) -> None:
        check_count("n", n, 1)
        if not isinstance(name, str):
            raise ValueError(f"name must be a string, found {name!r}")
        liars = as_mask(malicious, n).tolist()
        if all(liars):
            raise ValueError(f"malicious must leave a benign client, found all {n} clients")
        self.n, self.name = int(n), name
        self.malicious = tuple(i for i in range(n) if liars[i])
        self.benign = tuple(i for i in range(n) if not liars[i])
        self.diverged: dict[int, int] = {}
        """Benign clients whose models became non-finite, and the first round after which they were."""
        self.evaluated: list[Round] = []
        """The rounds that hold metrics of clients."""
        self._rounds: list[Round] = []
        for one in rounds:
            self.add(one)

    def add(self, round: Round) -> None:
        """Append a round; it must come after those before."""
        if self._rounds and round.t <= self._rounds[-1].t:
            raise ValueError(f"round must come after round {self._rounds[-1].t}, found round {round.t}")
        for metric, values in round.clients.items():
            if len(values) != self.n:
                raise ValueError(f"round must hold {self.n} values of {metric}, one per client, found {len(values)}")
        for client in round.diverged:
            check_count("diverged", client, 0, self.n - 1)
        self._rounds.append(round)
        if round.clients:
            self.evaluated.append(round)
        for client in set(round.diverged).difference(self.malicious, self.diverged):
            self.diverged[client] = round.t

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
        table = {name: f"{value:.4g}" for name, value in self.summary().items() if name != "rounds"}
        if any(one.alone for one in self):
            table["alone"] += f" of {len(self)} rounds, in which benign clients accepted nobody: {ADVICE}"
        elif float(table.get("isolated", 0)):
            table["isolated"] += f" benign clients accepted nobody in the last round: {ADVICE}"
        if self.diverged:
            table["diverged"] += f", the first in round {min(self.diverged.values())}"
        width = max(map(len, table)) + 2
        return "\n".join([f"{self.name}: {head}" if self.name else head, *(f"{k:<{width}}{table[k]}" for k in table)])

    # One metric, over rounds or over clients

    def worst(self, metric: str) -> tuple[list[int], list[float]]:
        """The rounds in which a metric was measured, and its maximum over benign clients in each."""
        return self._over_rounds(metric, _maximum)

    def mean(self, metric: str) -> tuple[list[int], list[float]]:
        """The rounds in which a metric was measured, and its mean over benign clients in each."""
        return self._over_rounds(metric, _mean)

    def series(self, name: str) -> tuple[list[int], list[float]]:
        """The rounds in which a value of the whole system was recorded, and that value.

        >>> history = History(2, rounds=[Round(t, values={"consensus": 1 / 2**t}) for t in range(3)])
        >>> history.series("consensus")
        ([0, 1, 2], [1.0, 0.5, 0.25])
        """
        found = [one for one in self if isinstance(name, str) and name in one.values]
        if not found:
            names = sorted({name for one in self for name in one.values})
            known = f"one of {names}" if names else "a recorded value, but the history has none"
            raise ValueError(f"name must be {known}, found {name!r}")
        return [one.t for one in found], [one.values[name] for one in found]

    def per_client(self, metric: str, t: int | None = None) -> tuple[float, ...]:
        """A metric of each client, malicious ones too, in round ``t``; by default where it was measured last.

        >>> History(2, malicious=[1], rounds=[Round(0, {"error": (0.25, 1.0)})]).per_client("error")
        (0.25, 1.0)
        """
        rounds = self._measured(metric)
        chosen = rounds if t is None else [one for one in rounds if one.t == t]
        if not chosen:
            expected = f"a round in which {metric} was measured, {_few([one.t for one in rounds])}"
            raise ValueError(f"t must be {expected}, found {t!r}")
        return chosen[-1].clients[metric]

    def _over_rounds(self, metric: str, over: Callable[[list[float]], float]) -> tuple[list[int], list[float]]:
        rounds = self._measured(metric)
        return [one.t for one in rounds], [over(self._of_benign(one, metric)) for one in rounds]

    def _of_benign(self, one: Round, metric: str) -> list[float]:
        values = one.clients[metric]
        return [values[client] for client in self.benign]

    def _measured(self, metric: str) -> list[Round]:
        known = self.metrics()
        if metric in known:
            return [one for one in self.evaluated if metric in one.clients]
        if known:
            raise ValueError(f"metric must be one of {known}, found {metric!r}")
        advice = 'pass Simulator(..., metrics={"error": ...}) and run at least one round'
        reason = f"the history has no metrics: {advice}"
        raise ValueError(f"metric {metric!r} was not measured, {reason}")

    def metrics(self) -> list[str]:
        """The names of the metrics of clients that were measured."""
        return list(dict.fromkeys(name for one in self.evaluated for name in one.clients))

    # All of it

    def summary(self) -> dict[str, float]:
        """What came out, by name.

        For every metric, ``max_`` and ``mean_`` over benign clients where it was measured last, and ``tail_``, the mean
        of the maxima in the last 5 % of rounds, at least of the last one: one round can be a lottery. ``consensus`` is
        that of the last round, and so is ``isolated``, how many benign clients accepted nobody. All other values of the
        whole system are means over rounds; an ``accepted_`` rate of NaN says that there was no such message, and is
        left out. ``train_seconds`` and the like are per round. ``alone`` is the number of rounds in which there were
        messages and no benign client accepted any, and ``diverged`` is a number of benign clients.
        """
        found: dict[str, float] = {"rounds": len(self)}
        for metric in self.metrics():
            last = self._of_benign(self._measured(metric)[-1], metric)
            found |= {f"max_{metric}": _maximum(last), f"mean_{metric}": _mean(last)}
            found[f"tail_{metric}"] = self._tail(metric)
        for name in dict.fromkeys(name for one in self for name in one.values):
            values = self.series(name)[1]
            if name.startswith("accepted_"):
                values = [x for x in values if not math.isnan(x)]
            found[name] = values[-1] if name in ("consensus", "isolated") else _mean(values)
        for phase in dict.fromkeys(phase for one in self for phase in one.seconds):
            found[f"{phase}_seconds"] = sum(one.seconds.get(phase, 0.0) for one in self) / len(self)
        if "accepted_benign" in found or "accepted_malicious" in found:
            found["alone"] = sum(one.alone for one in self)
        return found | {"diverged": len(self.diverged)}

    def _tail(self, metric: str) -> float:
        rounds, worst = self.worst(metric)
        total = self[-1].t + 1
        return _mean([x for t, x in zip(rounds, worst, strict=True) if 20 * t >= 19 * total] or worst[-1:])

    def rows(self) -> list[dict[str, Any]]:
        """A tidy table: one row for every round, client and metric; ``client`` is None for the whole system.

        Diverged clients have a row with the metric ``diverged`` and the value 1.

        >>> History(1, rounds=[Round(0, {"error": (0.25,)})]).rows()
        [{'round': 0, 'client': 0, 'malicious': False, 'metric': 'error', 'value': 0.25}]
        """
        return [dict(zip(tidy.COLUMNS, row, strict=True)) for row in tidy.rows(self)]

    def frame(self) -> Any:
        """The tidy table as a ``pandas.DataFrame``; needs ``pip install "equipoise[frames]"``."""
        return tidy.frame(self)

    # Files

    def to_csv(self, path: str | os.PathLike[str]) -> None:
        """Write the tidy table; every number reads back exactly, and what does not apply is left empty."""
        _write(path, tidy.csv_text(self))

    def to_dict(self) -> dict[str, Any]:
        """Everything, as strict JSON has it; :meth:`from_dict` reads it back exactly."""
        head = {"format": FORMAT, "name": self.name, "n": self.n, "malicious": list(self.malicious)}
        return head | {"rounds": [one.to_dict() for one in self]}

    def to_json(self, path: str | os.PathLike[str]) -> None:
        """Write everything as strict JSON, a line for each round; what is not finite is the string nan, inf or -inf."""
        data = self.to_dict()
        rounds = ",\n".join(json.dumps(one, allow_nan=False) for one in data.pop("rounds"))
        _write(path, f'{json.dumps(data)[:-1]}, "rounds": [\n{rounds}\n]}}\n')

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> History:
        """The history that :meth:`to_dict` describes.

        >>> history = History(1, name="alone", rounds=[Round(0, {"error": (torch.nan,)})])
        >>> History.from_dict(history.to_dict()) == history
        True
        """
        if not isinstance(data, Mapping):
            raise ValueError(f"data must be a mapping, found {type(data).__name__}")
        missing = [key for key in ("format", "name", "n", "malicious", "rounds") if key not in data]
        if missing:
            raise ValueError(f"data must hold {', '.join(missing)}, found {_few(list(data))}")
        if data["format"] != FORMAT:
            raise ValueError(f"format must be {FORMAT}, found {data['format']!r}")
        return cls(data["n"], data["malicious"], data["name"], map(as_round, as_list("rounds", data["rounds"])))

    @classmethod
    def from_json(cls, path: str | os.PathLike[str]) -> History:
        """The history that :meth:`to_json` wrote; of any other file, a ValueError says what is wrong with it."""
        try:
            return cls.from_dict(json.loads(Path(path).read_text(encoding="utf-8")))
        except (
            ValueError,
            TypeError,
            RuntimeError,
            OverflowError,
        ) as error:  # such as too many clients
            raise ValueError(f"{os.fspath(path)} is not a history that to_json wrote: {error}") from error


def _write(path: str | os.PathLike[str], text: str) -> None:
    with atomic_write(path, "history") as file:
        file.write(text.encode())


def _maximum(values: list[float]) -> float:
    return math.nan if any(map(math.isnan, values)) else max(values)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else math.nan


def _few(values: list[Any]) -> str:
    return ", ".join(map(str, values if len(values) < 6 else [*values[:2], "...", *values[-2:]]))
