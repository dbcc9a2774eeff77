"""One setting of the BALANCE paper, as data."""

from __future__ import annotations

import re
import shlex
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from benchmarks.paper.registry import (
    ATTACKS,
    GRAPHS,
    NO_ATTACK,
    RANDOM_ALPHAS,
    REGULAR,
    RULES,
    check_name,
    regular,
)
from benchmarks.paper.tasks import TASKS, Task
from equipoise._utils.validation import check_count, check_number, check_probability
from equipoise.attacks import Backdoor

PARTITIONS = ("iid", "by_client", "by_classes(3)", "by_group(P)")
WINDOWS = ("all", "first-half", "second-half")
STARTS = ("same", "different")
NONFINITE = ("absent", "kept")


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Everything that determines a training run except the seed; the defaults are the paper's.

    The paper does not state the batch size, the number of local steps, and whether the loss of a
    batch is a mean or a sum. Here, the loss is the sum over 32 examples, and a round has one step,
    as in the code of FLTrust by the same group, whose learning rates the paper shares. ``step``
    multiplies the learning rate. It was calibrated once per data set, on FedAvg without attack.

    The string form of a setting is the command that runs it.

    Args:
        data: ``synthetic``, ``mnist``, ``fashion-mnist``, ``har`` or ``celeba``.
        rule: the name of a rule, or ``Alone`` for local training only. ``PerClient`` draws one of
            six rules for each client, ``EachRound(PerClient)`` draws them again in each round.
        attack: the name of an attack, or ``none``.
        graph: ``regular(20,10)`` and the like, or another graph of the paper, such as ``ring``.
            The default depends on the data set. A regular graph sets the number of clients;
            otherwise it is the one of the data set.
        malicious: the share of malicious clients. Without an attack, they are benign.
        partition: ``iid``, ``by_client``, ``by_classes(3)``, or ``by_group(0.8)`` and the like.
            The default depends on the data set.
        alpha: the weight of the client's own model: a number, ``per-client`` or ``each-round``.
        own: aggregate the client's own model together with the received ones, without alpha
            (Pasquini et al.).
        start: all clients start from the ``same`` model, or each from a ``different`` one.
        disconnect: the probability that a client is offline in a round.
        window: attack in ``all`` rounds, the ``first-half`` or the ``second-half``.
        gamma: acceptance radius of `Balance` and its variants, relative to the own model's norm.
        kappa: decay of the acceptance radius of `Balance`.
        rounds: the number of rounds. The default depends on the data set.
        step: factor of the paper's learning rate. The default depends on the data set.
        batch: examples per batch.
        local_steps: steps of local training per round.
        nonfinite: messages with NaN or infinities are ``absent``, or ``kept`` as an implementation
            without checks would keep them.

    >>> from benchmarks.paper.setting import Setting
    >>> print(Setting(rule="Krum", attack="TrimAttack"))
    python -m benchmarks.paper run --data mnist --rule Krum --attack TrimAttack
    >>> print(Setting(data="har", graph="ring", kappa=2.0))
    python -m benchmarks.paper run --data har --rule Balance --attack none --graph ring --kappa 2.0
    >>> Setting(attack="LF")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ValueError: attack must be one of none, ..., SignFlip, found 'LF': did you mean LabelFlip?
    """

    data: str = "mnist"
    rule: str = "Balance"
    attack: str = NO_ATTACK
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
        check_name("data", self.data, TASKS)
        for name in ("graph", "partition", "rounds", "step"):
            if not getattr(self, name):
                object.__setattr__(self, name, getattr(self.task, name))
        object.__setattr__(self, "graph", self.graph.replace(" ", ""))
        check_name("rule", self.rule, RULES)
        check_name("attack", self.attack, ATTACKS)
        if self.attack != NO_ATTACK and ATTACKS[self.attack](self.task) is None:
            raise ValueError(
                f"attack must be another one for {self.task.title}, found {self.attack!r}"
            )
        if regular(self.graph) is None:
            check_name("graph", self.graph, (*REGULAR, *GRAPHS))
        if not self.partition.startswith("by_group("):
            check_name("partition", self.partition, PARTITIONS)
        check_name("start", self.start, STARTS)
        check_name("window", self.window, WINDOWS)
        check_name("nonfinite", self.nonfinite, NONFINITE)
        self._check_numbers()
        # Equal settings must be equal however they are written: 0.80 is 0.8.
        if self.alpha not in RANDOM_ALPHAS:
            object.__setattr__(self, "alpha", str(float(self.alpha)))
        if self.p is not None:
            object.__setattr__(self, "partition", f"by_group({self.p})")

    def _check_numbers(self) -> None:
        check_probability("malicious", self.malicious)
        check_probability("disconnect", self.disconnect)
        if self.alpha not in RANDOM_ALPHAS:
            expected = f"a number in [0, 1], {' or '.join(RANDOM_ALPHAS)}"
            check_probability("alpha", _number("alpha", self.alpha, expected))
        if self.p is not None:
            check_probability("p", self.p)
        check_number("gamma", self.gamma)
        check_number("kappa", self.kappa)
        check_number("step", self.step, positive=True)
        for name in ("rounds", "batch", "local_steps"):
            check_count(name, getattr(self, name), 1)

    @property
    def p(self) -> float | None:
        """The probability of ``by_group``, or None for another partition."""
        if self.partition in PARTITIONS[:-1]:
            return None
        found = re.fullmatch(r"by_group\((.*)\)", self.partition)
        number = "" if found is None else found[1]
        return _number("partition", number, ", ".join(PARTITIONS), self.partition)

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
        """The number of clients."""
        shape = regular(self.graph) or regular(self.task.graph)
        assert shape is not None  # a data set's own graph is regular
        return shape[0]

    def changed(self, **changes: Any) -> Setting:
        """Return a copy with these fields changed."""
        return replace(self, **changes)

    def differences(self) -> dict[str, Any]:
        """Return the fields that differ from the defaults of the data set."""
        default = Setting(data=self.data)
        always = ("data", "rule", "attack")
        return {
            name: value
            for name, value in asdict(self).items()
            if name in always or value != getattr(default, name)
        }

    def __str__(self) -> str:
        words = ["python", "-m", "benchmarks.paper", "run"]
        for name, value in self.differences().items():
            option = f"--{name.replace('_', '-')}"
            words += [option] if value is True else [option, str(value)]
        return shlex.join(words)

    @property
    def slug(self) -> str:
        """A readable file name, the same for equal settings.

        >>> Setting(rule="Krum", attack="TrimAttack", graph="regular(10,5)").slug
        'mnist/Krum.TrimAttack.graph=regular(10,5)'
        """
        rest = [
            f"{name}={value}"
            for name, value in self.differences().items()
            if name not in ("data", "rule", "attack")
        ]
        return f"{self.data}/{'.'.join([self.rule, self.attack, *rest])}"

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """The fields."""
        return tuple(field.name for field in fields(cls))


def _number(name: str, text: str, expected: str, found: str | None = None) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(
            f"{name} must be {expected}, found {text if found is None else found!r}"
        ) from None
