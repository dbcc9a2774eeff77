"""Many models of one architecture, run together."""
