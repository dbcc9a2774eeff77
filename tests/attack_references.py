"""The truth that the attacks are tested against: one victim at a time, float64, in the words of their papers.

Nothing here is fast or shared with the library. A reference takes a `World`, all that a full-knowledge adversary sees,
and one victim, a benign client that hears a malicious one; its keywords are the attack's options, by the same names. It
returns the one `Lie` that every malicious neighbour tells that victim; `krum_attack` asks which ``sender``. Attacks
that draw random numbers have none; they get the facts to check instead: `trim_range`, what every coordinate of a Trim
lie is drawn from.

Section numbers are those of section 2, "Attacks", of the project's definitions, which name the papers and code.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tests.references import REFERENCES, Answer, Message, Vector, array, client_inputs, krum, norm

Mask = NDArray[np.bool_]

# Sums that cancel to less than this share of their terms have a sign that rounding may change.
UNDECIDED = 1e-5


class World(NamedTuple):
    """One round: models after and before local training, who hears whom, and who is malicious."""

    models: Vector
    previous: Vector | None
    hears: tuple[tuple[int, ...], ...]
    malicious: frozenset[int]

    @classmethod
    def of(cls, known: Any) -> World:
        """What a `Knowledge` says, as arrays."""
        hears = tuple(tuple(known.topology.neighbors(i).tolist()) for i in range(known.topology.n))
        malicious = frozenset(i for i in range(known.topology.n) if bool(known.malicious_mask[i]))
        return cls(array(known.models), None if known.previous is None else array(known.previous), hears, malicious)

    @property
    def benign(self) -> list[int]:
        """Everybody who is not malicious."""
        return [i for i in range(len(self.models)) if i not in self.malicious]

    @property
    def victims(self) -> list[int]:
        """Benign clients that hear a malicious one."""
        return [i for i in self.benign if self.liars_of(i)]

    def liars_of(self, i: int) -> list[int]:
        """The malicious clients that client ``i`` hears."""
        return [j for j in self.hears[i] if j in self.malicious]

    def friends_of(self, i: int) -> list[int]:
        """The benign clients that client ``i`` hears."""
        return [j for j in self.hears[i] if j not in self.malicious]


class Lie(NamedTuple):
    """What one victim is told.

    ``undecided`` marks coordinates where a sum is zero but for rounding, and the formula takes its sign.
    """

    vector: Vector
    undecided: Mask


# What section 2 calls common.


def crowd(world: World, victim: int, scope: str) -> list[int]:
    """The benign clients to hide among: the victim's benign neighbours, itself if it has none, or all benign ones."""
    if scope == "global":
        return world.benign
    return world.friends_of(victim) or [victim]


def everyone(world: World, victim: int, scope: str) -> list[int]:
    """All clients whose before-attack vectors count, malicious ones too: the victim's neighbours, or all clients."""
    return list(range(len(world.models))) if scope == "global" else list(world.hears[victim])


def liars(world: World, victim: int, scope: str) -> list[int]:
    """The malicious ones among `everyone`."""
    return [j for j in everyone(world, victim, scope) if j in world.malicious]


def vector_of(world: World, j: int, space: str) -> Vector:
    """The client's model, or what local training changed in it."""
    return world.models[j] if space == "model" else world.models[j] - world.previous[j]


def vectors(world: World, clients: Sequence[int], space: str) -> Vector:
    """(c, d) the vectors of some clients."""
    return np.stack([vector_of(world, j, space) for j in clients])


def origin(world: World, victim: int, scope: str, space: str) -> Vector:
    """What a crafted vector is added to: nothing to a model; to an update the victim's, or the mean benign, w^t."""
    if space == "model":
        return np.zeros(world.models.shape[1])
    return last_model(world, victim, scope)


def last_model(world: World, victim: int, scope: str) -> Vector:
    """The w^t of the victim, or the mean of all benign ones."""
    return mean([world.previous[j] for j in world.benign]) if scope == "global" else world.previous[victim]


def mean(rows: Sequence[Vector]) -> Vector:
    """The sum over the number."""
    return sum(rows[1:], rows[0]) / len(rows)


def deviation(rows: Sequence[Vector], *, unbiased: bool = False) -> Vector:
    """The standard deviation of every coordinate; of a single vector it is 0."""
    if len(rows) == 1:
        return np.zeros_like(rows[0])
    squares = sum((row - mean(rows)) ** 2 for row in rows)
    return np.sqrt(squares / (len(rows) - 1 if unbiased else len(rows)))


