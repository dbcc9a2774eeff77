"""Data: loaders of what the paper trains on, and ways to divide it between clients."""

from equipoise.data.celeba import celeba
from equipoise.data.dataset import Dataset
from equipoise.data.digits import digits
from equipoise.data.har import har
from equipoise.data.idx import fashion_mnist, mnist
from equipoise.data.partitions import by_classes, by_client, by_group, dirichlet, iid
from equipoise.data.synthetic import synthetic_regression

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
