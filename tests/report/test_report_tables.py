"""Tables at every width: cells fold if there is no room."""

import io

import pytest
from rich.console import Console

from mission_gym.report import tables
from mission_gym.report.overview import view_overview
from mission_gym.report.scaling import view_advice
from mission_gym_bench.views import view_bench

RESULT = {
    "episodes": 100,
    "return_mean": 187.43,
    "return_low": 180.1,
    "return_high": 195.0,
    "length_mean": 187.4,
    "outcomes": {"captured": {"rate": 0.45, "low": 0.36, "high": 0.55}},
}
NO_OUTCOME = RESULT | {"outcomes": {}, "return_low": None}
RUN = {
    "name": "a-rather-long-environment-name-20260101-120000",
    "path": "/somewhere/runs/a-rather-long-environment-name-20260101-120000",
    "state": "failed",
    "cause": "the process was killed",
    "step": None,
    "fps": None,
    "return_mean": None,
}
UNKNOWN = ("env_id", "algo", "main_outcome", "outcome", "best_step", "best_return", "best_outcome", "group")
LISTED = RUN | dict.fromkeys((*UNKNOWN, "created"))
KNOWN = {
    "state": "done", "step": 12_000_000, "fps": 25_123.0, "return_mean": -1_234.5, "created": 10.0,
    "env_id": "mission_gym/Capture-v0", "algo": "ppo", "main_outcome": "captured", "outcome": 0.931,
    "best_step": 4096, "best_return": 12.5, "best_outcome": 0.95, "group": "nightly-20260101-110000",
}  # fmt: skip
SHOWN = RUN | {
    "total": 1_000_000,
    "updates": None,
    "gradient_steps": None,
    "episodes": None,
    "env_failures": None,
    "worker_restarts": None,
    "predicted_fps": 5123.4,
    "train_fps": None,
    "env_id": None,
    "algo": None,
    "seed": None,
    "notes": "a [bracketed] note",
    "parent": "older-20260101-110000",
    "parent_step": 4096,
    "best_step": None,
    "best_confirmed": None,
    "verdict": {"bound": "memory", "evidence": "97 % of [it]", "advice": ["--n-envs 4: half", "b"]},
    "checkpoints": [],
    "evals": [RESULT | {"step": 4096, "suite": "select"}],
}
FINDING = {
    "level": "error",
    "name": "observation",
    "what": "the observation [0] is NaN at step 3",
    "why": "it would spoil the weights",
    "fix": "return finite numbers",
}
ADVICE = {
    "env_id": "my_module:Env",
    "backend": "workers",
    "how": "workers, 4 workers",
    "n_envs": 16,
    "num_workers": 4,
    "n_steps_per_env": 64,
    "device": "cpu",
    "kernel": "torch",
    "threads": 4,
    "predicted_steps_per_s": 5123.4,
    "predicted_s": {"100k": 20.0, "1M": 200.0, "10M": 2000.0},
    "memory_bytes": 10**9,
    "reasons": ["a step takes [100] us"],
    "changes": ["n_envs 8 -> 16"],
    "scaling": [
        {"n_envs": n, "backend": "workers", "num_workers": 4, "steps_per_s": 100.0 * n, "memory_bytes": 10**9}
        | {"fits": n < 16, "knee": n == 8, "how": "workers, 4 workers"}
        for n in (8, 16)
    ],
    "spent_s": 12.0,
    "cached": False,
}
VIEWS = {
    "tune": view_advice(ADVICE),
    "plan": tables.view_plan(
        {"facts": [{"name": "rollout", "value": "4096", "reason": "32 envs x 128 steps"}], "notes": []}
    ),
    "runs": tables.view_runs([LISTED, LISTED | KNOWN], 7200.0),
    "run": tables.view_run(SHOWN),
    "compare": tables.view_comparison(
        {
            "runs": [
                RUN | {"best": {"step": None, "outcomes": {}}},
                RUN | {"best": RESULT | {"step": 1}},
            ],
            "differences": {"ppo.gamma": [0.99, 0.9], "policy.network_arch": [[64, 64], [512]]},
            "of_one_algorithm": {"ppo.clip_range": [0.2, "n/a"]},
        }
    ),
    "config": tables.view_config({"env.env_id": {"value": "my_module:Env", "source": "flag ENV"}}),
    "results": tables.view_results({"trained": RESULT, "random": NO_OUTCOME, "noop": RESULT}),
    "findings": tables.view_findings([FINDING, FINDING | {"level": "ok", "fix": ""}]),
    "bench": view_bench(
        [
            {"case": "a", "ours": 12000.0, "peers": {"sb3": 9000.0}, "ratio": 1.33, "unit": "steps/s"},
            {"case": "b", "ours": 1.0, "peers": {}, "ratio": None, "unit": "s"},
        ]
    ),
}


def render(view, width=80):
    file = io.StringIO()
    Console(file=file, width=width, markup=False, highlight=False).print(view)
    return file.getvalue()


@pytest.mark.parametrize("width", [60, 80, 200])
@pytest.mark.parametrize("name", VIEWS)
def test_every_view_fits_and_is_plain_text_without_a_terminal(name, width):
    text = render(VIEWS[name], width)
    assert all(len(line) <= width for line in text.splitlines())
    assert "\x1b" not in text
    assert "…" not in text  # folded, not cut


