"""Parts of a metrics stream: all of a short one, a sample of a long one, what was added, the last event."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dashboard_runs import make_row
from mission_gym.report.dashboard import rows as rows_module
from mission_gym.report.dashboard.rows import find_last, make_columns, read_added, read_first, read_part
from mission_gym.store import tables as tables_module
from mission_gym.store.tables import MetricsLog, find_end


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """20,000 rows with other events in between."""
    path = tmp_path_factory.mktemp("rows") / "metrics.jsonl"
    log = MetricsLog(path)
    log.append({"event": "plan", "main_outcome": "won"})
    for step in range(1, 20_001):
        log.append(make_row(step))
        if step % 1000 == 0:
            log.append({"event": "timeline", "step": step, "time/spans": [["main", "save", 0, step]] * 50})
    log.close()
    return path


def steps(part) -> list[int]:
    return [row["step"] for row in part.rows]


def test_a_short_stream_is_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    assert read_part(path) == ([], 0, False)
    log = MetricsLog(path)
    log.append({"event": "plan"})
    for step in (1, 2, 3):
        log.append(make_row(step))
    part = read_part(path)
    assert steps(part) == [1, 2, 3]
    assert not part.is_sample
    assert part.end == path.stat().st_size


def test_a_long_stream_is_sampled_evenly_with_both_ends(long: Path) -> None:
    part = read_part(long, num_rows=100)
    found = steps(part)
    assert part.is_sample
    assert 90 <= len(found) <= 101
    assert found[0] == 1
    assert found[-1] == 20_000
    assert found == sorted(set(found))
    assert max(b - a for a, b in pairwise(found)) < 600


@settings(deadline=None, max_examples=30)
@given(low=st.integers(0, 21_000), size=st.integers(0, 3000))
def test_every_row_of_a_range_is_there(long: Path, low: int, size: int) -> None:
    part = read_part(long, low, low + size)
    assert steps(part) == list(range(max(1, low), min(20_000, low + size) + 1))


def test_what_was_added_is_read_once_and_a_cut_is_told(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    assert read_added(path, 0) == ([], 0, False)
    log = MetricsLog(path)
    log.append(make_row(1))
    first = read_added(path, 0)
    assert first is not None
    with path.open("ab") as file:
        file.write(b'{"event": "progress", "step": 2')  # a row that is being written
    assert read_added(path, first.end) == ([], first.end, False)
    log.close()
    log = MetricsLog(path)
    log.append(make_row(2))
    second = read_added(path, first.end)
    assert second is not None
    assert steps(second) == [2]
    MetricsLog(path, first.end).close()  # as a resume cuts
    assert read_added(path, second.end) is None
    assert read_added(path, first.end - 1) is None  # not the beginning of a row


def test_the_last_of_a_kind_and_the_first_of_all(long: Path, tmp_path: Path) -> None:
    timeline = find_last(long, "timeline")
    assert timeline is not None
    assert timeline["step"] == 20_000
    assert find_last(long, "end") is None
    assert find_last(long, "plan") == read_first(long) == {"event": "plan", "main_outcome": "won"}
    assert find_last(tmp_path / "none", "end") is None
    (tmp_path / "empty").write_text("")
    assert find_last(tmp_path / "empty", "end") is None
    assert read_first(tmp_path / "empty") == {}


def test_the_last_of_a_kind_is_found_across_blocks_and_in_a_file_that_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path)
    for step in (1, 2, 3):
        log.append({"event": "timeline", "step": step})
        log.append(make_row(step))
    size = path.stat().st_size
    for block in range(1, 70):
        monkeypatch.setattr(tables_module, "_CHUNK_BYTES", block)
        assert find_last(path, "timeline") == {"event": "timeline", "step": 3}

    def cut(descriptor: int) -> int:
        end = find_end(descriptor)
        os.truncate(path, 1)  # as a resume does, in the middle of the search
        return end

    monkeypatch.setattr(rows_module, "find_end", cut)
    assert find_last(path, "timeline") is None
    assert size > 1


def test_what_is_no_file_has_no_rows(tmp_path: Path) -> None:
    folder, pipe = tmp_path / "folder", tmp_path / "pipe"
    folder.mkdir()
    os.mkfifo(pipe)
    for path in (folder, pipe):
        assert read_part(path) == ([], 0, False)
        assert read_added(path, 0) == ([], 0, False)
        assert read_added(path, 7) is None
        assert find_last(path, "end") is None
        assert read_first(path) == {}


def test_a_range_the_wrong_way_round_is_empty_and_rows_may_lack_a_step(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(
        '{"event": "progress"}\n' + "".join(f'{{"event": "progress", "step": {n}}}\n' for n in (5, 9))
    )
    assert read_part(path, 9, 0).rows == []
    assert read_part(path, 6, 9).rows == [{"event": "progress", "step": 9}]


def test_damaged_rows_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    good = '{"event": "progress", "step": 3}\n'
    path.write_bytes(
        b'{"event": "progress", "step": "x"}\n{"event": "progress", \xff\n[1]\n\n' + good.encode()
    )
    assert steps(read_part(path)) == [3]


def test_columns_have_a_place_for_every_row() -> None:
    columns = make_columns([{"a": 1, "event": "x"}, {"b": 2.5, "c": True}, {"a": None, "b": 3}])
    assert columns == {"a": [1, None, None], "b": [None, 2.5, 3]}
