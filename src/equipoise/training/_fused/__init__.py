"""A fused convolution, pooling and ReLU for the networks of `equipoise.models`."""

from equipoise.training._fused._layers import FusedSequential, has_hooks

__all__ = ["FusedSequential", "has_hooks"]
