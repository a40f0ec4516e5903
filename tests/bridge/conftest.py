"""Every test sees its own processes alone."""

import pytest

from games import forget_processes


@pytest.fixture(autouse=True)
def _own_processes() -> None:
    forget_processes()
