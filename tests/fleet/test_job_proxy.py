"""The command of a job whose runs folder is on another machine."""

from pathlib import Path

import pytest

from mission_gym.ray.job_proxy import RemoteJob


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
def test_a_command_is_moved_to_another_runs_folder(
    words: list[str], run: str | None, moved: list[str]
) -> None:
    job = RemoteJob("head:6379", "node", 0, words)
    assert job.run == (None if run is None else Path(run))
    assert job.runs_dir == Path("/home/runs")
    assert job.move("/there") == moved
