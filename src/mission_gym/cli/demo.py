"""`demo`: the main job on defaults, from nothing to an evaluated policy, and what to do next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from mission_gym.cli.flags import RUNS_DIR, parse
from mission_gym.cli.output import note, show
from mission_gym.config.layers import resolve
from mission_gym.report.formats import run_argument, show_number
from mission_gym.report.tables import view_results
from mission_gym.report.terminal import LiveView
from mission_gym.store.resolve import RunRef

_ENV_ID = "CartPole-v1"
_GOAL = 475.0  # the return at which CartPole-v1 counts as solved
_VALUES = {"seed": 1, "timesteps": 100_000, "eval_freq": 10_000, "stop_when": f"return>={_GOAL:g}"}
_EPISODES = 100


@dataclass(kw_only=True)
class DemoFlags:
    """Flags of `demo`."""

    runs_dir: Annotated[Path, tyro.conf.arg(help=RUNS_DIR, metavar="DIR")] = Path("runs")


def demo(args: Sequence[str]) -> int:
    """`mission-gym demo`; 1 if the goal was not reached."""
    flags = parse(DemoFlags, args, "demo", f"Train {_ENV_ID} until it is solved, and evaluate it.")
    from mission_gym.run.baselines import run_baselines
    from mission_gym.run.opening import evaluate_run, open_run
    from mission_gym.run.starting import start_run

    resolved = resolve(_ENV_ID, _VALUES | {"run_name": "demo", "runs_dir": str(flags.runs_dir)})
    with LiveView() as listener, start_run(resolved, listener) as session:
        for _ in session.updates():
            pass
    if session.stop():
        return 130
    opened = open_run(RunRef(session.run, None))
    trained, _ = evaluate_run(opened, _EPISODES)
    others = run_baselines(opened.environment, _EPISODES, names=("random", "noop"))
    note("\nthe best checkpoint beside policies that learned nothing")
    show({"trained": trained} | others, as_json=False, view=view_results)
    reached = trained["return_mean"] >= _GOAL
    verdict = "the goal was reached" if reached else "the goal was NOT reached"
    note(f"\n{verdict}: return {show_number(trained['return_mean'])}, goal {show_number(_GOAL)}")
    note(f"more of this run: mission-gym runs show {run_argument(opened.run.path)}")
    note("now your own environment: mission-gym train ENV")
    return 0 if reached else 1
