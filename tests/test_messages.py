"""Mistakes of new users: the error names the argument, what it expects, and what it found."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import networkx
import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import equipoise as eq
from benchmarks.paper import theorem_1 as theory
from benchmarks.paper.results import Store
from equipoise.__main__ import main
from equipoise.data import _download as files

OWN, RECEIVED, MODELS = torch.ones(3), torch.ones(2, 3), torch.ones(4, 3)
RING, LAYER = eq.Topology.ring(4), torch.nn.Linear(2, 1)
MEDIAN, BALANCE = eq.Median(), eq.Balance()
PAIR = (torch.ones(5, 2), torch.ones(5, 1))


def construct(**changes: Any) -> eq.Simulator:
    options = {
        "trainer": lambda models, t: models,
        "topology": RING,
        "rule": MEDIAN,
        "models": MODELS,
    }
    return eq.Simulator(**options | changes)


def simulate(**changes: Any) -> Any:
    return construct(**changes).step()


def train(clients: Any, **changes: Any) -> Any:
    return eq.LocalSGD(LAYER, torch.nn.functional.mse_loss, clients, lr=0.1, **changes)(MODELS, 0)


Mistake = tuple[Callable[[], Any], str]

TENSORS: dict[str, Mistake] = {
    "a list of messages": (
        lambda: MEDIAN(OWN, [OWN, OWN]),  # type: ignore[arg-type]
        "received must be a (k, d) tensor or an Inbox, found list; "
        "Inbox.collect(messages, like=own) turns a list of messages into an Inbox",
    ),
    "an empty list": (
        lambda: MEDIAN(OWN, []),  # type: ignore[arg-type]
        "received must be a (k, d) tensor or an Inbox, found list; "
        "Inbox.collect(messages, like=own) turns a list of messages into an Inbox",
    ),
    "an empty tensor": (
        lambda: MEDIAN(OWN, torch.tensor([])),
        "received must be a floating-point tensor of shape (k, d), found float32 (0,)",
    ),
    "one message": (
        lambda: MEDIAN(OWN, OWN),
        "received must be a floating-point tensor of shape (k, d), found float32 (3,)",
    ),
    "own as a list": (
        lambda: MEDIAN([1.0, 2.0, 3.0], RECEIVED),  # type: ignore[arg-type]
        "own must be a floating-point tensor of shape (d,) or (n, d), found list; "
        "torch.tensor(own) makes one",
    ),
    "own as an array": (
        lambda: MEDIAN(np.ones(3), RECEIVED),  # type: ignore[arg-type]
        "own must be a floating-point tensor of shape (d,) or (n, d), found ndarray; "
        "torch.tensor(own) makes one",
    ),
    "own as a state_dict": (
        lambda: MEDIAN(LAYER.state_dict(), RECEIVED),  # type: ignore[arg-type]
        "own must be a floating-point tensor of shape (d,) or (n, d), found OrderedDict; "
        "load a state_dict into a module, and flatten that",
    ),
    "own as a module": (
        lambda: MEDIAN(LAYER, RECEIVED),  # type: ignore[arg-type]
        "own must be a floating-point tensor of shape (d,) or (n, d), found Linear; "
        "flatten(module) makes one",
    ),
    "another length": (
        lambda: MEDIAN(OWN, torch.ones(2, 4)),
        "own and received must have the same d > 0, found own d=3, received d=4; models must be "
        "of one architecture",
    ),
    "another dtype": (
        lambda: MEDIAN(OWN, RECEIVED.double()),
        "own and received must have the same dtype, found torch.float32 and torch.float64; bring "
        "both to one with .to",
    ),
    "integers": (
        lambda: MEDIAN(OWN.long(), RECEIVED.long()),
        "own must be a floating-point tensor of shape (d,) or (n, d), found int64 (3,); "
        "own.float() makes one",
    ),
    "integer models": (
        lambda: RING.deliver(MODELS.long()),
        "models must be a floating-point tensor of shape (n, d) with n = 4 clients, found int64 "
        "(4, 3)",
    ),
    "models as an array": (
        lambda: RING.deliver(np.ones((4, 3))),  # type: ignore[arg-type]
        "models must be a floating-point tensor of shape (n, d) with n = 4 clients, found ndarray",
    ),
    "models as a list": (
        lambda: eq.attacks.Knowledge([OWN] * 4, RING, [0]),  # type: ignore[arg-type]
        "models must be a floating-point tensor of shape (4, d), found list",
    ),
    "a bank as an array": (
        lambda: eq.Inbox(np.ones((4, 3)), RING.senders),  # type: ignore[arg-type]
        "bank must be a floating-point tensor of shape (m, d), found ndarray",
    ),
    "slots as a list": (
        lambda: eq.Inbox(MODELS, [[0, 1]]),  # type: ignore[arg-type]
        "slots must be an int64 tensor of shape (n, k), found list",
    ),
    "messages like a list": (
        lambda: eq.Inbox.collect([OWN], like=[1.0]),  # type: ignore[arg-type]
        "like must be a floating-point tensor, found list",
    ),
    "another device": (
        lambda: MEDIAN(OWN, RECEIVED.to("meta")),
        "own and received must have the same device, found cpu and meta; received.to(own) moves it",
    ),
    "a graph's inbox on another device": (
        lambda: MEDIAN(MODELS.to("meta"), RING.deliver(MODELS)),
        "own and received must have the same device, found meta and cpu; bring both to one with "
        ".to",
    ),
    "mixing across devices": (
        lambda: eq.mix(OWN, OWN.to("meta")),
        "model must be on the device of own, cpu, found meta",
    ),
    "models without values": (
        lambda: RING.deliver(MODELS.to("meta")),
        "bank must hold values, found a tensor on the device meta, which has none",
    ),
}

CLIENTS: dict[str, Mistake] = {
    "all models, one client's messages": (
        lambda: MEDIAN(MODELS, RECEIVED),
        "own of shape (n, d) needs an Inbox of n receivers, found a tensor; use Topology.deliver",
    ),
    "one model, all messages": (
        lambda: MEDIAN(OWN, RING.deliver(MODELS)),
        "own must have one model per receiver, expected 4, found 1; inbox.of(i) is the inbox of "
        "client i",
    ),
    "an inbox of others": (
        lambda: MEDIAN(MODELS[:3], RING.deliver(MODELS)),
        "own must have one model per receiver, expected 4, found 3",
    ),
    "a graph of others": (
        lambda: eq.Topology.ring(5).deliver(MODELS),
        "models must be a floating-point tensor of shape (n, d) with n = 5 clients, found "
        "float32 (4, 3)",
    ),
    "a simulator's graph of others": (
        lambda: construct(topology=eq.Topology.ring(5)),
        "topology must be a Topology of 4 clients, as models has, found 5 clients",
    ),
    "a round's graph of others": (
        lambda: simulate(topology=lambda t: eq.Topology.ring(5)),
        "topology must be a Topology of 4 clients, as models has, found 5 clients",
    ),
    "a simulator's graph of networkx": (
        lambda: construct(topology=networkx.cycle_graph(4)),
        "topology must be a Topology of 4 clients, as models has, found Graph; "
        "Topology.from_networkx(graph) makes one",
    ),
    "a class for a graph": (
        lambda: construct(topology=eq.Topology),
        "topology must be a value or a function of the round, found the class Topology",
    ),
    "a simulator's rules of others": (
        lambda: construct(rule=eq.PerClient([MEDIAN] * 3)),
        "rules must be one per client, expected 4, found 3",
    ),
    "a simulator's alphas of others": (
        lambda: construct(alpha=torch.full((3,), 0.5)),
        "alpha must be a number or a tensor of shape (4,) for own of shape (4, 3), found float32 "
        "(3,)",
    ),
    "a simulator's tolerances of others": (
        lambda: construct(tolerated=torch.zeros(3, dtype=torch.int64)),
        "tolerated must be one number or one per client (4,), found (3,)",
    ),
    "rules of others": (
        lambda: eq.PerClient([MEDIAN] * 3)(MODELS, RING.deliver(MODELS)),
        "rules must be one per client, expected 4, found 3",
    ),
    "trainer of others": (
        lambda: train([PAIR] * 5),
        "models must be float32 (5, 3) like flatten(model), found float32 (4, 3)",
    ),
    "an unknown malicious client": (
        lambda: RING.deliver(MODELS, MODELS, malicious=[9]),
        "malicious must be from 0 to 3, found 9",
    ),
    "unknown malicious clients": (
        lambda: eq.Topology.regular(4, 2, malicious=[-1, 9]),
        "malicious must be from 0 to 3, found -1 to 9",
    ),
    "a share of malicious clients": (
        lambda: RING.femb(0.2),  # type: ignore[arg-type]
        "malicious must be a bool mask of shape (4,) or client ids, found 0.2",
    ),
    "lies of nobody": (
        lambda: RING.deliver(MODELS, MODELS),
        "malicious must say which clients may tell the lies, found None",
    ),
    "an attack of nobody": (
        lambda: simulate(attack=eq.attacks.Zero()),
        "malicious must say which clients attack, found None; [] is no client",
    ),
    "a matrix as a graph": (
        lambda: eq.Topology([[0, 1], [1, 0]]),  # type: ignore[arg-type]
        "senders must be an int64 tensor of shape (n, k), n > 0, found list; "
        "Topology.from_edges and Topology.from_adjacency take other forms",
    ),
    "a matrix for a graph": (
        lambda: eq.attacks.Knowledge(MODELS, RING.adjacency(), [0]),  # type: ignore[arg-type]
        "topology must be a Topology, found bool (4, 4)",
    ),
    "a graph that there is not": (
        lambda: eq.Topology.regular(5, 3),
        "n * degree must be even, found 5 * 3 = 15",
    ),
}

NUMBERS: dict[str, Mistake] = {
    "no round": (
        lambda: BALANCE(OWN, RECEIVED),
        "Balance needs t and total: pass t=..., total=... when calling it (in a Simulator: its "
        "argument total, or "
        "run(rounds))",
    ),
    "a misspelt total": (
        lambda: BALANCE(OWN, RECEIVED, t=0, totl=10),  # type: ignore[call-arg]
        "Balance got an unknown input 'totl': did you mean total?",
    ),
    "a misspelt number to tolerate": (
        lambda: eq.Krum(tolerated=1)(OWN, RECEIVED, tolerate=3),  # type: ignore[call-arg]
        "Krum got an unknown input 'tolerate': did you mean tolerated?",
    ),
    "an input of no rule": (
        lambda: MEDIAN(OWN, RECEIVED, colour=3),  # type: ignore[call-arg]
        "Median got an unknown input 'colour': rules know t, total, tolerated, samples, loss_of, "
        "update, generator, "
        "state, out",
    ),
    "a misspelt input of LEARN": (
        lambda: eq.LEARN(tolerated=0).exchanges(OWN, t=0, udpate=OWN).send(None),  # type: ignore[call-arg]
        "LEARN got an unknown input 'udpate': did you mean update?",
    ),
    "a misspelt input of run_exchanges": (
        lambda: eq.run_exchanges(MEDIAN, OWN, lambda sent: RECEIVED, totl=3),  # type: ignore[call-arg]
        "Median got an unknown input 'totl': did you mean total?",
    ),
    "a misspelt input of PerClient": (
        lambda: eq.PerClient([MEDIAN] * 4)(MODELS, RING.deliver(MODELS), tolerate=1),  # type: ignore[call-arg]
        "PerClient got an unknown input 'tolerate': did you mean tolerated?",
    ),
    "a round as text": (
        lambda: BALANCE(OWN, RECEIVED, t="a", total=10),  # type: ignore[arg-type]
        "t must be an integer at least 0, found 'a'",
    ),
    "a round for a rule without need of it": (
        lambda: MEDIAN(OWN, RECEIVED, t=1.5),  # type: ignore[arg-type]
        "t must be an integer at least 0, found 1.5",
    ),
    "a total as text": (
        lambda: BALANCE(OWN, RECEIVED, t=0, total="10"),  # type: ignore[arg-type]
        "total must be an integer at least 1, found '10'",
    ),
    "a simulator's total as text": (
        lambda: construct(total="10"),
        "total must be an integer at least 1, found '10'",
    ),
    "a round as text for LEARN": (
        lambda: eq.LEARN(tolerated=0).exchanges(OWN, t="a", update=OWN).send(None),  # type: ignore[arg-type]
        "t must be an integer at least 0, found 'a'",
    ),
    "a share as text": (
        lambda: eq.draw_malicious(20, "0.2"),  # type: ignore[arg-type]
        "share must be a number from 0 to 1, found '0.2'",
    ),
    "a number of clients as text": (
        lambda: eq.draw_malicious("20", 0.2),  # type: ignore[arg-type]
        "n must be an integer at least 1, found '20'",
    ),
    "True as a share": (
        lambda: eq.draw_malicious(20, True),
        "share must be a number from 0 to 1, found True",
    ),
    "a round after the last": (
        lambda: BALANCE(OWN, RECEIVED, t=10, total=10),
        "t must be a round from 0 to total - 1 = 9, found 10",
    ),
    "a negative gamma": (
        lambda: eq.Balance(gamma=-0.3),
        "gamma must be a finite number >= 0, found -0.3",
    ),
    "gamma as text": (
        lambda: eq.BalanceMedian(gamma="0.3"),  # type: ignore[arg-type]
        "gamma must be a finite number >= 0, found '0.3'",
    ),
    "no number to tolerate": (
        lambda: eq.Krum()(OWN, RECEIVED),
        "Krum needs tolerated: pass tolerated=... when calling it",
    ),
    "a share to tolerate": (
        lambda: eq.Krum()(OWN, RECEIVED, tolerated=0.2),  # type: ignore[arg-type]
        "tolerated must be whole numbers >= 0, found 0.2",
    ),
    "a simulator's share to tolerate": (
        lambda: construct(tolerated=0.2),
        "tolerated must be whole numbers >= 0, found 0.2",
    ),
    "a simulator's alpha": (lambda: construct(alpha=1.5), "alpha must be in [0, 1], found 1.5"),
    "a simulator's alpha as text": (
        lambda: construct(alpha="0.5"),
        "alpha must be a number or a floating-point tensor, found str",
    ),
    "a simulator's flag": (
        lambda: construct(keep_nonfinite="no"),
        "keep_nonfinite must be True or False, found 'no'",
    ),
    "too many to trim": (
        lambda: eq.TrimmedMean(tolerated=5, strict=True)(OWN, torch.ones(5, 3)),
        "tolerated must be at most 2 for client 0 with 5 neighbors, found 5; strict=False warns "
        "instead",
    ),
    "too many for Krum": (
        lambda: eq.Krum(tolerated=2, strict=True)(OWN, torch.ones(4, 3)),
        "tolerated must be at most 0 for client 0 with 4 neighbors, found 2; strict=False warns "
        "instead",
    ),
    "too few neighbours for Krum": (
        lambda: eq.Krum(tolerated=0, strict=True)(MODELS, RING.deliver(MODELS)),
        "client 0 must have more neighbors for strict=True, found 2 with tolerated=0",
    ),
    "too large an alpha": (
        lambda: eq.mix(OWN, OWN, alpha=1.5),
        "alpha must be in [0, 1], found 1.5",
    ),
    "no rounds to run": (
        lambda: eq.Simulator(lambda models, t: models, RING, MEDIAN, MODELS).run(),
        "rounds must be given, here or as total of the Simulator, found neither",
    ),
}

MODULES: dict[str, Mistake] = {
    "another architecture": (
        lambda: eq.stack_models([LAYER, torch.nn.Linear(3, 1)]),
        "modules[1] must have the parameters of modules[0], expected parameter 'weight', float32 "
        "(1, 2) on cpu, "
        "found parameter 'weight', float32 (1, 3) on cpu",
    ),
    "a single module": (
        lambda: eq.stack_models(LAYER),  # type: ignore[arg-type]
        "modules must be several modules, found Linear; flatten takes one",
    ),
    "a state_dict": (
        lambda: eq.flatten(LAYER.state_dict()),  # type: ignore[arg-type]
        "module must be a torch.nn.Module, found OrderedDict",
    ),
    "swapped arguments": (
        lambda: eq.unflatten(LAYER, OWN),  # type: ignore[type-var]
        "module must be a torch.nn.Module, found float32 (3,)",
    ),
    "all models into one module": (
        lambda: eq.unflatten(MODELS, LAYER),
        "vector must be a floating-point tensor of shape (d,), found float32 (4, 3); "
        "unstack_models takes several",
    ),
    "another model's vector": (
        lambda: eq.unflatten(torch.ones(4), LAYER),
        "vector must have 3 elements, one per parameter of module, found 4: "
        "it goes on after the last parameter, 'bias'",
    ),
    "modules for some of the models": (
        lambda: eq.unstack_models(MODELS, [LAYER]),
        "modules must be one per row of models, expected 4, found 1",
    ),
    "one module for all models": (
        lambda: eq.unstack_models(MODELS, [LAYER] * 4),
        "modules must not share parameters, found parameter 'weight' of modules[1] in modules[0]; "
        "copy.deepcopy makes another",
    ),
    "the whole answer of a rule": (
        lambda: eq.mix(OWN, MEDIAN(OWN, RECEIVED)),  # type: ignore[arg-type]
        "model must be a floating-point tensor of shape (d,) or (n, d), found Aggregated; take "
        "its .model",
    ),
    "loaders": (
        lambda: train([DataLoader(TensorDataset(*PAIR))] * 4),
        "clients[0] must be a pair of tensors (x, y), found DataLoader",
    ),
    "arrays": (
        lambda: train([(np.ones((5, 2)), np.ones((5, 1)))] * 4),
        "clients[0] must be a pair of tensors (x, y), found (ndarray, ndarray)",
    ),
    "a data set that was not divided": (
        lambda: train(eq.data.synthetic_regression()),
        "clients must be a pair of tensors (x, y) for every client, found Dataset; Dataset.split "
        "makes such pairs",
    ),
}

PARTS: dict[str, Mistake] = {
    "a class for a rule": (
        lambda: simulate(rule=eq.Median),
        "rule must be a rule, found the class Median; Median() makes one",
    ),
    "a name for a rule": (
        lambda: simulate(rule="median"),
        "rule must be a rule such as Median(), found str",
    ),
    "a class for an attack": (
        lambda: simulate(attack=eq.attacks.Gaussian, malicious=[0]),
        "attack must be an attack, found the class Gaussian; Gaussian() makes one",
    ),
    "a name for an attack": (
        lambda: simulate(attack="gaussian", malicious=[0]),
        "attack must have a method forge or a method poison, found str",
    ),
    "metrics without names": (
        lambda: simulate(metrics=[lambda models: models.norm(dim=1)]),
        "metrics must be functions by name, a dict, found list",
    ),
    "a metric of all clients": (
        lambda: simulate(metrics={"size": lambda models: float(models.norm())}),
        "metrics['size'] must return a tensor (4,) of one value per client, found float",
    ),
    "no loss for UBAR": (
        lambda: eq.UBAR(tolerated=0)(OWN, RECEIVED),
        "UBAR needs loss_of: pass loss_of=... when calling it (in a Simulator: its argument "
        "loss_of, a function of the "
        "round, or a trainer that has one, as LocalSGD)",
    ),
}

MISTAKES = TENSORS | CLIENTS | NUMBERS | MODULES | PARTS


@pytest.mark.parametrize(("make", "message"), MISTAKES.values(), ids=MISTAKES)
def test_the_answer_to_a_mistake(make: Callable[[], Any], message: str) -> None:
    kind = TypeError if re.match(r"\w+ (needs|got an unknown input) ", message) else ValueError
    with pytest.raises(kind) as caught:
        make()
    assert str(caught.value) == message


# What is no mistake


def test_an_input_without_need_is_no_mistake() -> None:
    loss_of = torch.Tensor.norm
    out = MEDIAN(OWN, RECEIVED, t=0, total=1, tolerated=9, loss_of=loss_of, update=OWN, state=None)
    assert torch.equal(out.model, OWN)


def test_nobody_to_hear_is_no_mistake() -> None:
    for received in (torch.empty(0, 3), eq.Inbox.collect([], like=OWN)):
        assert torch.equal(MEDIAN(OWN, received).model, OWN)


def test_models_that_require_gradients_are_no_mistake() -> None:
    own, received = OWN.clone().requires_grad_(), RECEIVED.clone().requires_grad_()
    out = BALANCE(own, received, t=0, total=1)
    assert not out.model.requires_grad
    assert not eq.mix(own, out.model).requires_grad


# Files, packages, the command line


@pytest.mark.parametrize(
    ("load", "expected"),
    [
        (
            eq.data.mnist,
            "train-images-idx3-ubyte.gz and the other files of MNIST in {0}/MNIST/raw, {0}/raw "
            "or {0}",
        ),
        (
            eq.data.har,
            "UCI HAR Dataset.zip or the folder UCI HAR Dataset in {0}, or one of them as root",
        ),
        (eq.data.celeba, "list_attr_celeba.txt in {0} or a folder celeba, raw, Img, Anno in it"),
    ],
)
def test_missing_files(load: Callable[[Any], Any], expected: str, tmp_path: Any) -> None:
    root = tmp_path / "nowhere"
    with pytest.raises(FileNotFoundError) as caught:
        load(root)
    advice = "Put it there, or load it with download=True"
    assert (
        str(caught.value) == f"expected {expected.format(root)}, found no folder {root}. {advice}"
    )


@pytest.mark.parametrize(
    ("package", "use", "message"),
    [
        (
            "matplotlib.pyplot",
            partial(eq.plots.graph, RING),
            'matplotlib is not installed: pip install "equipoise[plots]"',
        ),
        (
            "sklearn.datasets",
            eq.data.digits,
            'sklearn is not installed: pip install "equipoise[data]"',
        ),
        (
            "tqdm",
            lambda: files.need("tqdm"),
            'tqdm is not installed: pip install "equipoise[data]"',
        ),
        (
            "PIL.Image",
            lambda: files.need("PIL.Image"),
            'PIL is not installed: pip install "equipoise[data]"',
        ),
        ("pandas", eq.History(1).frame, 'pandas is not installed: pip install "equipoise[frames]"'),
        (
            "filelock",
            lambda: Store("."),
            'filelock is not installed: pip install "equipoise[benchmarks]"',
        ),
        (
            "matplotlib.figure",
            lambda: theory.draw({}),
            'matplotlib is not installed: pip install "equipoise[plots]"',
        ),
    ],
)
def test_missing_packages(
    package: str, use: Callable[[], Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError) as caught:
        use()
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], r"equipoise: error: the following arguments are required: COMMAND\n"),
        (
            ["demmo"],
            r"equipoise: error: argument COMMAND: invalid choice: 'demmo' \(choose from "
            r"'?demo'?\)\n",
        ),
        (
            ["demo", "--rule", "Balence"],
            r"argument --rules: must be one of Alone, .*, found Balence; did you mean Balance\?\n",
        ),
        (["demo", "--rounds", "0"], r"argument --rounds: must be an integer >= 1, found 0\n"),
        (["demo", "--sed", "3"], r"equipoise: error: unrecognized arguments: --sed 3\n"),
    ],
)
def test_the_command_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert re.search(message + r"\Z", capsys.readouterr().err)
