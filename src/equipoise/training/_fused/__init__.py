"""A fused convolution, pooling and ReLU for the networks of `equipoise.models`."""
