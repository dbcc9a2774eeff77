"""A fused convolution, pooling and ReLU for the networks of `equipoise.models`."""

from equipoise.training._fused._layers import FusedSequential, can_fuse_layers, has_hooks

__all__ = ["FusedSequential", "can_fuse_layers", "has_hooks"]