def sign_of_sum(rows: Sequence[Vector]) -> tuple[Vector, Mask]:
    """The sign of the sum of every coordinate, and where rounding may decide it."""
    total, terms = sum(rows), sum(np.abs(row) for row in rows)
    return np.sign(total), (np.abs(total) <= UNDECIDED * terms) & (terms > 0) & (len(rows) > 1)


def decided(vector: Vector) -> Lie:
    """A lie whose every coordinate is sure."""
    return Lie(vector, np.zeros(vector.shape, dtype=bool))


# 2.4 Krum attack


def krum_attack(world: World, victim: int, *, form: str = "group", **options: Any) -> Lie:
    """2.4 Krum attack: a lie against the direction of Krum's choice, as far as Krum still chooses it."""
    return (krum_group if form == "group" else krum_fang)(world, victim, **options)


def krum_group(
    world: World, victim: int, *, scope: str = "receiver", space: str = "model", sender: int | None = None, **_: Any
) -> Lie:
    """2.4 (a): -lambda * sign(Krum of all before-attack vectors); lambda = 1, 1/2, ... until chosen or <= 1e-5.

    With n <= 2 vectors it is the sender's own, v -> -v.
    """
    before = {j: vector_of(world, j, space) for j in everyone(world, victim, scope)}
    if len(before) <= 2:
        return decided(origin(world, victim, scope, space) - before[sender])
    f = len(liars(world, victim, scope))
    direction = np.sign(before[chosen_by_krum(before, f)])
    size = 1.0
    while not krum_believes(world, before, -size * direction, f) and size > 1e-5:
        size /= 2
    return decided(origin(world, victim, scope, space) - size * direction)


def krum_fang(world: World, victim: int, *, scope: str = "receiver", **_: Any) -> Lie:
    """2.4 (b): w_Re - lambda * sign(Krum before - w_Re); lambda = lambda_max, /2, ... until chosen or < 1e-5.

    In model space; w_Re is the victim's w^t.
    """
    before = {j: world.models[j] for j in everyone(world, victim, scope)}
    f = len(liars(world, victim, scope))
    start = last_model(world, victim, scope)
    step = before[chosen_by_krum(before, f)] - start
    direction = np.sign(step)
    size = largest_krum_step(world, victim, scope, start)
    while not krum_believes(world, before, start - size * direction, f) and size >= 1e-5:
        size /= 2
    close = np.abs(step) <= UNDECIDED * np.abs(start)
    return Lie(start - size * direction, close if scope == "global" else np.zeros_like(close))


def largest_krum_step(world: World, victim: int, scope: str, start: Vector) -> float:
    """lambda_max = min_i sum_{l in k nearest benign} D(w_l, w_i) / ((m-2c-1) sqrt(d)) + max_l D(w_l, w_Re) / sqrt(d).

    For m messages, c of them malicious, and k = m-c-2. Where the victim hears too few benign clients for these numbers
    to be positive, they are 1; the nearest of nobody add nothing.
    """
    benign = [world.models[j] for j in crowd(world, victim, scope)]
    m, c = len(everyone(world, victim, scope)), len(liars(world, victim, scope))
    k = max(m - c - 2, 1)
    root = math.sqrt(len(start))
    sums = []
    for i, mine in enumerate(benign):
        apart = sorted(norm(mine - other) for j, other in enumerate(benign) if j != i)
        sums.append(sum(apart[:k]))
    return min(sums) / (max(m - 2 * c - 1, 1) * root) + max(norm(mine - start) for mine in benign) / root


def chosen_by_krum(candidates: Mapping[int, Vector], tolerated: int) -> int:
    """Whose vector Krum takes."""
    messages = [Message(j, candidates[j]) for j in sorted(candidates)]
    answer = krum(np.zeros_like(messages[0].vector), messages, tolerated=tolerated)
    return messages[int(np.argmax(answer.weights))].sender


def krum_believes(world: World, before: Mapping[int, Vector], lie: Vector, tolerated: int) -> bool:
    """Whether Krum takes the lie when every malicious client tells it."""
    told = {j: lie if j in world.malicious else vector for j, vector in before.items()}
    return chosen_by_krum(told, tolerated) in world.malicious


# 2.5 Trim attack


class Range(NamedTuple):
    """What every crafted coordinate lies between: the extreme of the vectors, and the far end beyond it."""

    extreme: Vector
    far: Vector
    undecided: Mask


