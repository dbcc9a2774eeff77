"""Build the C libraries if there is a compiler; without one, equipoise computes in torch."""

import sys
from glob import glob

from setuptools import Extension, setup

KERNELS = "src/equipoise/kernels/native/csrc"
FUSED = "src/equipoise/training/_fused/csrc"
FLAGS = [] if sys.platform == "win32" else ["-O3", "-g0", "-fvisibility=hidden", "-Wall", "-Wextra"]


def library(name: str, source: str) -> Extension:
    """An extension that may fail to build. Templates are included from headers of KERNELS."""
    return Extension(
        name,
        [source],
        include_dirs=[KERNELS, FUSED],
        depends=[*glob(f"{KERNELS}/*.h"), *glob(f"{FUSED}/*.h")],
        extra_compile_args=FLAGS,
        optional=True,
    )


setup(
    ext_modules=[
        library("equipoise.kernels.native._kernels", f"{KERNELS}/kernels.c"),
        library("equipoise.training._fused._convolution_kernels", f"{FUSED}/convolution.c"),
    ]
)
