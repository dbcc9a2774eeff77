"""r-robustness of a graph: exact by integer programming, and bounds for large graphs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from equipoise._utils.optional import import_optional
from equipoise.topology.spectra import laplacian

# The program has two binary variables per client and holds a dense matrix of 3n times 2n numbers.
EXACT_UP_TO = 200

# Eigenvalues have errors of about 1e-12, which must not round a whole number up. The solver accepts
# solutions that violate a constraint by 1e-6.
EIGENVALUE_ERROR = 1e-9
SOLVER_ERROR = 1e-5


@dataclass(frozen=True)
class Robustness:
    """The largest r for which a graph is r-robust lies from ``lower`` to ``upper``.

    A graph is r-robust if of any two disjoint nonempty sets of clients at least one has a client
    that receives from r or more clients outside of its set (LeBlanc et al., *Resilient Asymptotic
    Consensus in Robust Networks*, IEEE JSAC 2013).
    """

    lower: int
    upper: int

    @property
    def is_exact(self) -> bool:
        """Whether both bounds are equal."""
        return self.lower == self.upper

    def __str__(self) -> str:
        return f"{self.lower}" if self.is_exact else f"{self.lower} to {self.upper}"


def robustness_of(sends: Tensor, time_limit: float) -> Robustness:
    """The r-robustness of a graph (n, n) of bools, where row i sends to column j.

    These are bounds for more than 200 clients, for a time limit of 0 seconds, or if the program
    does not end before it.

    >>> from equipoise.topology.robustness import robustness_of
    >>> robustness_of(eq.Topology.complete(5).adjacency(), time_limit=0)
    Robustness(lower=3, upper=3)
    """
    sends = sends.cpu().clone().fill_diagonal_(False)
    bounds = Robustness(_lower_bound(sends), _upper_bound(sends))
    if bounds.is_exact or not time_limit or len(sends) > EXACT_UP_TO:
        return bounds
    return _solve(sends, bounds, time_limit)


def _lower_bound(sends: Tensor) -> int:
    """From the algebraic connectivity of an undirected graph, or from its reachability."""
    # r-robust means that half of the algebraic connectivity is at most r: Shahrivar, Pirani and
    # Sundaram, Spectral and structural properties of random interdependent networks, 2017.
    if torch.equal(sends, sends.T) and len(sends) > 1:
        second = float(torch.linalg.eigvalsh(laplacian(sends.double()))[1])
        return max(0, math.ceil(second / 2 - EIGENVALUE_ERROR))
    import networkx as nx

    # 1-robust means that some client reaches all others.
    graph = nx.from_numpy_array(sends.numpy(), create_using=nx.DiGraph)
    condensed = nx.condensation(graph)
    sources = [part for part, degree in condensed.in_degree() if not degree]
    return int(len(sources) == 1)


def _upper_bound(sends: Tensor) -> int:
    """From the number of clients, each client against the others, and cuts along a line."""
    n = len(sends)
    upper = math.ceil(n / 2)
    if n == 1:
        return upper
    # 1. One client against all others, of which none receives more than one edge from it.
    in_degrees = sends.sum(0)
    upper = min(upper, int(torch.maximum(in_degrees, sends.any(1)).min()))
    # 2. The clients before each place in the order of the Fiedler vector, against the others.
    symmetric = (sends | sends.T).double()
    order = torch.linalg.eigh(laplacian(symmetric)).eigenvectors[:, 1].argsort()
    receives = sends[order][:, order].T.long()
    # (n, n - 1): from how many of the first m + 1 clients each one receives.
    before = receives.cumsum(1)[:, :-1]
    after = receives.sum(1, keepdim=True) - before
    is_first = torch.ones(n, n - 1, dtype=torch.bool).triu()
    reach = torch.stack([after.where(is_first, 0).amax(0), before.where(~is_first, 0).amax(0)])
    return min(upper, int(reach.amax(0).min()))


def _solve(sends: Tensor, bounds: Robustness, time_limit: float) -> Robustness:
    r"""Solve the mixed-integer program of Usevitch and Panagou (2020).

    Minimize t subject to :math:`L s_1 \leq t, L s_2 \leq t, s_1 + s_2 \leq 1`, with binary s, each
    from 1 to n - 1 clients, and L the in-degrees minus the edges: row i of :math:`L s`
    is the number of clients outside of the set from which its member i receives.
    """
    optimize: Any = import_optional("scipy.optimize", "diagnostics")
    n = len(sends)
    in_laplacian = laplacian(sends.T.double()).numpy()
    zeros = np.zeros((n, n))
    t = np.ones((n, 1))
    rows = np.block(
        [[-t, in_laplacian, zeros], [-t, zeros, in_laplacian], [0 * t, np.eye(n), np.eye(n)]]
    )
    sizes = np.zeros((2, 2 * n + 1))
    sizes[0, 1 : n + 1] = 1
    sizes[1, n + 1 :] = 1
    solution = optimize.milp(
        np.eye(1, 2 * n + 1)[0],  # minimize t, which comes first
        constraints=[
            optimize.LinearConstraint(rows, -np.inf, np.repeat([0.0, 0.0, 1.0], n)),
            optimize.LinearConstraint(sizes, 1, n - 1),
        ],
        integrality=np.ones(2 * n + 1),
        bounds=optimize.Bounds(
            np.r_[bounds.lower, np.zeros(2 * n)], np.r_[bounds.upper, np.ones(2 * n)]
        ),
        options={"time_limit": time_limit},
    )
    lower = bounds.lower
    upper = bounds.upper
    # Both are None if the time limit came first.
    if solution.mip_dual_bound is not None and math.isfinite(solution.mip_dual_bound):
        lower = max(lower, math.ceil(solution.mip_dual_bound - SOLVER_ERROR))
    if solution.fun is not None:
        upper = min(upper, round(solution.fun))
    return Robustness(lower, upper)
