"""Base classes of rules: one call for one client and for many, validated inputs, no gradients."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, TypeGuard, final

import torch
from torch import Tensor
from typing_extensions import Unpack

from equipoise import kernels
from equipoise._utils.formatting import vector_hint
from equipoise._utils.validation import as_counts, check_inputs, describe, is_floating
from equipoise.messages import Inbox
from equipoise.topology import Guarantee
from equipoise.types import Aggregated, RoundInputs

SOURCES_IN_SIMULATOR = {
    "total": "its argument total, or run(rounds)",
    "loss_of": "its argument loss_of, a function of the round, "
    "or a trainer that has one, such as LocalSGD",
    "samples": "a trainer that has samples, one number per client, such as LocalSGD",
}
"""Where the round inputs of a simulation come from, for error messages."""

# Weights that sum to 1 in exact arithmetic do so in float64 up to k * 1e-16 for k messages, which
# is below this for 10,000 messages. A remainder that small is rounding.
ROUNDING = 1e-12

# Round inputs that rules may read, and that no rule requires.
OPTIONAL_INPUTS = ("gossip",)


class Rule(ABC):
    """A rule with one exchange a round; subclasses aggregate for all clients of an inbox.

    Subclasses declare their properties in class attributes:

    - ``isotropic``: the rule only uses norms and angles, so that it commutes with rotations.
    - ``coordinatewise``: a coordinate of the aggregate depends on this coordinate of the messages
      only, so that some coordinates can be aggregated at a time.
    - ``contains_own``: the aggregate already contains own, as in gossip averaging. A `Simulator`
      then does not mix it with own again by default: see `equipoise.default_alpha`.
    - ``needs``: the names of the round inputs that the rule reads. A call without one of them is an
      error, unless the rule has a hyper-parameter of that name, or the input is ``gossip``, which
      has a default. If it is None, the rule declares nothing, and a `Simulator` passes all inputs.
    - ``guarantee``: the condition under which a theorem about the rule covers a graph, such as
      ``topology.Trimming()``; `equipoise.Topology.diagnose` checks it. None means that no guarantee
      on graphs is known.
    """

    isotropic: ClassVar[bool] = False
    coordinatewise: ClassVar[bool] = False
    guarantee: ClassVar[Guarantee | None] = None

    @property
    def contains_own(self) -> bool:
        """Whether the aggregate already contains own."""
        return False

    @property
    def needs(self) -> tuple[str, ...] | None:
        """The names of the round inputs that the rule reads, or None."""
        return None

    @final
    @torch.no_grad()
    def __call__(
        self, own: Tensor, received: Tensor | Inbox, **inputs: Unpack[RoundInputs]
    ) -> Aggregated:
        """Aggregate for one client, ``own (d,)``, or for all clients of an inbox, (n, d)."""
        check_inputs(type(self).__name__, inputs)
        models, inbox = as_batch(own, received)
        check_out(inputs, own, inbox.bank)
        self._check_given(inputs)
        if inputs.get("out") is not None:
            # Native kernels write to the memory of out, which torch does not notice.
            torch.autograd.graph.increment_version(inputs["out"])
        # A training loop often calls rules inside of its autocast block.
        with _without_autocast(own.device):
            if own.dim() == 2:
                return self.aggregate(models, inbox, **inputs)
            out = self.aggregate(models, inbox, **_as_batch_inputs(inputs))
        # The batch of one client becomes a single model again.
        weights = None if out.weights is None else out.weights[0]
        return Aggregated(out.model[0], weights, out.state)

    @abstractmethod
    def aggregate(self, own: Tensor, inbox: Inbox, **inputs: Any) -> Aggregated:
        """Aggregate for every client: ``own`` is (n, d), and ``inbox`` has n receivers."""

    def _check_given(self, inputs: Mapping[str, Any]) -> None:
        check_given(self, inputs)


class WeightedRule(Rule):
    """A rule whose aggregate is a weighted sum of messages; own gets the remainder to 1."""

    @final
    def aggregate(self, own: Tensor, inbox: Inbox, **inputs: Any) -> Aggregated:
        """Weigh the messages, then combine them."""
        # Weights stay in float64 until here: thresholds and remainders must not be rounded to the
        # dtype of the models first.
        weights = self.weigh(own, inbox, **inputs)
        model = kernels.combine(own, own_share(weights), inbox, weights, out=inputs.get("out"))
        return Aggregated(model, as_diagnostic(weights, own), inputs.get("state"))

    @abstractmethod
    def weigh(self, own: Tensor, inbox: Inbox, **inputs: Any) -> Tensor:
        """(n, k) float64 weights of the messages, 0 where none is present."""


def uniform(accepted: Tensor) -> Tensor:
    """(n, k) equal weights for the accepted messages of each receiver, float64; 0 elsewhere."""
    weights = accepted.double()
    return weights.div_(weights.sum(1, keepdim=True).clamp_min_(1))


def own_share(weights: Tensor) -> Tensor:
    """(n,) the remainder to 1, and exactly 0 where it is due to rounding.

    A huge or non-finite own must not reach the aggregate through a rounding error.
    """
    return torch.hardshrink(1 - kernels.row_sums(weights), ROUNDING)


def combine_present(
    own: Tensor,
    inbox: Inbox,
    weigh: Callable[[Tensor], Tensor],
    *,
    out: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The weighted sum of all present messages, and its weights (n, k).

    ``weigh`` returns the weights of the messages that it is told to accept (n, k). Own has the
    remainder to 1.
    """
    # The sum of all messages is finite only if all of them are, which saves a pass that looks for
    # NaN and infinity. In float64, however, finite models can have norms that overflow.
    if not inbox.keep_nonfinite and own.dtype != torch.float64:
        weights = weigh(inbox.mask)
        # A message of weight 0 is not read, so nobody would notice that it is not finite.
        if bool((weights.where(inbox.mask, 1.0) > 0).all()):
            share = own_share(weights)
            model = kernels.combine_if_finite(own, share, inbox, weights, out=out)
            if model is not None:
                return model, weights
    weights = weigh(inbox.present)
    return kernels.combine(own, own_share(weights), inbox, weights, out=out), weights