def trim_attack(world: World, victim: int, *, scope: str = "receiver", space: str = "model", **options: Any) -> Lie:
    """2.5 Trim attack without randomness: the far end everywhere."""
    between = trim_range(world, victim, scope=scope, space=space, **options)
    return Lie(origin(world, victim, scope, space) + between.far, between.undecided)


def trim_range(world: World, victim: int, *, form: str = "group", **options: Any) -> Range:
    """2.5 Trim attack: the range to draw from, before the origin of updates is added."""
    return (trim_group if form == "group" else trim_fang)(world, victim, **options)


def trim_group(
    world: World, victim: int, *, scope: str = "receiver", space: str = "model", factor: float = 2.0, **_: Any
) -> Range:
    """2.5 (a): dir = sign(sum v); D = min where dir > 0, max where dir < 0, all over the vectors of `everyone`.

    The lie is D / r where dir * D > 0, D * r where dir * D < 0, r from 1 to ``factor``; 0 where dir = 0.
    """
    rows = vectors(world, everyone(world, victim, scope), space)
    direction, undecided = sign_of_sum(list(rows))
    extreme, far = np.zeros(rows.shape[1]), np.zeros(rows.shape[1])
    for c in range(rows.shape[1]):
        if direction[c] != 0:
            extreme[c] = rows[:, c].min() if direction[c] > 0 else rows[:, c].max()
            far[c] = extreme[c] / factor if direction[c] * extreme[c] > 0 else extreme[c] * factor
    return Range(extreme, far, undecided)


def trim_fang(
    world: World, victim: int, *, scope: str = "receiver", space: str = "model", factor: float = 2.0, **_: Any
) -> Range:
    """2.5 (b): s = sign of the mean change that training made to benign models; max and min over benign vectors.

    s = -1: in [max, b max], or [max, max / b] if max is negative. s = +1: in [min / b, min], or [b min, min] if min
    is negative. b is ``factor``. Where s = 0 nothing is said, so nothing is decided.
    """
    clients = crowd(world, victim, scope)
    rows = vectors(world, clients, space)
    direction, undecided = sign_of_sum(list(vectors(world, clients, "update")))
    extreme, far = np.zeros(rows.shape[1]), np.zeros(rows.shape[1])
    for c in range(rows.shape[1]):
        if direction[c] < 0:
            extreme[c] = rows[:, c].max()
            far[c] = factor * extreme[c] if extreme[c] > 0 else extreme[c] / factor
        else:
            extreme[c] = rows[:, c].min()
            far[c] = extreme[c] / factor if extreme[c] > 0 else factor * extreme[c]
    return Range(extreme, far, undecided | (direction == 0))


# 2.7 Adaptive, min-max and min-sum


def perturbation_of(rows: Vector, kind: str) -> tuple[Vector, Mask]:
    """2.7: mu / ||mu||, sign(mu), or the unbiased standard deviation of every coordinate."""
    mu, sure = mean(list(rows)), np.zeros(rows.shape[1], dtype=bool)
    if kind == "unit":
        return (mu / norm(mu) if norm(mu) > 0 else mu), sure
    if kind == "sign":
        return sign_of_sum(list(rows))
    return deviation(list(rows), unbiased=True), sure


def min_max(
    world: World,
    victim: int,
    *,
    perturbation: str = "unit",
    scope: str = "receiver",
    space: str = "model",
    **_: Any,
) -> Lie:
    """2.7, min-max: mu - gamma * p, the largest gamma with max_j ||m - v_j||^2 <= max_{j,k} ||v_j - v_k||^2.

    Every j bounds gamma by the larger root of ||p||^2 x^2 - 2 <mu - v_j, p> x + ||mu - v_j||^2 = max_{j,k}.
    """
    rows = vectors(world, crowd(world, victim, scope), space)
    mu, (p, undecided) = mean(list(rows)), perturbation_of(rows, perturbation)
    widest = max(norm(a - b) ** 2 for a in rows for b in rows)
    limits = [larger_root(mu - row, p, widest) for row in rows]
    gamma = min(limits) if norm(p) > 0 else 0.0
    return Lie(origin(world, victim, scope, space) + mu - gamma * p, undecided)


def larger_root(start: Vector, p: Vector, squared: float) -> float:
    """The larger x with ||start - x * p||^2 = squared; NaN if there is none, infinite for p = 0."""
    a, b, c = norm(p) ** 2, float(np.dot(start, p)), norm(start) ** 2 - squared
    if a == 0:
        return math.inf
    inside = b * b - a * c
    return (b + math.sqrt(max(inside, 0.0))) / a if inside >= -1e-12 * b * b else math.nan


