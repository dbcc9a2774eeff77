"""Random streams: independent generators from one seed and a key."""

from __future__ import annotations

import math
import zlib

import numpy as np
import torch
from torch import Tensor

from equipoise._utils.validation import describe


def stream(seed: int, *key: int | str) -> torch.Generator:
    """A CPU generator that depends on the seed and the key only.

    Round t draws from ``stream(seed, "purpose", t)``. No generator is kept between rounds, so a run
    can be resumed from any round.

    >>> from equipoise._utils.rng import stream
    >>> first = torch.rand(3, generator=stream(0, "graph", 7))
    >>> torch.equal(first, torch.rand(3, generator=stream(0, "graph", 7)))
    True
    >>> torch.equal(first, torch.rand(3, generator=stream(0, "graph", 8)))
    False
    """
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise ValueError(f"seed must be an integer >= 0, found {seed!r}")
    # hash() of a string differs between processes; a checksum does not.
    parts = [zlib.crc32(part.encode()) if isinstance(part, str) else part for part in key]
    words = [int(seed), *parts]
    state = np.random.SeedSequence(words).generate_state(1, np.uint64)
    # One bit less: torch reads a seed as a signed number.
    return torch.Generator("cpu").manual_seed(int(state[0] >> np.uint64(1)))


def device_of(
    generator: torch.Generator | None, default: torch.device | str = "cpu"
) -> torch.device:
    """The device of a generator, or the default device without one.

    >>> from equipoise._utils.rng import device_of
    >>> device_of(torch.Generator())
    device(type='cpu')
    """
    if generator is None:
        return torch.device(default)
    if not isinstance(generator, torch.Generator):
        raise ValueError(f"generator must be a torch.Generator, found {describe(generator)}")
    return generator.device


def draw_uniform(
    *shape: int,
    low: float = 0.0,
    high: float = 1.0,
    generator: torch.Generator | None = None,
    device: torch.device | None = None,
) -> Tensor:
    """Uniform float32 numbers in [low, high), in steps of 2^-23 of the range.

    On a CPU this takes a third of the time of `torch.rand`, in which some attacks would otherwise
    spend most of their time. The generator (by default torch's global one) seeds numpy's SFC64,
    whose bits become the mantissa of a number in [1, 2). Rounding may reach ``high``.

    >>> from equipoise._utils.rng import draw_uniform
    >>> draw_uniform(2, 3, generator=torch.Generator().manual_seed(0)).shape
    torch.Size([2, 3])
    """
    if device is not None and device.type != "cpu":
        numbers = torch.rand(*shape, generator=generator, dtype=torch.float32, device=device)
        return numbers.mul_(high - low).add_(low)
    seed = int(torch.randint(2**63 - 1, (), generator=generator, device="cpu"))
    count = math.prod(shape)
    # Each word of 64 bits holds two numbers; one more serves an odd count.
    words = np.random.SFC64(seed).random_raw(count // 2 + 1)
    bits = torch.from_numpy(words.view(np.int32))[:count]
    # Keep 23 random bits of mantissa and set sign and exponent to those of 1.0.
    bits = bits.bitwise_and_(0x007FFFFF).bitwise_or_(0x3F800000)
    numbers = bits.view(torch.float32).view(shape)
    # The bits already are numbers in this range, which `TrimAttack` draws from.
    if (low, high) == (1.0, 2.0):
        return numbers
    numbers.sub_(1)
    if (low, high) == (0.0, 1.0):
        return numbers
    return numbers.mul_(high - low).add_(low)