def as_diagnostic(weights: Tensor, own: Tensor) -> Tensor:
    """Weights in the dtype of own, but no narrower than float32."""
    # bfloat16 has two to three digits: shares of many messages would not sum to 1.
    return weights.to(torch.promote_types(own.dtype, torch.float32))


def as_tolerated(rule: Any, given: int | Tensor | None, inbox: Inbox) -> Tensor:
    """(n,) how many malicious neighbors each client expects.

    The value given at the call takes precedence over ``rule.tolerated``.
    """
    value = rule.tolerated if given is None else given
    if value is None:
        raise _missing(rule, ["tolerated"])
    return as_counts("tolerated", value, inbox.n, inbox.slots.device)


def needs_of(rules: Iterable[object]) -> tuple[str, ...] | None:
    """The round inputs that any of the rules reads; None if one rule declares nothing."""
    declared = [getattr(rule, "needs", None) for rule in rules]
    if any(names is None for names in declared):
        return None
    return tuple(dict.fromkeys(name for names in declared for name in names or ()))


def check_given(rule: Any, inputs: Mapping[str, Any]) -> None:
    """Raise a TypeError that names the inputs which the rule needs and the call does not have.

    Inputs with a hyper-parameter of the same name are optional; see `as_tolerated`.
    """
    # An input that is None counts as not given, as in `check_inputs`.
    absent = [name for name in rule.needs or () if inputs.get(name) is None]
    missing = [name for name in absent if name not in OPTIONAL_INPUTS and not hasattr(rule, name)]
    if missing:
        raise _missing(rule, missing)


def _missing(rule: object, names: list[str]) -> TypeError:
    call = ", ".join(f"{name}=..." for name in names)
    sources = [SOURCES_IN_SIMULATOR[name] for name in names if name in SOURCES_IN_SIMULATOR]
    hint = f" (in a Simulator: {'; '.join(sources)})" if sources else ""
    rule_name = type(rule).__name__
    return TypeError(f"{rule_name} needs {' and '.join(names)}: pass {call} when calling it{hint}")


