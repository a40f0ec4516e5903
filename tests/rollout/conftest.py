"""Workers that hang are not waited for as long as a user's would be."""

import pytest

from mission_gym.vector import pool
from waits import patience


@pytest.fixture(autouse=True)
def close_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "_CLOSE_S", patience(0.5))
