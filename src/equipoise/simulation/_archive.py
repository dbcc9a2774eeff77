"""Archives of one JSON document and of arrays, as data without code.

An archive is a zip file that ``numpy.load`` reads as well. Its arrays have checksums, which reveal
damage. Reading an archive takes no more memory than the file, also if its headers are forged.
"""

from __future__ import annotations

import io
import json
import math
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from equipoise._utils.atomic_write import atomic_write

ABOUT = "about.json"  # the JSON document, which also names all arrays with their dtypes


def write_archive(path: str | Path, about: dict[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Write an archive. Atomic: an interrupted write keeps the previous file."""
    dtypes = {name: dtype_name(tensor.dtype) for name, tensor in tensors.items()}
    with atomic_write(path, "checkpoint") as file, zipfile.ZipFile(file, "w") as archive:
        archive.writestr(ABOUT, json.dumps(about | {"dtypes": dtypes}))
        for name, tensor in tensors.items():
            # zipfile must know beforehand that a member may exceed 2 GiB.
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, as_array(tensor), allow_pickle=False)


def open_archive(file: io.BufferedReader) -> zipfile.ZipFile:
    """An archive whose members are plain; anything else raises, with many types of exceptions."""
    archive = zipfile.ZipFile(file)
    members = archive.infolist()
    # Compressed or overlapping members could make a small file fill the memory.
    if any(member.compress_type != zipfile.ZIP_STORED for member in members):
        raise ValueError("compressed members")
    if sum(member.file_size for member in members) > os.fstat(file.fileno()).st_size:
        raise ValueError("members that are larger than the file")
    return archive


def read_arrays(
    archive: zipfile.ZipFile, dtypes: Mapping[str, str], device: torch.device
) -> dict[str, Tensor]:
    """The arrays of these names and dtypes, if the archive holds them and nothing else."""
    members = [ABOUT, *(f"{name}.npy" for name in dtypes)]
    if sorted(archive.namelist()) != sorted(members):
        raise ValueError(f"members {sorted(archive.namelist())} instead of {sorted(members)}")
    return {name: _read_member(archive, name, dtype, device) for name, dtype in dtypes.items()}


def _read_member(archive: zipfile.ZipFile, name: str, dtype: str, device: torch.device) -> Tensor:
    # zipfile compares the checksum only after the last byte, so all of the member is read.
    data = io.BytesIO(archive.read(f"{name}.npy"))
    _check_header(data, name)
    tensor = torch.from_numpy(np.lib.format.read_array(data, allow_pickle=False))
    tensor = tensor.view(torch.bfloat16) if dtype == "bfloat16" else tensor
    if dtype_name(tensor.dtype) != dtype:
        raise ValueError(f"{name} of dtype {dtype_name(tensor.dtype)} instead of {dtype}")
    # A copy in torch's memory: the last digits of a sum may depend on how its terms are aligned.
    return tensor.to(device, copy=True)


def _check_header(data: io.BytesIO, name: str) -> None:
    """Raise unless an array is as large as its header says: numpy allocates that much first."""
    np.lib.format.read_magic(data)
    # Version 1.0 of the header, which numpy writes for arrays without fields.
    shape, _, kind = np.lib.format.read_array_header_1_0(data)
    size = len(data.getbuffer()) - data.tell()
    if math.prod(shape) * kind.itemsize != size:
        raise ValueError(f"{name} of shape {shape} in {size} bytes")
    data.seek(0)


def dtype_name(dtype: torch.dtype) -> str:
    """The name of a dtype, such as ``float32``."""
    return str(dtype).removeprefix("torch.")


def as_array(tensor: Tensor) -> Any:
    """The same bits in numpy, which has no bfloat16."""
    tensor = tensor.detach().cpu().contiguous()
    return (tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor).numpy()