def min_sum(
    world: World,
    victim: int,
    *,
    perturbation: str = "unit",
    scope: str = "receiver",
    space: str = "model",
    **_: Any,
) -> Lie:
    """2.7, min-sum: mu - gamma * p, the largest gamma with sum_j ||m - v_j||^2 <= min_k sum_j ||v_k - v_j||^2.

    The sum is c gamma^2 ||p||^2 + sum_j ||mu - v_j||^2, because the differences from the mean of c vectors cancel.
    """
    rows = vectors(world, crowd(world, victim, scope), space)
    mu, (p, undecided) = mean(list(rows)), perturbation_of(rows, perturbation)
    least = min(sum(norm(a - b) ** 2 for b in rows) for a in rows)
    at_mean = sum(norm(mu - row) ** 2 for row in rows)
    size = len(rows) * norm(p) ** 2
    gamma = math.sqrt(max(least - at_mean, 0.0) / size) if size > 0 else 0.0
    return Lie(origin(world, victim, scope, space) + mu - gamma * p, undecided)


class Probe(NamedTuple):
    """The line of lies mu - gamma * p for one victim, and what the rule of that name makes of them."""

    rule: str
    mu: Vector
    p: Vector
    undecided: Mask
    answer: Callable[[float], Answer]
    liars: list[int]

    def lie(self, gamma: float) -> Vector:
        """The lie of strength gamma."""
        return self.mu - gamma * self.p

    def accepted(self, gamma: float) -> bool:
        """Whether the victim's rule gives weight to all malicious messages; Krum chooses one of them."""
        weights = self.answer(gamma).weights
        heard = [weights[slot] > 0 for slot in self.liars]
        return any(heard) if self.rule == "Krum" else all(heard)

    def damage(self, gamma: float) -> float:
        """2.7, the loss: the distance of the aggregate from mu."""
        return norm(self.answer(gamma).model - self.mu)


def probe(
    world: World,
    victim: int,
    rule: str,
    inputs: Mapping[str, Any],
    *,
    perturbation: str = "unit",
    scope: str = "receiver",
) -> Probe:
    """The line of lies for a victim that follows a rule, given by its name and by options and inputs."""
    rows = vectors(world, crowd(world, victim, scope), "model")
    p, undecided = perturbation_of(rows, perturbation)
    mu, mine = mean(list(rows)), client_inputs(dict(inputs), victim)

    def answer(gamma: float) -> Answer:
        lie = mu - gamma * p
        messages = [Message(j, lie if j in world.malicious else world.models[j]) for j in world.hears[victim]]
        return REFERENCES[rule](world.models[victim], messages, **mine)

    slots = [slot for slot, j in enumerate(world.hears[victim]) if j in world.malicious]
    return Probe(rule, mu, p, undecided, answer, slots)


def balance_limit(world: World, victim: int, threshold: float, line: Probe) -> float:
    """2.7, 'max' against BALANCE: the largest gamma with ||w_i - mu + gamma * p|| <= threshold * ||w_i||."""
    own = world.models[victim]
    return larger_root(line.mu - own, line.p, (threshold * norm(own)) ** 2)


def accepted_strengths(line: Probe, largest: float, steps: int = 400) -> list[float]:
    """The strengths on an even grid from 0 to ``largest`` that the rule accepts."""
    return [x for x in (largest * step / steps for step in range(steps + 1)) if line.accepted(x)]


def adaptive_max(line: Probe, largest: float, steps: int = 400) -> float:
    """2.7, 'max': the largest accepted gamma below ``largest``; NaN unless exactly the ones from 0 to it are accepted.

    Found on a grid, then by bisection.
    """
    good = accepted_strengths(line, largest, steps)
    count = len(good)
    if count == 0 or good[-1] != largest * (count - 1) / steps or count == steps + 1:
        return math.nan
    low, high = good[-1], largest * count / steps
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if line.accepted(middle) else (low, middle)
    return low


def adaptive_literal(line: Probe, *, start: float = 10.0, tolerance: float = 1e-5) -> float:
    """2.7, the search as it is written: every test is compared with the one before, so the first always succeeds."""
    gamma, step, success, before = start, start, 0.0, -1.0
    while abs(success - gamma) > tolerance:
        loss = line.damage(gamma)
        if loss > before:
            success = gamma
            gamma += step / 2
        else:
            gamma -= step / 2
        step /= 2
        before = loss
    return success


# 2.8 LIE


