"""What a courier makes of a command line whose runs folder is elsewhere."""

from pathlib import Path

import pytest

from mission_gym.ray.job_proxy import Errand


@pytest.mark.parametrize(
    ("words", "run", "moved"),
    [
        (
            ["train", "CartPole-v1", "--runs-dir=/home/runs", "--run-name=g-a"],
            None,
            ["train", "CartPole-v1", "--runs-dir=/there", "--run-name=g-a"],
        ),
        (
            ["resume", "/home/runs/g-a-1", "--trust"],
            "/home/runs/g-a-1",
            ["resume", "/there/g-a-1", "--trust"],
        ),
        (
            ["branch", "/home/runs/g-a-1@best", "--runs-dir=/home/runs", "--via=/home/runs/x.yaml"],
            "/home/runs/g-a-1",
            ["branch", "/there/g-a-1@best", "--runs-dir=/there", "--via=/home/runs/x.yaml"],
        ),
    ],
)
def test_runs_are_named_where_they_are(words: list[str], run: str | None, moved: list[str]) -> None:
    errand = Errand("head:6379", "node", 0, words)
    assert errand.run == (None if run is None else Path(run))
    assert errand.runs_dir == Path("/home/runs")
    assert errand.move("/there") == moved