@pytest.mark.parametrize(
    ("status", "words"),
    [
        ({"phase": "training"}, "training"),
        ({"phase": "evaluating", "phase_done": 3, "phase_total": 20}, "evaluating 3/20"),
        ({"phase": "collecting", "moved_at": 925.0}, "no step for 1:15"),
        ({"phase": "collecting", "heartbeat": 900.0}, "silent"),
    ],
)
def test_the_overview_shows_what_a_live_run_does(status, words):
    keys = ("total", "return_mean", "now_fps", "fps", "eta_s", "outcomes", "main", "phase_total", "moved_at")
    row = dict.fromkeys((*keys, "step", "created")) | {"name": "a", "state": "running", "heartbeat": 1000.0}
    shown = render(view_overview([row | status], [], "runs", 1000.0, 10))
    assert words in shown.splitlines()[2]


def test_missing_values_of_a_dead_run_are_not_zero():
    line = render(tables.view_runs([LISTED], 0.0), 120).splitlines()[1]
    assert line.split()[1:] == ["n/a", "n/a", "failed", "n/a", "n/a", "n/a"]


def test_a_listed_run_shows_what_it_is_and_how_good():
    line = render(VIEWS["runs"], 200).splitlines()[2]
    assert line.split()[1:] == [
        "mission_gym/Capture-v0", "ppo", "done", "12,000,000", "25,123", "-1,234", "captured", "93", "%",
        "95", "%", "2", "h", "nightly-20260101-110000",
    ]  # fmt: skip


@pytest.mark.parametrize("width", [80, 100])
def test_numbers_of_a_list_stay_whole(width):
    text = render(VIEWS["runs"], width)
    assert {"12,000,000", "-1,234"} <= set(text.split())
    assert f"not shown in {width} columns: " in text


def test_brackets_are_text():
    assert "a [bracketed] note" in render(VIEWS["run"], 120)
    assert "the observation [0] is NaN" in render(VIEWS["findings"], 120)


def test_results_have_a_column_each_with_intervals():
    text = render(VIEWS["results"], 120)
    assert "187.4 (180.1 to 195)" in text
    assert "45 % (36 % to 55 %)" in text
    assert "n/a" in text  # the outcome that one of them does not have


def test_a_missing_peer_shows_as_missing():
    assert render(VIEWS["bench"]).splitlines()[2].split() == ["b", "1", "s", "n/a", "n/a"]


def test_lineage_is_a_tree_with_the_oldest_at_its_root():
    text = render(
        tables.view_lineage(
            {
                "run": "child",
                "ancestors": [
                    {"name": "parent", "path": "/p", "step": 512, "exists": True},
                    {"name": "eldest", "path": "/e", "step": 256, "exists": False},
                ],
                "descendants": [
                    {"name": "grandchild", "path": "/g", "parent": "child", "step": 1024},
                    {"name": "sibling", "path": "/s", "parent": "grandchild", "step": 2048},
                ],
            }
        )
    )
    lines = [line.strip(" │├└─") for line in text.splitlines()]
    assert lines[0] == "eldest (removed)"
    assert lines[1:] == [
        "parent",
        "child from step 512",
        "grandchild from step 1,024",
        "sibling from step 2,048",
    ]


def test_episode_metrics_are_shown_next_to_baselines():
    told = {
        "requests": {"mean": 12.5, "low": 12.0, "high": 13.0},
        "retries": {"mean": 0.0, "low": 0, "high": 0},
    }
    text = render(tables.view_results({"trained": RESULT | {"metrics": told}, "random": RESULT}))
    row = next(line for line in text.splitlines() if line.startswith("requests"))
    assert "12.5 (12 to 13)" in row
    assert "n/a" in row
    assert "0 (0 to 0)" in next(line for line in text.splitlines() if line.startswith("retries"))


def test_a_metric_has_the_reason_why_it_has_no_interval():
    metrics = {"hits": {"mean": 3.0, "low": None, "high": None, "episodes": 4}}
    assert "3 (no interval below 10 episodes)" in render(
        tables.view_results({"a": RESULT | {"metrics": metrics}})
    )


def test_results_state_which_events_may_be_unseen():
    assert tables.show_unseen(20) == "events in under 14 % of episodes may be unseen"
    text = render(tables.view_results({"trained": RESULT | {"episodes": 100}}))
    assert "95 % intervals; events in under 3 % of episodes may be unseen" in " ".join(text.split())


@pytest.mark.parametrize(
    ("best", "expected"),
    [
        ({"chosen_from": 1}, ""),
        ({"chosen_from": 5}, ", the highest of 5 evaluations and so too high on average"),
        ({"chosen_from": 5, "confirmed": 20}, ", confirmed on 20 more episodes"),
        ({}, ""),
    ],
)
def test_an_unconfirmed_best_is_called_too_high(best, expected):
    assert tables.show_choice(best) == expected


def test_numbers_and_names_never_break_and_wide_tables_continue_below():
    fields = ["learning_rate", "gae_lambda", "n_steps_per_env", "batch_size", "normalize_advantage"]
    table = tables.make_table("trial", *fields, "cause", numbers=["trial", *fields])
    cells = ["7", "9.92e-05", "0.9796", "1024", "256", "True"]
    table.add_row(*cells, "the process was killed by SIGKILL because it took too much memory", style="bold")
    for width in (200, 80, 40, 30):
        lines = render(table, width).splitlines()
        assert all(len(line) <= width for line in lines)
        words = " ".join(lines).split()
        assert {*fields, *cells, "SIGKILL"} <= set(words)
        assert words.count("trial") == words.count("7") >= 1 + (width < 80)
