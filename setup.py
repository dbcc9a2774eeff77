"""Builds the native kernels where there is a compiler; without one, equipoise works in torch."""

import sys

from setuptools import Extension, setup

FLAGS = [] if sys.platform == "win32" else ["-O3", "-g0", "-fvisibility=hidden", "-Wall", "-Wextra"]

setup(
    ext_modules=[
        Extension(
            "equipoise._native",
            ["src/equipoise/native/kernels.c"],
            depends=[
                f"src/equipoise/native/{name}"
                for name in ("kernels.inc", "convolution.inc", "winograd.inc", "plain.inc", "x86.inc", "undefine.inc", "networks.h")
            ],
            extra_compile_args=FLAGS,
            optional=True,
        )
    ]
)