def lie_strength(n: int, m: int) -> float:
    """2.8: z = Phi^-1((n - m - s) / (n - m)), s = floor(n / 2 + 1) - m; NaN where that is no probability in (0, 1)."""
    s = math.floor(n / 2 + 1) - m
    share = (n - m - s) / (n - m) if n > m else math.nan
    return NormalDist().inv_cdf(share) if 0 < share < 1 else math.nan


def lie(
    world: World,
    victim: int,
    *,
    z: float | None = None,
    scope: str = "receiver",
    space: str = "model",
    sign: int = -1,
    **_: Any,
) -> Lie:
    """2.8 LIE: mu + sign * z * sigma, with the population standard deviation; z from all n clients, m malicious."""
    rows = list(vectors(world, crowd(world, victim, scope), space))
    strength = lie_strength(len(world.models), len(world.malicious)) if z is None else z
    return decided(origin(world, victim, scope, space) + mean(rows) + sign * strength * deviation(rows))


# 2.9 Dissensus


def dissensus(world: World, victim: int, *, epsilon: float = 1.5, weights: str = "uniform", **_: Any) -> Lie:
    """2.9: w_i - epsilon * sum_{benign j in N_i} W_ij (w_j - w_i) / sum_{malicious k in N_i} W_ik.

    W is the same for all neighbours, or Metropolis: 1 / (1 + max(deg_i, deg_j)).
    """
    own = world.models[victim]

    def weight(j: int) -> float:
        return 1.0 if weights == "uniform" else 1 / (1 + max(len(world.hears[victim]), len(world.hears[j])))

    pull = sum((weight(j) * (world.models[j] - own) for j in world.friends_of(victim)), np.zeros_like(own))
    return decided(own - epsilon * pull / sum(weight(k) for k in world.liars_of(victim)))


# 2.10 Others


def ipm(
    world: World,
    victim: int,
    *,
    epsilon: float = 1.0,
    scope: str = "receiver",
    space: str = "update",
    **_: Any,
) -> Lie:
    """2.10 IPM: minus epsilon times the mean of the crowd's vectors."""
    rows = list(vectors(world, crowd(world, victim, scope), space))
    return decided(origin(world, victim, scope, space) - epsilon * mean(rows))


def sign_flip(world: World, victim: int, **options: Any) -> Lie:
    """2.10 SignFlip: minus the mean of the crowd's vectors."""
    return ipm(world, victim, **options | {"epsilon": 1.0})


def mimic(world: World, victim: int, *, target: int | None = None, **_: Any) -> Lie:
    """2.10 Mimic: everybody malicious copies one benign client, the first that is finite unless told which."""
    finite = [j for j in world.benign if np.isfinite(world.models[j]).all()]
    return decided(world.models[finite[0] if target is None else target])


def zero(world: World, victim: int, **_: Any) -> Lie:
    """Nothing but zeros."""
    return decided(np.zeros(world.models.shape[1]))


def non_finite(world: World, victim: int, *, value: float = math.nan, **_: Any) -> Lie:
    """2.10 Inf: the same value, NaN or infinite, everywhere."""
    return decided(np.full(world.models.shape[1], value))


# Spectral


def spectral(world: World, victim: int, *, epsilon: float = 1.0, **_: Any) -> Lie:
    """w_i + epsilon * phi_i * sum over benign j of phi_j w_j, phi the unit Fiedler vector of the benign graph.

    An edge in either direction counts. Where the second smallest eigenvalue is a multiple one, phi is not unique and
    nothing is decided.
    """
    benign = world.benign
    joined = np.array([[float(a in world.hears[b] or b in world.hears[a]) for b in benign] for a in benign])
    np.fill_diagonal(joined, 0.0)
    values, phis = np.linalg.eigh(np.diag(joined.sum(1)) - joined)
    own = world.models[victim]
    if len(benign) < 2 or (values[1:3] - values[1] < 1e-6).sum() > 1 or values[1] < 1e-6:
        return Lie(own, np.ones(own.shape, dtype=bool))
    phi = phis[:, 1]
    mode = sum(phi[a] * world.models[j] for a, j in enumerate(benign))
    return decided(own + epsilon * phi[benign.index(victim)] * mode)


ATTACK_REFERENCES: dict[str, Callable[..., Lie]] = {
    "KrumAttack": krum_attack,
    "TrimAttack": trim_attack,
    "LIE": lie,
    "Dissensus": dissensus,
    "SignFlip": sign_flip,
    "IPM": ipm,
    "MinMax": min_max,
    "MinSum": min_sum,
    "Mimic": mimic,
    "NonFinite": non_finite,
    "Zero": zero,
    "Spectral": spectral,
}
