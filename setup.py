"""Builds the native kernels where there is a compiler; without one, equipoise works in torch."""

import sys
from glob import glob

from setuptools import Extension, setup

FLAGS = [] if sys.platform == "win32" else ["-O3", "-g0", "-fvisibility=hidden", "-Wall", "-Wextra"]

setup(
    ext_modules=[
        Extension(
            "equipoise._native",
            ["src/equipoise/native/kernels.c"],
            depends=[*glob("src/equipoise/native/*.inc"), *glob("src/equipoise/native/*.h")],
            extra_compile_args=FLAGS,
            optional=True,
        )
    ]
)
