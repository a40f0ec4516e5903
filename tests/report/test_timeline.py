"""Where the time of a run went: sums over rows, and the page of `runs timeline`."""

from __future__ import annotations

import re

import pytest

from mission_gym.report.pages import make_timeline_html
from mission_gym.report.timeline import sum_phases

ROWS = [
    {
        "event": "progress", "phase/wall_s": 10.0, "phase/collect_s": 6.0, "phase/learn_s": 6.0,
        "phase/env_s": 4.0, "phase/wait_s": 0.0, "phase/copy_s": 1.0, "phase/collector_idle_s": 4.0,
        "phase/values_s": 1.0, "phase/update_s": 5.0, "phase/learner_idle_s": 4.0, "phase/record_s": 0.5,
        "phase/evaluate_s": 1.5, "phase/save_s": 0.0, "phase/main_idle_s": 8.0, "phase/overlap": 0.3333,
        "phase/act_s": 1.0,
    },
    {
        "event": "timeline", "time/updates": [1, 2], "time/cores": [0.5],
        "time/spans": [
            ["collector", "collect", 0.0, 4.0], ["learner", "update", 2.0, 6.0],
            ["main", "evaluate", 6.0, 8.0],
        ],
    },
    {
        "event": "end", "time/machine": {},
        "time/verdict": {"bound": "memory", "evidence": "much " * 60, "advice": []},
    },
]  # fmt: skip


def test_roles_add_up_and_the_overlap_is_of_the_whole_run() -> None:
    document = sum_phases(ROWS)
    assert document["overlap"] == pytest.approx(1 - 8.0 / 12.0)
    for phases in document["roles"].values():
        assert sum(phases.values()) == pytest.approx(10.0)


def test_a_bar_is_drawn_for_every_span() -> None:
    page = make_timeline_html({"run": "a"} | sum_phases(ROWS))
    lanes = page.partition('class="lanes"')[2].partition("</svg>")[0]
    bars = re.findall(r'class="p-(\w+)" x="([\d.]+)" y="(\d+)" width="([\d.]+)"', lanes)
    drawn = [(phase, float(x), int(y), float(width)) for phase, x, y, width in bars if phase != "idle"]
    assert drawn == [
        ("collect", 72.0, 0, 564.0), ("update", 354.0, 32, 564.0), ("evaluate", 918.0, 64, 282.0),
    ]  # fmt: skip
    assert "Updates 1 to 2" in page
    assert "much much" in page


@pytest.mark.parametrize("rows", [[], ROWS[:1], ROWS[1:2]])
def test_any_part_of_the_rows_makes_a_page(rows: list[dict[str, object]]) -> None:
    page = make_timeline_html({"run": "a"} | sum_phases(rows))
    assert ("No timeline yet" in page) == (len(rows) == 0 or rows[0]["event"] == "progress")
