"""TensorBoard's own reader over our event files: resumed runs, and disks that refuse."""

from __future__ import annotations

from pathlib import Path

import pytest

from mission_gym.errors import DiskError
from mission_gym.store.rundir import RunDir
from mission_gym.store.sinks import SinkContext
from mission_gym.store.sinks.tensorboard import SINK, TensorBoard

accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
resource = pytest.importorskip("resource")


@pytest.fixture
def place(tmp_path: Path) -> SinkContext:
    return SinkContext(RunDir.create(tmp_path, "run"), "CartPole-v1", 0.0)


def write(writer: TensorBoard, *steps: int) -> None:
    for step in steps:
        row = {"event": "progress", "step": step, "train/loss": step / 2, "phase/wall_s": 1.0}
        writer.write(row | {"time/alarms": ["slow"], "train/std": float("nan")})


def read(place: SinkContext) -> tuple[set[str], list[tuple[int, float]]]:
    events = accumulator.EventAccumulator(str(place.run.tensorboard))
    events.Reload()
    return set(events.Tags()["scalars"]), [(each.step, each.value) for each in events.Scalars("train/loss")]


def test_rows_and_evaluations_are_scalars(place: SinkContext) -> None:
    writer = TensorBoard(place)
    writer.write({"event": "plan"})
    assert not place.run.tensorboard.exists()  # nothing to show yet
    write(writer, 1, 2)
    outcomes = {"won": {"rate": 0.5}}
    writer.write(
        {"event": "eval", "step": 2, "return_mean": 1.0, "length_mean": 9.0, "outcomes": outcomes, "score": 1}
    )
    writer.close()
    tags, losses = read(place)
    assert tags == {
        "train/loss", "phase/wall_s", "eval/mean_reward", "eval/mean_ep_length", "eval/outcome_won",
    }  # fmt: skip
    assert losses == [(1, 0.5), (2, 1.0)]


def test_a_resumed_run_replaces_what_came_after_the_checkpoint(place: SinkContext) -> None:
    for steps, at in (((1, 2, 3, 4), place), ((3, 4, 5), place._replace(step=2))):
        writer = SINK.open(at, None)
        assert isinstance(writer, TensorBoard)
        write(writer, *steps)
        assert writer.position() is None
        writer.close()
    assert [step for step, _ in read(place)[1]] == [1, 2, 3, 4, 5]


def test_a_refused_row_costs_itself_alone(place: SinkContext) -> None:
    writer = TensorBoard(place)
    write(writer, 1)
    (file,) = place.run.tensorboard.iterdir()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (file.stat().st_size + 7, hard))
    try:
        for step in range(2, 40):  # more than any queue would take
            with pytest.raises(DiskError, match=r"can't write .*tfevents.*: File too large"):
                writer.write({"event": "progress", "step": step} | {f"a{n}/b": 1.0 for n in range(20)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    write(writer, 40)
    writer.close()
    assert [step for step, _ in read(place)[1]] == [1, 40]
    assert list(place.run.tensorboard.iterdir()) == [file]


def test_a_disk_that_is_full_from_the_start_is_used_when_it_can_be(place: SinkContext) -> None:
    writer = TensorBoard(place)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))
    try:
        with pytest.raises(DiskError, match="File too large"):
            write(writer, 1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    write(writer, 2)
    writer.close()
    assert [step for step, _ in read(place)[1]] == [2]
