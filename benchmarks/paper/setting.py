"""One setting of the BALANCE paper, as data."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from benchmarks.paper.registry import ATTACKS, GRAPHS, REGULAR, RULES, regular
from benchmarks.paper.tasks import TASKS, Task
from equipoise._utils.validation import check_count, check_number, check_probability
from equipoise.attacks import Backdoor

PARTITIONS = "iid, natural, three-classes or p=0.8 and the like"
WINDOWS = ("all", "first-half", "second-half")


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Everything that decides the outcome of one training but the seed; the defaults are the paper's.

    What the paper leaves open is the batch size, the number of local steps and whether the loss of a batch is a mean or
    a sum. Here it is a sum over 32 examples, and one step a round, as in the code of FLTrust by the same group, whose
    learning rates the paper shares; and ``step`` multiplies the learning rate: calibrated once for each data set, on
    FedAvg without attack.

    Printed, a setting is the command that runs it.

    Args:
        data: ``synthetic``, ``mnist``, ``fashion-mnist``, ``har`` or ``celeba``.
        rule: a method of the paper, a variant, another reading of one, ``Case-III``, ``Case-IV``, or ``Alone`` for
            local training only.
        attack: an attack of the paper, or another reading of one.
        graph: ``regular-(20,10)`` and the like, or another graph of the paper, such as ``ring``; by default that of
            the data set. There are 20 clients, or as many as a regular graph says.
        malicious: the share of malicious clients; with the attack ``No`` they are benign.
        partition: ``p=0.8`` and the like, ``iid``, ``three-classes``, or ``natural``; by default that of the data set.
        alpha: the share of own: a number, ``Case-I`` or ``Case-II``.
        own: whether own is one of the models that are aggregated, without alpha (Pasquini et al.).
        start: all clients start from the ``same`` model, or each from a ``different`` one.
        disconnect: the probability that a client is offline in a round.
        window: attack in ``all`` rounds, the ``first-half`` or the ``second-half``.
        gamma: of BALANCE and its variants.
        kappa: of BALANCE.
        rounds: by default those of the data set.
        step: times the learning rate; by default that of the data set.
        batch: examples in a batch.
        local_steps: steps of local training in a round.
        nonfinite: messages with NaN or infinities are ``absent``, or ``kept`` as a rule without checks would.

    >>> from benchmarks.paper import Setting
    >>> print(Setting(rule="Krum", attack="Trim"))
    python -m benchmarks.paper run --data mnist --rule Krum --attack Trim
    >>> print(Setting(data="har", graph="ring", kappa=2.0))
    python -m benchmarks.paper run --data har --rule BALANCE --attack No --graph ring --kappa 2.0
    >>> Setting(rule="Krumm")
    Traceback (most recent call last):
    ValueError: rule must be one of FedAvg, Krum, Trim-mean, Median, FLTrust, UBAR, LEARN, SCCLIP, BALANCE, Variant-I,
    Variant-II, Case-III, Case-IV, Alone, SCCLIP-10, found 'Krumm'
    """

    data: str = "mnist"
    rule: str = "BALANCE"
    attack: str = "No"
    graph: str = ""
    malicious: float = 0.2
    partition: str = ""
    alpha: str = "0.5"
    own: bool = False
    start: str = "same"
    disconnect: float = 0.0
    window: str = "all"
    gamma: float = 0.3
    kappa: float = 1.0
    rounds: int = 0
    step: float = 0.0
    batch: int = 32
    local_steps: int = 1
    nonfinite: str = "absent"

    def __post_init__(self) -> None:
        _check_choice("data", self.data, TASKS)
        for name in ("graph", "partition", "rounds", "step"):
            if not getattr(self, name):
                object.__setattr__(self, name, getattr(self.task, name))
        object.__setattr__(self, "graph", self.graph.replace(" ", ""))
        _check_choice("rule", self.rule, RULES)
        _check_choice("attack", self.attack, ATTACKS)
        if self.attack != "No" and ATTACKS[self.attack](self.task) is None:
            raise ValueError(f"attack must be another one for {self.task.title}, found {self.attack!r}")
        if regular(self.graph) is None:
            _check_choice("graph", self.graph, (*REGULAR, *GRAPHS))
        _check_choice("start", self.start, ("same", "different"))
        _check_choice("window", self.window, WINDOWS)
        _check_choice("nonfinite", self.nonfinite, ("absent", "kept"))
        self._check_numbers()
        if self.alpha not in ("Case-I", "Case-II"):
            object.__setattr__(self, "alpha", str(float(self.alpha)))
        if not re.fullmatch("iid|natural|three-classes", self.partition):
            object.__setattr__(self, "partition", f"p={float(self.partition.removeprefix('p='))}")

    def _check_numbers(self) -> None:
        check_probability("malicious", self.malicious)
        check_probability("disconnect", self.disconnect)
        if self.alpha not in ("Case-I", "Case-II"):
            check_probability("alpha", _number("alpha", self.alpha, "a number in [0, 1], Case-I or Case-II"))
        if not re.fullmatch("iid|natural|three-classes", self.partition):
            check_probability("p", _number("partition", self.partition.removeprefix("p="), PARTITIONS))
        check_number("gamma", self.gamma)
        check_number("kappa", self.kappa)
        check_number("step", self.step, positive=True)
        for name in ("rounds", "batch", "local_steps"):
            check_count(name, getattr(self, name), 1)

    @property
    def task(self) -> Task:
        """The data set."""
        return TASKS[self.data]

    @property
    def backdoor(self) -> Backdoor | None:
        """The attack, if it is a backdoor."""
        attack = ATTACKS[self.attack](self.task)
        return attack if isinstance(attack, Backdoor) else None

    @property
    def n(self) -> int:
        """How many clients there are."""
        shape = regular(self.graph) or regular(self.task.graph)
        assert shape is not None  # a data set's own graph is regular
        return shape[0]

    def changed(self, **changes: Any) -> Setting:
        """The same but for these fields."""
        return replace(self, **changes)

    def differences(self) -> dict[str, Any]:
        """What is not as the data set has it by default."""
        default = Setting(data=self.data)
        always = ("data", "rule", "attack")
        return {
            name: value for name, value in asdict(self).items() if name in always or value != getattr(default, name)
        }

    def __str__(self) -> str:
        words = ["python", "-m", "benchmarks.paper", "run"]
        for name, value in self.differences().items():
            words += [f"--{name.replace('_', '-')}"] if value is True else [f"--{name.replace('_', '-')}", str(value)]
        return shlex.join(words)

    @property
    def slug(self) -> str:
        """A name for files: the same for equal settings, and readable.

        >>> Setting(rule="Krum", attack="Trim", graph="regular-(10,5)").slug
        'mnist/Krum.Trim.graph=regular-(10,5)'
        """
        known = self.differences()
        rest = [f"{name}={value}" for name, value in known.items() if name not in ("data", "rule", "attack")]
        return f"{self.data}/{'.'.join([self.rule, self.attack, *rest])}"

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """The fields."""
        return tuple(field.name for field in fields(cls))


def _check_choice(name: str, value: object, choices: Iterable[str]) -> None:
    if value not in (known := list(choices)):
        raise ValueError(f"{name} must be one of {', '.join(known)}, found {value!r}")


def _number(name: str, text: str, expected: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{name} must be {expected}, found {text!r}") from None
