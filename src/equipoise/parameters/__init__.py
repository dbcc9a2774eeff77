"""Convert modules to vectors and back, whole or in part; rules work on vectors."""

from equipoise.parameters._entries import entries_of
from equipoise.parameters._patterns import Patterns, trainable
from equipoise.parameters.groups import Groups, groups
from equipoise.parameters.vectors import flatten, stack_models, unflatten, unstack_models

__all__ = [
    "Groups",
    "Patterns",
    "entries_of",
    "flatten",
    "groups",
    "stack_models",
    "trainable",
    "unflatten",
    "unstack_models",
]
