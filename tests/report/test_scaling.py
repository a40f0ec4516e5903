"""The scaling guide with numbers that can be checked by hand."""

from __future__ import annotations

from measurements import SCALING
from mission_gym.report.scaling import make_guide, make_markdown


def test_rows_tell_speed_memory_and_what_an_environment_adds():
    scaling, times = make_guide(SCALING).tables
    assert scaling.rows == [
        ["1 (serial)", "50", "1.0 x", "0.40 GB", "n/a", "tried"],
        ["4 (workers, 2 workers)", "100", "2.0 x", "0.43 GB", "10.0 MB", "tried, knee"],
        ["8 (workers, 2 workers)", "102", "2.0 x", "0.47 GB", "10.0 MB", ""],
        ["16 (workers, 2 workers)", "102", "2.0 x", "50.00 GB", "6191.2 MB", "does not fit in memory"],
    ]
    assert times.head == ["steps", "1 envs", "4 envs", "8 envs"]  # the knee, and one behind it
    assert times.rows[0] == ["10k", "3:20", "1:40", "1:38"]
    assert times.rows[-1] == ["5M", "27:46:40", "13:53:20", "13:37:00"]
    assert [row[0] for row in times.rows] == ["10k", "100k", "300k", "500k", "900k", "5M"]


def test_markdown_has_both_tables_and_the_machine():
    text = make_markdown("my_env:Walk|2", SCALING | {"machine": None})
    assert text.startswith("# Scaling guide: my_env:Walk|2\n\nMeasured in 30 s.")
    text = make_markdown("my_env:Walk", SCALING)
    assert "Machine: Abacus 3000, 2 usable cores, 8.0 GB. Measured in 30 s." in text
    assert "| environments | steps/s | gain | memory | per env |  |\n| --- | ---: | ---: |" in text
    assert "An environment takes 2.0 MB, a worker process 30 MB." in text
    assert "| 900k | 5:00:00 | 2:30:00 | 2:27:04 |" in text
