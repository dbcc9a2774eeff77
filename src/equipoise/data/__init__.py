"""Loaders of the BALANCE paper's data sets, and partitions of examples between clients."""

from equipoise.data._celeba import celeba
from equipoise.data._digits import digits
from equipoise.data._har import har
from equipoise.data._mnist import fashion_mnist, mnist
from equipoise.data._synthetic import synthetic_regression
from equipoise.data.dataset import Dataset
from equipoise.data.partitions import by_classes, by_client, by_group, dirichlet, iid

__all__ = [
    "Dataset",
    "by_classes",
    "by_client",
    "by_group",
    "celeba",
    "digits",
    "dirichlet",
    "fashion_mnist",
    "har",
    "iid",
    "mnist",
    "synthetic_regression",
]
