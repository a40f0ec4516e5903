"""Several sinks at once: each fails, comes back and counts what it lost by itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import mission_gym.store.sinks
from mission_gym.data import Episode
from mission_gym.errors import DiskError
from mission_gym.store.rundir import RunDir
from mission_gym.store.sinks import SINKS, Event, Sink, SinkContext, Stream, load_sink


class Memory:
    """A sink that refuses what it is told to."""

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.refused: set[str] = set()
        self.error: Exception = DiskError("can't write it: full")

    def write(self, event: Event) -> None:
        if event["event"] in self.refused:
            raise self.error
        self.seen.append(event["step"])

    def position(self) -> int:
        return len(self.seen)

    def close(self) -> None:
        self.write({"event": "close", "step": -1})


@pytest.fixture
def sinks(monkeypatch: pytest.MonkeyPatch) -> dict[str, Memory]:
    made = {name: Memory() for name in ("first", "second", "tracker")}
    records = {name: Sink(lambda place, position, name=name: made[name], ()) for name in made}
    records["tracker"] = Sink(records["tracker"].open, (), errors=(Exception,), may_lose_rows=True)
    monkeypatch.setattr(mission_gym.store.sinks, "load_sink", records.__getitem__)
    return made


def open_stream(folder: Path, **positions: int) -> Stream:
    place = SinkContext(RunDir.create(folder, "run"), "CartPole-v1", 0.0)
    return Stream(["first", "second", "tracker"], place, positions)


def write(opened: Stream, step: int, event: str = "progress") -> list[str]:
    opened.write({"event": event, "step": step})
    return opened.take_news()


def test_each_sink_tells_its_own_failure_and_its_own_losses(sinks: dict[str, Memory], tmp_path: Path) -> None:
    opened = open_stream(tmp_path)
    sinks["first"].refused = {"progress"}
    assert write(opened, 1) == [
        "can't write it: full; training continues, and first loses rows until it can be written"
    ]
    assert write(opened, 2) == []
    sinks["second"].refused = {"progress"}
    (told,) = write(opened, 3)
    assert "second loses rows" in told
    assert opened.list_failing() == ["first lacks 3 rows", "second lacks 1 row"]
    sinks["first"].refused = set()
    assert write(opened, 4) == ["first is written again; it lacks 3 rows"]
    sinks["second"].refused = set()
    assert write(opened, 5) == ["second is written again; it lacks 2 rows"]
    assert opened.list_failing() == []
    assert opened.num_lost == {"first": 3, "second": 2}
    sinks["first"].refused = {"progress"}
    (told,) = write(opened, 6)
    assert "first loses rows" in told
    sinks["first"].refused = set()
    assert write(opened, 7) == ["first is written again; it lacks 1 row"]  # of this failure
    assert sinks["first"].seen == [4, 5, 7]
    assert opened.positions() == {"first": 3, "second": 5, "tracker": 7}


def test_short_rows_that_still_fit_are_no_recovery(sinks: dict[str, Memory], tmp_path: Path) -> None:
    opened = open_stream(tmp_path)
    sinks["first"].refused = {"progress"}
    assert len(write(opened, 1)) == 1
    assert write(opened, 1, "warning") == []
    assert write(opened, 2) == []
    assert opened.num_lost == {"first": 2}


def test_a_sink_that_may_lose_rows_is_closed_by_its_failure(sinks: dict[str, Memory], tmp_path: Path) -> None:
    opened = open_stream(tmp_path)
    sinks["tracker"].refused, sinks["tracker"].error = {"progress"}, RuntimeError("no network")
    assert write(opened, 1) == ["no network; training continues without tracker"]
    sinks["tracker"].refused = set()
    assert write(opened, 2) == []
    assert sinks["tracker"].seen == []
    assert sinks["first"].seen == [1, 2]
    assert opened.positions() == {"first": 2, "second": 2}


def test_an_opening_that_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(place: SinkContext, position: int | None) -> Memory:
        raise DiskError("can't write it: full")

    monkeypatch.setattr(
        mission_gym.store.sinks, "load_sink", lambda name: Sink(refuse, (), may_lose_rows=name == "tracker")
    )
    place = SinkContext(RunDir.create(tmp_path, "run"), "CartPole-v1", 0.0)
    opened = Stream(["tracker"], place, {})
    assert opened.take_news() == ["can't write it: full; the run continues without tracker"]
    with pytest.raises(DiskError, match="full"):
        Stream(["first"], place, {})


def test_what_can_not_be_closed_is_told(sinks: dict[str, Memory], tmp_path: Path) -> None:
    opened = open_stream(tmp_path)
    sinks["second"].refused = {"close"}
    opened.close()
    assert opened.take_news() == ["the end of second is missing: can't write it: full"]


def test_files_go_on_at_the_positions_of_a_checkpoint(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path, "run")
    place = SinkContext(run, "CartPole-v1", 0.0)
    names = [name for name, row in SINKS.items() if not row.switch]

    def fill(opened: Stream, step: int) -> None:
        episode = Episode(
            env_id=0, number=step, seed=step, ret=1.0, length=step, outcome=None, terminated=True, metrics={}
        )
        opened.write({"event": "episode", "episode": episode, "time/elapsed_s": 1.0})
        opened.write({"event": "progress", "step": step, "train/loss": 0.5, "time/alarms": ["slow"]})

    opened = Stream(names, place, {})
    fill(opened, 1)
    positions = opened.positions()
    # The keys of every checkpoint there is; what a new sink adds, old ones do not know.
    assert set(positions) & {"metrics", "progress", "monitor", "log"} == {"metrics", "progress", "monitor"}
    kept = {path: path.read_bytes() for path in (run.metrics_jsonl, run.progress_csv, run.monitor_csv)}
    fill(opened, 2)
    opened.close()
    Stream(names, place._replace(step=1), positions).close()
    assert {path: path.read_bytes() for path in kept} == kept
    assert "episode" not in run.metrics_jsonl.read_text()
    assert run.log_txt.read_text().count("warning step=") == 2  # what people read is never cut


def test_every_line_of_the_table_has_a_record() -> None:
    assert all(isinstance(load_sink(name), Sink) for name in SINKS)
