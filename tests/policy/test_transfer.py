"""A resident tensor holds what was loaded, and moves only to grow."""

from __future__ import annotations

import numpy as np
import torch

from mission_gym.policy.transfer import Resident


def test_a_resident_tensor_stays_where_it_is_until_it_must_grow() -> None:
    resident = Resident(torch.device("cpu"))
    strided = np.moveaxis(np.arange(16 * 2 * 3, dtype=np.uint8).reshape(16, 2, 3), 1, -1)
    rows = resident.load(strided)
    place = rows.data_ptr()
    np.testing.assert_array_equal(rows.numpy(), strided)
    assert resident.load(strided[:5]).shape == (5, 3, 2)
    assert resident.load(np.ones((18, 3, 2), np.uint8)).data_ptr() == place
    assert resident.load(np.ones((19, 3, 2), np.uint8)).data_ptr() != place
    assert resident.load(np.ones((4, 3), np.float32)).dtype == torch.float32
