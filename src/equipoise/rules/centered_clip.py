"""CenteredClip: the mean of messages that are clipped around a center, which moves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from equipoise import kernels
from equipoise._utils.validation import check_choice, check_count, check_number, describe
from equipoise.kernels import CenteredProducts
from equipoise.messages import Inbox
from equipoise.rules._sample_weights import check_weighting, message_shares
from equipoise.rules.base import Rule, as_diagnostic, own_share
from equipoise.topology import NoTheorem
from equipoise.types import Aggregated


@dataclass(frozen=True)
class CenteredClip(Rule):
    r"""The last aggregate, moved towards the received models by clipped differences.

    .. math:: v \leftarrow v + \frac{1}{|N_i|} \sum_{j \in N_i}
              \min\Bigl(1, \frac{\tau}{\|w_j - v\|}\Bigr) (w_j - v), \qquad
              \text{in each step}

    Karimireddy, He and Jaggi, *Learning from History for Byzantine Robust Optimization*, ICML 2021.
    There, :math:`v` starts at the last aggregate of gradients. Models move away from their last
    aggregate by more than malicious messages may, so that :math:`\tau` must be larger than the
    steps of training here. The first round starts at own. With ``start="own"`` and one step, the
    rule is ``SCClip(tau)``. Own is not among the models.

    A client without messages keeps own as its aggregate, and :math:`v` as its state. ``weights``
    are those of the messages; the remainder is the weight of the start. Each step moves :math:`v`
    by at most :math:`\tau`, and malicious messages by at most :math:`\tau` times their share. Over
    many rounds this adds up.

    Args:
        tau: the clipping radius.
        steps: the number of steps in each round.
        start: ``"last"``, the last aggregate, which is the state of the rule; or ``"own"``, without
            state, as wrappers and `PerClient` need.
        weighted: weigh the clipped differences by the senders' numbers of training examples, which
            are passed at the call as ``samples``, a tensor indexed by client id, instead of
            :math:`1 / |N_i|`.
        cap: with ``weighted``, no message has more than this multiple of an equal weight in a step.
            A sender may claim any number of examples; beyond the cap, a claim gains nothing.

    >>> received = torch.tensor([[0.5, 0.0], [0.0, 10.0]])
    >>> out = eq.CenteredClip(tau=1.0, steps=1)(torch.zeros(2), received)
    >>> out.model, out.weights
    (tensor([0.2500, 0.5000]), tensor([0.5000, 0.0500]))
    """

    guarantee: ClassVar[NoTheorem] = NoTheorem("its theorem is about a server")
    isotropic: ClassVar[bool] = True

    tau: float = 1.0
    steps: int = 3
    start: Literal["last", "own"] = "last"
    weighted: bool = False
    cap: float = 2.0

    def __post_init__(self) -> None:
        check_number("tau", self.tau)
        check_count("steps", self.steps, 1)
        check_choice("start", self.start, ("last", "own"))
        check_weighting(self.weighted, self.cap)

    @property
    def needs(self) -> tuple[str, ...]:
        """The number of examples of each client, if messages are weighted by it."""
        return ("samples",) if self.weighted else ()

    def aggregate(
        self,
        own: Tensor,
        inbox: Inbox,
        *,
        samples: Tensor | None = None,
        out: Tensor | None = None,
        state: Any = None,
        **_: Any,
    ) -> Aggregated:
        """Find the weights of the messages, then combine them with the start."""
        start = own if self.start == "own" or state is None else _as_models(state, own)
        # A client whose start is not finite has nothing to clip around, and keeps own.
        usable = kernels.are_finite(start)
        centers = start if usable.all() else start.where(usable[:, None], 0.0)
        reach = self.tau or None  # with tau = 0, no message moves anything
        samples = samples if self.weighted else None
        parts = message_shares(inbox, inbox.present, samples, self.cap)
        weights = torch.zeros_like(parts)
        for around in kernels.centered_products(own, centers, inbox, reach=reach):
            places = (around.group.receivers[:, None], around.group.columns)
            weights[places] = self._clipped(around, parts[places])
        weights = weights.where(usable[:, None], 0.0)
        keeps_own = ((inbox.counts == 0) | ~usable)[:, None]
        model = kernels.combine(start, own_share(weights), inbox, weights, out=out)
        if keeps_own.any() and start is not own:
            model.copy_(own.where(keeps_own, model))
        found = as_diagnostic(weights, own)
        if self.start == "own":
            return Aggregated(model, found, state)
        return Aggregated(model, found, {"v": start.where(keeps_own & usable[:, None], model)})

    def _clipped(self, around: CenteredProducts, parts: Tensor) -> Tensor:
        """(r, c) weights of the messages after all steps, in which ``parts`` of them count."""
        # Message j is start + scales_j * y_j, so that shares of y_j are weights times scales.
        shares = torch.zeros_like(around.scales)
        tau = self.tau / around.unit[:, None]
        for _ in range(self.steps):
            apart = around.relative_distances(shares)
            # min(1, tau / distance) times the scale, where the distance is apart times the scale.
            factors = (tau / apart).where(apart * around.scales > tau, around.scales)
            kept = parts * factors
            kept_of_start = kernels.row_sums(kept / around.scales)[:, None]
            shares = shares * (1 - kept_of_start) + kept
        return shares / around.scales


def _as_models(state: Any, own: Tensor) -> Tensor:
    """The last aggregates; raise unless they are like own."""
    v = state.get("v") if isinstance(state, dict) else None
    if isinstance(v, Tensor) and v.dim() == 1 and own.shape == (1, *v.shape):
        v = v[None]
    if not isinstance(v, Tensor) or (v.shape, v.dtype, v.device) != (
        own.shape,
        own.dtype,
        own.device,
    ):
        raise ValueError(
            f"state must be what CenteredClip returned, a tensor v like own, {describe(own)}, "
            f"found {describe(state if v is None else v)}"
        )
    return v
