"""Builds the native kernels where there is a compiler; without one, equipoise works in torch."""

import sys
from glob import glob

from setuptools import Extension, setup

FLAGS = [] if sys.platform == "win32" else ["-O3", "-g0", "-fvisibility=hidden", "-Wall", "-Wextra"]

setup(
    ext_modules=[
        Extension(
            "equipoise.kernels.native._kernels",
            ["src/equipoise/kernels/native/csrc/kernels.c"],
            depends=[*glob("src/equipoise/kernels/native/csrc/*.inc"), *glob("src/equipoise/kernels/native/csrc/*.h")],
            extra_compile_args=FLAGS,
            optional=True,
        )
    ]
)
