"""Named NumPy arrays as safetensors files, which hold numbers and shapes and no code."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from mission_gym.data import Array
from mission_gym.store.files import open_plain

_NAMES = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "uint16": "U16", "int16": "I16", "uint32": "U32",
    "int32": "I32", "uint64": "U64", "int64": "I64", "float16": "F16", "float32": "F32", "float64": "F64",
}  # fmt: skip


def write_arrays(path: Path, arrays: dict[str, Array]) -> str:
    """Write a file without a second copy of all arrays in memory, sync it, and return its checksum."""
    # The widest dtypes come first, so that each array is aligned.
    arrays = dict(sorted(arrays.items(), key=lambda item: -item[1].dtype.itemsize))
    header: dict[str, Any] = {}
    end = 0
    for name, array in arrays.items():
        header[name] = {
            "dtype": _NAMES[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [end, end + array.nbytes],
        }
        end += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    digest = hashlib.sha256()
    with open(open_plain(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb") as file:
        for part in (len(text).to_bytes(8, "little"), text, *map(_raw, arrays.values())):
            digest.update(part)
            file.write(part)
        file.flush()
        os.fsync(file.fileno())
    return digest.hexdigest()


def _raw(array: Array) -> memoryview | bytes:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def parse_arrays(data: bytes) -> dict[str, Array]:
    """Parse the content of a file; ValueError if it is not safetensors."""
    from safetensors.numpy import load

    with _value_errors():
        return load(data)


def read_arrays(path: Path) -> dict[str, Array]:
    """Read a file, which may be large; ValueError if it is not safetensors."""
    from safetensors.numpy import load_file

    with _value_errors():
        return load_file(path)


@contextmanager
def _value_errors() -> Iterator[None]:
    from safetensors import SafetensorError

    try:
        yield
    except (SafetensorError, KeyError) as error:  # KeyError: a dtype that NumPy lacks
        raise ValueError(str(error)) from error
