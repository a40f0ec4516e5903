"""Arrays as safetensors: the library reads what is written here."""

import hashlib

import numpy as np
import pytest

from mission_gym.store.checkpoints import parse_arrays, write_arrays


def test_every_kind_of_number_comes_back(tmp_path):
    kinds = ("bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64")
    kinds += ("float16", "float32", "float64")
    arrays = {kind: np.arange(3).astype(kind) for kind in kinds}
    arrays |= {"turned": np.arange(6.0).reshape(2, 3).T, "none": np.zeros((0, 2)), "one": np.float32(2.5)}
    digest = write_arrays(tmp_path / "file", arrays)
    data = (tmp_path / "file").read_bytes()
    assert digest == hashlib.sha256(data).hexdigest()
    found = parse_arrays(data)
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype
        assert found[name].shape == array.shape
        assert (found[name] == array).all()


def test_other_content_is_a_value_error():
    with pytest.raises(ValueError, match="header"):
        parse_arrays(b"no arrays")
