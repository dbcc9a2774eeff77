"""Partitions of the training examples between clients.

Each partition returns one tensor of indices per client: ascending, int64, on the CPU. Together
they hold each example exactly once. Equal arguments give equal parts. The global generator of
torch is neither used nor changed.

All partitions have the same options. ``seed`` determines the random choices. A client with fewer
than ``minimum`` examples is an error. With ``too_little="top_up"`` it gets random examples instead,
from the client that has most at that moment, regardless of their labels.
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


def iid(
    data: Dataset | Tensor,
    n: int,
    *,
    seed: int = 0,
    minimum: int = 1,
    too_little: TooLittle = "error",
) -> Parts:
    """Divide the examples at random; the sizes of any two clients differ by at most one.

    Args:
        data: the dataset, or its labels ``(N,)`` or targets.
        n: the number of clients.
        seed: determines the assignment.
        minimum: the number of examples that each client must have.
        too_little: ``"error"``, or ``"top_up"``.

    >>> from equipoise.data.partitions import iid
    >>> [len(part) for part in iid(torch.zeros(10), 4)]
    [3, 3, 2, 2]
    """
    check_count("n", n, 1)
    generator = stream(seed, "iid")
    # Residues of a permutation: the sizes are equal up to one.
    clients = torch.randperm(len(answers_of(data)), generator=generator, device="cpu") % n
    return parts_of(clients, n, minimum, too_little, generator)


def by_group(
    data: Dataset | Tensor,
    n: int,
    p: float = 0.8,
    *,
    seed: int = 0,
    minimum: int = 1,
    too_little: TooLittle = "error",
) -> Parts:
    r"""Give an example to the group of clients for its class with probability p.

    .. math::

        P(\text{group} = g \mid y) = p \text{ if } g = y, \text{ otherwise } \frac{1 - p}{z - 1}

    Fang et al., *Local Model Poisoning Attacks to Byzantine-Robust Federated Learning*, USENIX
    Security 2020. With p = 0.8 it is the default of the BALANCE paper. For ``z`` classes, ``p = 1
    / z`` is IID, and ``p = 1`` separates the classes. A group divides its examples evenly at
    random: sizes differ by at most one.

    Client k is in group ``k % z``; finally, the clients are renumbered at random. If n is not a
    multiple of ``z``, some groups have one client fewer, whose parts are larger. If there are fewer
    clients than classes, group g belongs to client ``g % n``.

    Args:
        data: the dataset, or its labels ``(N,)``; classes then run from 0 to the largest label.
        n: the number of clients.
        p: the probability that an example goes to the group of its class, from 0 to 1.
        seed: determines the assignment.
        minimum: the number of examples that each client must have.
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
    # A shift of 1 to z - 1 reaches each other class with equal probability. With one class there is
    # no other class: max keeps the range non-empty, and % classes makes the shift 0.
    other = torch.randint(1, max(classes, 2), labels.shape, generator=generator, device="cpu")
    # float64: variates of float32 would round p to a multiple of 2**-24.
    home = torch.rand(labels.shape, generator=generator, dtype=torch.float64, device="cpu") < p
    groups = torch.where(home, labels, (labels + other) % classes)
    # Clients in each group. With fewer clients than classes some groups have none; each counts as
    # one, and % n below assigns it to an existing client.
    members = places_of_each(classes, n).clamp(min=1)
    turn = random_ranks(groups, generator) % members[groups]
    clients = (groups + turn * classes) % n
    # Without it, client k would always hold mostly class k % z, in every seed.
    renumbered = torch.randperm(n, generator=generator, device="cpu")
    return parts_of(renumbered[clients], n, minimum, too_little, generator)


def by_classes(
    data: Dataset | Tensor,
    n: int,
    classes_each: int = 3,
    *,
    seed: int = 0,
    minimum: int = 1,
    too_little: TooLittle = "error",
) -> Parts:
    r"""Give each client examples of a few classes.

    Of ``z`` classes, client k holds ``c = classes_each`` consecutive ones,

    .. math:: ck, \; ck + 1, \; \ldots, \; ck + c - 1 \pmod z

    and the examples of a class are divided evenly at random between its clients. This is the
    extreme case of the BALANCE paper (Fang et al., CCS 2024, section 7), where client 1 has the
    digits 0 to 2, client 2 has 3 to 5, and so on; after McMahan et al., AISTATS 2017.

    Each class needs a client, so n must be at least ``z / c``.

    Args:
        data: the dataset, or its labels ``(N,)``; classes then run from 0 to the largest label.
        n: the number of clients.
        classes_each: the number of classes per client.
        seed: determines the assignment within a class.
        minimum: the number of examples that each client must have.
        too_little: ``"error"``, or ``"top_up"``, which may give a client examples of other classes.

    >>> from equipoise.data.partitions import by_classes
    >>> labels = torch.arange(20) % 10
    >>> [labels[part].unique().tolist() for part in by_classes(labels, 4)]
    [[0, 1, 2], [3, 4, 5], [6, 7, 8], [0, 1, 9]]
    """
    labels, classes = labels_of(data, "by_classes")
    check_count("n", n, 1)
    # At most z: the places of a client would otherwise repeat a class.
    check_count("classes_each", classes_each, 1, classes)
    places = n * classes_each  # place s belongs to client s // c and is for class s % z
    if places < classes:
        needed = math.ceil(classes / classes_each)
        raise ValueError(
            f"n must be at least {needed} for {classes} classes, {classes_each} of them each,"
            f" found {n}: no client would hold class {places}"
        )
    generator = stream(seed, "by_classes")
    # The examples of class y take turns between its places y, y + z, y + 2 z, ...
    turn = random_ranks(labels, generator) % places_of_each(classes, places)[labels]
    clients = (labels + turn * classes) // classes_each
    return parts_of(clients, n, minimum, too_little, generator)