def as_batch(own: Tensor, received: Tensor | Inbox) -> tuple[Tensor, Inbox]:
    """Check own and received against each other; return (n, d) models and an inbox."""
    if not is_floating(own) or own.dim() not in (1, 2):
        expected = "a floating-point tensor of shape (d,) or (n, d)"
        found = f"{describe(own)}{vector_hint(own, 'own')}"
        raise ValueError(f"own must be {expected}, found {found}")
    if isinstance(received, Tensor) and received.device != own.device:
        raise ValueError(
            f"own and received must have the same device, found {own.device} and "
            f"{received.device}; received.to(own) moves it"
        )
    # The ids of an inbox are checked again if they changed: kernels read memory by them.
    inbox = (received if isinstance(received, Inbox) else Inbox.of_one(received)).current()
    if own.dim() == 2 and not isinstance(received, Inbox):
        raise ValueError(
            "own of shape (n, d) needs an Inbox of n receivers, found a tensor; "
            "use Topology.deliver"
        )
    models = own.detach() if own.dim() == 2 else own.detach()[None]
    _check_match(own, models, inbox)
    # One client in its own loop gets an error. Among many clients, a diverged one must not stop
    # the others.
    if own.dim() == 1 and not kernels.all_finite(models):
        raise ValueError(
            "own must be finite, found a NaN, an infinity, or values whose norm overflows"
        )
    return models, inbox


def _check_match(own: Tensor, models: Tensor, inbox: Inbox) -> None:
    """Raise unless own and the messages have one d, dtype and device, and each receiver a model."""
    if own.shape[-1] != inbox.d or inbox.d == 0:
        raise ValueError(
            f"own and received must have the same d > 0, found own d={own.shape[-1]}, "
            f"received d={inbox.d}; models must be of one architecture"
        )
    # The usual mistake is the inbox of a whole graph for one client.
    if len(models) != inbox.n:
        hint = "; inbox.of(i) is the inbox of client i" if own.dim() == 1 else ""
        raise ValueError(
            f"own must have one model per receiver, expected {inbox.n}, found {len(models)}{hint}"
        )
    for name in ("dtype", "device"):
        if getattr(own, name) != getattr(inbox.bank, name):
            mine = getattr(own, name)
            theirs = getattr(inbox.bank, name)
            raise ValueError(
                f"own and received must have the same {name}, found {mine} and {theirs}; "
                "convert one of them with .to"
            )


def check_out(inputs: RoundInputs, own: Tensor, *others: Tensor) -> None:
    """Raise unless ``out``, if given, is like own and does not share memory with any input."""
    if inputs.get("out") is not None:
        given = [x for name, x in inputs.items() if name != "out" and isinstance(x, Tensor)]
        check_target(inputs["out"], own, [own, *others, *given])


def check_target(out: object, own: Tensor, inputs: Iterable[Tensor]) -> None:
    """Raise unless ``out`` is like own and does not share memory with any of the inputs."""
    if not _is_like(out, own):
        expected = f"a tensor like own, {describe(own)} on {own.device}"
        raise ValueError(f"out must be {expected}, found {describe(out)}")
    if not out.is_contiguous() and _overlaps_itself(out):
        found = f"strides {out.stride()} of shape {tuple(out.shape)}"
        raise ValueError(
            f"out must have memory for every element, found an expanded tensor: {found}"
        )
    if out.requires_grad:
        raise ValueError("out must not require gradients, which rules do not compute")
    # Kernels write to out while they still read their inputs, so shared memory would change the
    # messages during the aggregation.
    if any(kernels.may_share_memory(out, x) for x in inputs):
        raise ValueError("out must not share memory with own, a message or a round input")


def _is_like(x: object, own: Tensor) -> TypeGuard[Tensor]:
    """Whether ``x`` is a tensor of the shape and dtype of own, and on its device."""
    return isinstance(x, Tensor) and (
        (x.shape, x.dtype, x.device) == (own.shape, own.dtype, own.device)
    )


def _overlaps_itself(x: Tensor) -> bool:
    """Whether two elements of a vector or matrix may have the same memory."""
    # Sorted by stride, an element must lie beyond all elements reached by smaller strides.
    reach = 0
    for stride, size in sorted(zip(x.stride(), x.shape, strict=True)):
        if size > 1 and stride <= reach:
            return True
        reach += stride * (size - 1)
    return False


def _as_batch_inputs(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The round inputs of one client as those of a batch of one."""
    batch = dict(inputs)
    for name in ("update", "out", "gossip"):
        if isinstance(batch.get(name), Tensor):
            batch[name] = batch[name][None]
    # The one-client call knows no client ids, so its loss_of takes models only.
    loss_of = batch.get("loss_of")
    if loss_of is not None:
        batch["loss_of"] = lambda models, clients: loss_of(models)
    return batch


def _without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Compute in the dtype of the models, even if the caller trains under autocast."""
    if torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()
