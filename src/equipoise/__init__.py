"""Byzantine-robust decentralized aggregation for PyTorch.

In decentralized federated learning there is no server. Each round every *client* trains its *own* model, sends it to
its neighbours, and *aggregates* what it received; some neighbours are *malicious* and may send anything, and something
else to every receiver.

client
    one participant; ids run from 0 to n - 1
round
    ``t``, from 0, of ``total``
message
    one model sent along one edge; edges are (sender, receiver)
rule
    an aggregator: turns own and the received messages into one model
own
    the receiver's model after local training
malicious, benign
    clients that may, and that never, lie
tolerated
    how many malicious neighbours a rule expects
exchange
    one sending; most rules use one a round

Dimensions: ``n`` clients, ``k`` slots (the largest in-degree), ``d`` parameters, ``m`` distinct messages, ``e``
directed edges.
"""

from importlib import import_module
from types import ModuleType

from equipoise import attacks, data, metrics, models, plots
from equipoise._utils.rng import draw_malicious
from equipoise.attacks import Attack
from equipoise.kernels import native
from equipoise.messages import Inbox, Lies
from equipoise.parameters import flatten, stack_models, unflatten, unstack_models
from equipoise.rules import (
    LEARN,
    UBAR,
    Aggregator,
    Balance,
    BalanceMedian,
    FedAvg,
    FLTrust,
    GuaranteeWarning,
    Krum,
    Median,
    MultiExchange,
    PerClient,
    SCClip,
    TrimmedMean,
    as_multi_exchange,
    mix,
    run_exchanges,
)
from equipoise.simulation import EachRound, History, Round, Simulator
from equipoise.topology import Topology
from equipoise.training import LocalSGD, Trainer
from equipoise.types import Aggregated, RoundInputs

__version__ = "0.1.0"

native_available = native.available()
"""Whether the kernels in C are used; see `equipoise.kernels.native`."""

__all__ = [
    "LEARN",
    "UBAR",
    "Aggregated",
    "Aggregator",
    "Attack",
    "Balance",
    "BalanceMedian",
    "EachRound",
    "FLTrust",
    "FedAvg",
    "GuaranteeWarning",
    "History",
    "Inbox",
    "Krum",
    "Lies",
    "LocalSGD",
    "Median",
    "MultiExchange",
    "PerClient",
    "Round",
    "RoundInputs",
    "SCClip",
    "Simulator",
    "Topology",
    "Trainer",
    "TrimmedMean",
    "as_multi_exchange",
    "attacks",
    "data",
    "draw_malicious",
    "flatten",
    "metrics",
    "mix",
    "models",
    "native_available",
    "plots",
    "run_exchanges",
    "stack_models",
    "unflatten",
    "unstack_models",
]


def __getattr__(name: str) -> ModuleType:
    """Modules that take long to import, or need more than the library does, when somebody asks for them."""
    if name in ("demo", "testing"):
        return import_module(f"equipoise.{name}")
    raise AttributeError(f"module 'equipoise' has no attribute {name!r}")
