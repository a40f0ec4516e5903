"""Real runs for the command line: a parent and its branch, made once per process."""

import pytest

from mission_gym.cli.main import main

ENV_ID = "toys:Identity"
SMALL = ["--n-envs", "4", "--n-steps", "16", "--no-tensorboard"]


@pytest.fixture(scope="session")
def family(tmp_path_factory):
    """A folder with the run `parent` of 192 steps and the run `child` that branched from it."""
    runs_dir = tmp_path_factory.mktemp("family") / "runs"
    where = ["--runs-dir", str(runs_dir)]
    assert (
        main(
            [
                "train",
                ENV_ID,
                *SMALL,
                *where,
                "--timesteps",
                "192",
                "--eval-freq",
                "64",
                "--run-name",
                "parent",
            ]
        )
        == 0
    )
    assert (
        main(["branch", "parent@128", *where, "--timesteps", "256", "--gamma", "0.9", "--run-name", "child"])
        == 0
    )
    return runs_dir
