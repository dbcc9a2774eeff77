"""Measurements of speed and memory, and the reproduction of the BALANCE paper."""
