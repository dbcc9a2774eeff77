"""Who trains on what: ways to divide the training examples between clients.

Every partition returns one tensor of indices per client, ascending, int64, on the CPU; together they hold every example
exactly once. The same arguments give the same parts, and torch's global generator is neither used nor changed.

All of them take the same options. ``seed`` decides what is random. A client that would have fewer than ``least``
examples is an error; with ``too_little="top_up"`` it is given random ones of whoever has most at that moment, just
enough to have ``least``, whatever their labels.
"""

from __future__ import annotations

import math
from numbers import Real

import numpy as np
import torch
from torch import Tensor

from equipoise._utils.rng import stream
from equipoise._utils.validation import check_count, check_probability
from equipoise.data._assignment import Parts, TooLittle, parts_of, places_of_each, random_ranks
from equipoise.data._labels import answers_of, labels_of, owners_of
from equipoise.data.dataset import Dataset


def iid(data: Dataset | Tensor, n: int, *, seed: int = 0, least: int = 1, too_little: TooLittle = "error") -> Parts:
    """Divide the examples at random, whatever their labels; the sizes of any two clients differ by at most one.

    Args:
        data: the dataset, or its labels ``(N,)`` or targets.
        n: how many clients.
        seed: decides who gets which examples.
        least: how many examples a client must have.
        too_little: ``"error"``, or ``"top_up"``.

    >>> from equipoise.data.partitions import iid
    >>> [len(part) for part in iid(torch.zeros(10), 4)]
    [3, 3, 2, 2]
    """
    check_count("n", n, 1)
    generator = stream(seed, "iid")
    clients = torch.randperm(len(answers_of(data)), generator=generator, device="cpu") % n
    return parts_of(clients, n, least, too_little, generator)


def by_group(
    data: Dataset | Tensor,
    n: int,
    p: float = 0.8,
    *,
    seed: int = 0,
    least: int = 1,
    too_little: TooLittle = "error",
) -> Parts:
    r"""Divide the clients into one group per class, and give an example to the group of its class with probability p.

    .. math:: P(\text{group} = g \mid y) = p \text{ if } g = y, \text{ otherwise } \frac{1 - p}{z - 1}

    Fang et al., *Local Model Poisoning Attacks to Byzantine-Robust Federated Learning*, USENIX Security 2020; with
    p = 0.8 it is the default of the BALANCE paper. ``p = 1 / z`` for ``z`` classes is IID, ``p = 1`` separates the
    classes. Inside a group the examples are divided evenly at random, so that sizes differ by at most one.

    Client k is in group ``k % z``, and in the end the clients are renumbered at random. If n is not a multiple of ``z``
    some groups have one client fewer, whose parts are larger. If there are fewer clients than classes, a client
    stands for several groups: group g belongs to client ``g % n``.

    Args:
        data: the dataset, or its labels ``(N,)``; classes then run from 0 to the largest label.
        n: how many clients.
        p: the probability that an example goes to the group of its class, from 0 to 1.
        seed: decides who gets which examples.
        least: how many examples a client must have.
        too_little: ``"error"``, or ``"top_up"``.

    >>> from equipoise.data.partitions import by_group
    >>> labels = torch.arange(12) % 3
    >>> sorted(labels[part].tolist() for part in by_group(labels, 3, p=1.0))
    [[0, 0, 0, 0], [1, 1, 1, 1], [2, 2, 2, 2]]
    """
    labels, classes = labels_of(data, "by_group")
    check_count("n", n, 1)
    check_probability("p", p)
    generator = stream(seed, "by_group")
    other = torch.randint(1, max(classes, 2), labels.shape, generator=generator, device="cpu")
    home = torch.rand(labels.shape, generator=generator, dtype=torch.float64, device="cpu") < p
    groups = torch.where(home, labels, (labels + other) % classes)
    members = places_of_each(classes, n).clamp(min=1)
    turn = random_ranks(groups, generator) % members[groups]
    clients = (groups + turn * classes) % n
    renumbered = torch.randperm(n, generator=generator, device="cpu")
    return parts_of(renumbered[clients], n, least, too_little, generator)


def by_classes(
    data: Dataset | Tensor,
    n: int,
    classes_each: int = 3,
    *,
    seed: int = 0,
    least: int = 1,
    too_little: TooLittle = "error",
) -> Parts:
    r"""Give every client the examples of a few classes only.

    Of ``z`` classes, client k holds ``c = classes_each`` consecutive ones,

    .. math:: ck, \; ck + 1, \; \ldots, \; ck + c - 1 \pmod z

    and the examples of a class are divided evenly at random between the clients that hold it. This is the extreme
    case of the BALANCE paper (Fang et al., CCS 2024, section 7), where client 1 has the digits 0 to 2, client 2 has
    3 to 5, and so on; after McMahan et al., AISTATS 2017.

    Every class must be held by somebody: it takes at least ``z / c`` clients.

    Args:
        data: the dataset, or its labels ``(N,)``; classes then run from 0 to the largest label.
        n: how many clients.
        classes_each: how many classes a client holds.
        seed: decides who gets which examples of a class.
        least: how many examples a client must have.
        too_little: ``"error"``, or ``"top_up"``, which may give a client examples of other classes.

    >>> from equipoise.data.partitions import by_classes
    >>> labels = torch.arange(20) % 10
    >>> [labels[part].unique().tolist() for part in by_classes(labels, 4)]
    [[0, 1, 2], [3, 4, 5], [6, 7, 8], [0, 1, 9]]
    """
    labels, classes = labels_of(data, "by_classes")
    check_count("n", n, 1)
    check_count("classes_each", classes_each, 1, classes)
    places = n * classes_each  # place s belongs to client s // c and is for class s % z
    if places < classes:
        needed = math.ceil(classes / classes_each)
        raise ValueError(
            f"n must be at least {needed} for {classes} classes, {classes_each} of them each, found {n}:"
            f" nobody would hold class {places}"
        )
    generator = stream(seed, "by_classes")
    turn = random_ranks(labels, generator) % places_of_each(classes, places)[labels]
    clients = (labels + turn * classes) // classes_each
    return parts_of(clients, n, least, too_little, generator)


