"""The timeline's picture: bars where the spans are, and any document can be drawn."""

from __future__ import annotations

import pytest

from mission_gym.report.timeline import draw_timeline
from mission_gym.report.timing import sum_up

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
BLUE, ORANGE, GREEN, WHITE = (47, 127, 193), (217, 105, 58), (79, 154, 74), (255, 255, 255)


def test_roles_add_up_and_the_overlap_is_of_the_whole_run() -> None:
    document = sum_up(ROWS)
    assert document["overlap"] == pytest.approx(1 - 8.0 / 12.0)
    for phases in document["roles"].values():
        assert sum(phases.values()) == pytest.approx(10.0)


def test_bars_stand_where_the_spans_are() -> None:
    image = draw_timeline({"run": "a"} | sum_up(ROWS))
    colors = [image.getpixel((130 + round(1430 * share), 125)) for share in (0.23, 0.4, 0.6, 0.9)]
    assert colors == [BLUE, BLUE, WHITE, WHITE]
    colors = [image.getpixel((130 + round(1430 * share), 183)) for share in (0.2, 0.3, 0.7, 0.8)]
    assert colors == [WHITE, ORANGE, ORANGE, WHITE]
    colors = [image.getpixel((130 + round(1430 * share), 241)) for share in (0.7, 0.8, 0.99)]
    assert colors == [WHITE, GREEN, GREEN]


@pytest.mark.parametrize("rows", [[], ROWS[:1], ROWS[1:2]])
def test_whatever_is_missing_can_be_drawn(rows: list[dict[str, object]]) -> None:
    assert draw_timeline({"run": "a"} | sum_up(rows)).size == (1600, 638)
