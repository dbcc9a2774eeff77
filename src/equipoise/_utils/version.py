"""The version, in a module that all parts of the package may import."""

__version__ = "0.1.0"