def dirichlet(
    data: Dataset | Tensor,
    n: int,
    concentration: float = 0.5,
    *,
    seed: int = 0,
    least: int = 1,
    too_little: TooLittle = "error",
) -> Parts:
    r"""Divide every class between the clients in random proportions.

    .. math:: (q_{y1}, \ldots, q_{yn}) \sim \mathrm{Dirichlet}(\mathrm{concentration}, \ldots, \mathrm{concentration})

    for each class y, of whose examples client k gets the fraction :math:`q_{yk}`, rounded up or down at random so that
    nobody gains by it. The larger the concentration, the more even; the smaller, the fewer clients share a class, and
    the more are left with too little.

    Yurochkin et al., *Bayesian Nonparametric Federated Learning of Neural Networks*, ICML 2019. Hsu et al., *Measuring
    the Effects of Non-Identical Data Distribution for Federated Visual Classification*, 2019, draw proportions of
    classes for each client instead.

    Args:
        data: the dataset, or its labels ``(N,)``; classes then run from 0 to the largest label.
        n: how many clients.
        concentration: above 0.
        seed: decides the proportions, and who gets which examples of a class.
        least: how many examples a client must have.
        too_little: ``"error"``, or ``"top_up"``.

    >>> from equipoise.data.partitions import dirichlet
    >>> labels = torch.arange(90) % 10
    >>> [len(part) for part in dirichlet(labels, 3, concentration=1e9)]
    [30, 30, 30]
    >>> sum(len(part) for part in dirichlet(labels, 3, concentration=0.1, too_little="top_up"))
    90
    """
    labels, classes = labels_of(data, "dirichlet")
    check_count("n", n, 1)
    if not isinstance(concentration, Real) or not 0 < concentration <= 1e100:
        raise ValueError(f"concentration must be above 0 and at most 1e100, found {concentration!r}")
    generator = stream(seed, "dirichlet")
    # Torch has no Dirichlet distribution that takes a generator; numpy's is right for tiny concentrations, too.
    rng = np.random.default_rng(int(torch.randint(2**62, (), generator=generator, device="cpu")))
    shares = torch.from_numpy(rng.dirichlet(np.full(n, float(concentration)), classes))
    # An example's place in its class, between 0 and 1, falls into the share of one client. All classes are looked up at
    # once: the shares of class y are laid out from y to y + 1.
    place = (random_ranks(labels, generator) + _beginnings(classes, generator)[labels]) / labels.bincount()[labels]
    ends = shares.cumsum(1) + torch.arange(classes, device="cpu")[:, None]
    clients = torch.searchsorted(ends.flatten(), labels + place, right=True) - labels * n
    return parts_of(clients.clamp(0, n - 1), n, least, too_little, generator)  # the ends of a class are rounded, too


def _beginnings(classes: int, generator: torch.Generator) -> Tensor:
    """(classes,) uniform numbers in [0, 1), spread evenly, in random order: where the examples of each class begin.

    If all began at 1/2, the same clients would gain by rounding in every class.
    """
    order = torch.randperm(classes, generator=generator, device="cpu")
    return (order + torch.rand((), generator=generator, dtype=torch.float64, device="cpu")) / classes


def by_client(
    data: Dataset | Tensor,
    n: int | None = None,
    *,
    seed: int = 0,
    least: int = 1,
    too_little: TooLittle = "error",
) -> Parts:
    """Give every example to the client that it was collected from.

    Client k is owner k of the data. With fewer clients than owners, owners are merged at random, so that the numbers
    of owners of any two clients differ by at most one. More clients than owners are an error.

    Args:
        data: a dataset with owners, or the owners ``(N,)`` of its examples.
        n: how many clients; None for one per owner.
        seed: decides which owners are merged.
        least: how many examples a client must have.
        too_little: ``"error"``, or ``"top_up"``.

    >>> from equipoise.data.partitions import by_client
    >>> owners = torch.tensor([0, 1, 2, 0, 1, 2, 2])
    >>> [part.tolist() for part in by_client(owners)]
    [[0, 3], [1, 4], [2, 5, 6]]
    >>> sorted(len(owners[part].unique()) for part in by_client(owners, 2))
    [1, 2]
    """
    owners = owners_of(data)
    count = int(owners.max()) + 1
    n = count if n is None else n
    check_count("n", n, 1)
    if n > count:
        raise ValueError(
            f"n must be at most the number of owners, {count}, found {n}; others, such as iid, can make more"
        )
    generator = stream(seed, "by_client")
    renumbered = torch.arange(n, device="cpu")
    if n < count:
        renumbered = torch.randperm(count, generator=generator, device="cpu") % n
    return parts_of(renumbered[owners], n, least, too_little, generator)
