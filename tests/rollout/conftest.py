"""Workers that hang are not waited for as long as a user's would be."""

import pytest

from mission_gym.vector import pool
from timeouts import scale_timeout


@pytest.fixture(autouse=True)
def close_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "_CLOSE_S", scale_timeout(0.5))