def dirichlet(
    data: Dataset | Tensor,
    n: int,
    concentration: float = 0.5,
    *,
    seed: int = 0,
    minimum: int = 1,
    too_little: TooLittle = "error",
) -> Parts:
    r"""Divide each class between the clients in random proportions.

    .. math::

        (q_{y1}, \ldots, q_{yn})
        \sim \mathrm{Dirichlet}(\mathrm{concentration}, \ldots, \mathrm{concentration})

    for each class y. Client k gets the fraction :math:`q_{yk}` of its examples, rounded up or down
    at random without bias. A large concentration is nearly even. With a small one, few clients
    share a class, and many have too few examples.

    Yurochkin et al., *Bayesian Nonparametric Federated Learning of Neural Networks*, ICML 2019. Hsu
    et al., *Measuring the Effects of Non-Identical Data Distribution for Federated Visual
    Classification*, 2019, draw proportions of classes for each client instead.

    Args:
        data: the dataset, or its labels ``(N,)``; classes then run from 0 to the largest label.
        n: the number of clients.
        concentration: above 0.
        seed: determines the proportions and the assignment.
        minimum: the number of examples that each client must have.
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
        raise ValueError(
            f"concentration must be above 0 and at most 1e100, found {concentration!r}"
        )
    generator = stream(seed, "dirichlet")
    # Torch's Dirichlet distribution takes no generator. Numpy's is also correct for tiny
    # concentrations, where normalized gamma variates underflow to 0 / 0.
    rng = np.random.default_rng(int(torch.randint(2**62, (), generator=generator, device="cpu")))
    shares = torch.from_numpy(rng.dirichlet(np.full(n, float(concentration)), classes))
    # The position of an example in its class, in [0, 1), falls into the share of one client. One
    # search serves all classes: the shares of class y cover [y, y + 1).
    ranks = random_ranks(labels, generator) + _offsets(classes, generator)[labels]
    place = ranks / labels.bincount()[labels]
    ends = shares.cumsum(1) + torch.arange(classes, device="cpu")[:, None]
    clients = torch.searchsorted(ends.flatten(), labels + place, right=True) - labels * n
    # Shares may sum to slightly less than 1: the last example of a class can land beyond client n
    # - 1.
    return parts_of(clients.clamp(0, n - 1), n, minimum, too_little, generator)


def _offsets(classes: int, generator: torch.Generator) -> Tensor:
    """Draw the position (classes,) of the first example of each class, in [0, 1).

    They are evenly spaced, in random order. With 1/2 for all classes, rounding would favor the same
    clients in each class.
    """
    order = torch.randperm(classes, generator=generator, device="cpu")
    return (
        order + torch.rand((), generator=generator, dtype=torch.float64, device="cpu")
    ) / classes


def by_client(
    data: Dataset | Tensor,
    n: int | None = None,
    *,
    seed: int = 0,
    minimum: int = 1,
    too_little: TooLittle = "error",
) -> Parts:
    """Give each example to the client that it was collected from.

    Client k is owner k of the data. With fewer clients than owners, owners are merged at random:
    the numbers of owners of any two clients differ by at most one. More clients than owners are an
    error.

    Args:
        data: a dataset with owners, or the owners ``(N,)`` of its examples.
        n: the number of clients; None for one per owner.
        seed: determines which owners are merged.
        minimum: the number of examples that each client must have.
        too_little: ``"error"``, or ``"top_up"``.

    >>> from equipoise.data.partitions import by_client
    >>> owners = torch.tensor([0, 1, 2, 0, 1, 2, 2])
    >>> [part.tolist() for part in by_client(owners)]
    [[0, 3], [1, 4], [2, 5, 6]]
    >>> sorted(len(owners[part].unique()) for part in by_client(owners, 2))
    [1, 2]
    """
    owners = owners_of(data)
    # owners_of has checked that there are no gaps: the largest id gives the number of owners.
    count = int(owners.max()) + 1
    n = count if n is None else n
    check_count("n", n, 1)
    if n > count:
        raise ValueError(
            f"n must be at most the number of owners, {count}, found {n};"
            " other partitions, such as iid, have no such limit"
        )
    generator = stream(seed, "by_client")
    # Identity: with one client per owner, client k is owner k.
    renumbered = torch.arange(n, device="cpu")
    if n < count:
        renumbered = torch.randperm(count, generator=generator, device="cpu") % n
    return parts_of(renumbered[owners], n, minimum, too_little, generator)
