"""`--fuzz-minutes`, and the runs that are damaged."""

import pytest

from fuzz_runs import Home


def pytest_addoption(parser):
    text = "how long to compute on damages of each kind of file; without it a fixed number of times"
    parser.addoption("--fuzz-minutes", type=float, metavar="MINUTES", help=text)


@pytest.fixture(scope="session")
def home(tmp_path_factory):
    return Home(tmp_path_factory.mktemp("fuzz"))
