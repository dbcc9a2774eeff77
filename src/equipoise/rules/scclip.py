"""Self-centered clipping: messages that are too far from own are moved towards it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from equipoise import kernels
from equipoise._utils.validation import check_choice, check_flag, check_number, is_number
from equipoise.messages import Inbox
from equipoise.rules._gossip import gossip_weights
from equipoise.rules._sample_weights import check_weighting, message_shares
from equipoise.rules.base import Rule, as_diagnostic, own_share
from equipoise.topology import NoTheorem
from equipoise.types import Aggregated


@dataclass(frozen=True)
class SCClip(Rule):
    r"""The mean of the received models, each clipped to a ball around own.

    .. math:: \mathrm{AGG}_i = \frac{1}{|N_i|} \sum_{j \in N_i} z_j, \qquad
              z_j = w_i + \min\Bigl(1, \frac{\tau}{\|w_j - w_i\|}\Bigr) (w_j - w_i)

    He et al., *Byzantine-Robust Decentralized Learning via ClippedGossip*, 2022. Section 2.3 of the
    BALANCE paper describes a different clipping, :math:`z_j = \min(1, \|w_i\| / \|w_j\|) w_j`. It
    collapses under Gaussian noise, and the results in that paper do not; it is ``mode="norm"``.

    Args:
        tau: the radius, or ``"median"`` or ``"second_largest"`` of each client's distances to its
            messages, which adapt to the scale. The code of He et al. uses the second largest. For a
            single message, both are its distance.
        mode: ``"difference"`` clips :math:`w_j - w_i`, ``"norm"`` clips :math:`w_j` to the norm of
            own.
        contains_own: give own a share as well, as He et al. do:
            :math:`\mathrm{AGG}_i = W_{ii} w_i + \sum_j W_{ij} z_j`, weighted by the round input
            ``gossip``, or equally without it. Mix the aggregate with ``alpha=0``. `ClippedGossip`
            also adapts the radius. Not with ``weighted``.
        weighted: weigh the clipped messages by their senders' numbers of training examples, which
            are passed at the call as ``samples``, a tensor indexed by client id.
        cap: with ``weighted``, no message has more than this multiple of an equal weight. A sender
            may claim any number of examples; beyond the cap, a claim gains nothing. No message
            moves the aggregate by more than ``cap * tau`` divided by the number of messages.

    With ``mode="norm"``, ``weights`` are shares of the clipped messages.

    >>> received = torch.tensor([[0.5, 0.0], [0.0, 10.0]])
    >>> out = eq.SCClip(tau=1.0)(torch.zeros(2), received)
    >>> out.model, out.weights
    (tensor([0.2500, 0.5000]), tensor([0.5000, 0.0500]))
    """

    guarantee: ClassVar[NoTheorem] = NoTheorem(
        "that of its paper is about the adaptive radius of ClippedGossip"
    )
    isotropic: ClassVar[bool] = True

    tau: float | Literal["median", "second_largest"] = 1.0
    mode: Literal["difference", "norm"] = "difference"
    contains_own: bool = False
    weighted: bool = False
    cap: float = 2.0

    def __post_init__(self) -> None:
        if is_number(self.tau):
            check_number("tau", self.tau)
        elif not isinstance(self.tau, str) or self.tau not in ("median", "second_largest"):
            raise ValueError(
                f"tau must be a number >= 0, 'median' or 'second_largest', found {self.tau!r}"
            )
        check_choice("mode", self.mode, ("difference", "norm"))
        check_flag("contains_own", self.contains_own)
        check_weighting(self.weighted, self.cap)
        if self.contains_own and self.weighted:
            raise ValueError(
                "weighted must be False with contains_own=True, which weighs messages by gossip"
            )

    @property
    def needs(self) -> tuple[str, ...]:
        """The weights of the edges or the numbers of examples, if messages are weighted by them."""
        if self.contains_own:
            return ("gossip",)
        return ("samples",) if self.weighted else ()

    def aggregate(
        self,
        own: Tensor,
        inbox: Inbox,
        *,
        gossip: Tensor | None = None,
        samples: Tensor | None = None,
        out: Tensor | None = None,
        state: Any = None,
        **_: Any,
    ) -> Aggregated:
        """Clip, then average."""
        if self.mode == "norm":
            norms = kernels.norms_of(own, inbox)
            shares = self._shares(norms, inbox, gossip, samples)
            lengths = inbox.lengths(inbox.present)
            weights = shares * kernels.clip_factors(norms[:, None], lengths)
        else:
            distances, norms = kernels.distances(own, inbox)
            # The distance between two finite models may overflow float64. It still is a distance,
            # and its message must be clipped, not rejected.
            distances.clamp_max_(torch.finfo(torch.float64).max)
            shares = self._shares(norms, inbox, gossip, samples)
            # z_j = (1 - f_j) w_i + f_j w_j with f_j = min(1, tau / distance), so that the remainder
            # of the shares is the weight of own.
            shares *= kernels.clip_factors(self._radius(distances, inbox), distances)
            weights = shares
        model = kernels.combine(own, own_share(shares), inbox, weights, out=out)
        return Aggregated(model, as_diagnostic(shares, own), state)

    def _shares(
        self, norms: Tensor, inbox: Inbox, gossip: Tensor | None, samples: Tensor | None
    ) -> Tensor:
        """(n, k) the weights of the messages before they are clipped."""
        # A non-finite own has no ball around it. Its client keeps it, since all shares are 0.
        accepted = inbox.present & norms.isfinite()[:, None]
        if self.contains_own:
            return gossip_weights(gossip, inbox, accepted)
        return message_shares(inbox, accepted, samples if self.weighted else None, self.cap)

    def _radius(self, distances: Tensor, inbox: Inbox) -> Tensor:
        """(n, 1) the clipping radius of each client."""
        if not isinstance(self.tau, str):
            return distances.new_full((inbox.n, 1), float(self.tau))
        last = inbox.counts - 1  # the distances of absent messages come after it
        if self.tau == "second_largest":
            return kernels.value_at_rank(distances, last - 1)
        low = kernels.value_at_rank(distances, last // 2)
        high = kernels.value_at_rank(distances, (last + 1) // 2)
        return low / 2 + high / 2  # their sum may overflow
