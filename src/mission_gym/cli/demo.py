"""`demo`: the main job on defaults: trains the capture mission until it wins, and shows what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from mission_gym.cli.flags import RunsDir, parse
from mission_gym.cli.output import show
from mission_gym.cli.warming import compile_beside
from mission_gym.report.formats import run_argument, show_count, show_path, show_rate
from mission_gym.report.html import Picture, make_html
from mission_gym.report.screen.live import Screen
from mission_gym.report.screen.streams import say
from mission_gym.report.tables import view_results
from mission_gym.run.config import resolve
from mission_gym.store.checkpoints import CheckpointInfo, list_checkpoints
from mission_gym.store.evals import write_baselines
from mission_gym.store.files import write_atomic
from mission_gym.store.resolve import RunRef
from mission_gym.store.rundir import RunDir
from mission_gym.streams import suite_seeds
from mission_gym_missions import CAPTURE_ID

_GOAL = 0.8  # of the lower bound, on the report suite
# The training stops a little above the goal: the first evaluation that reaches it was a lucky one.
# Without a plan of its own: the demo is the same run on every machine.
_VALUES = {
    "stop_when": f"captured>={_GOAL + 0.03:g}", "eval_episodes": 256, "run_name": "demo", "tune": False,
}  # fmt: skip
_EPISODES = 256
_BASELINES = ("noop", "random", "rush", "careful", "holder")
_FILM_WIDTH = 480  # pixels of each of the three


@dataclass(kw_only=True)
class DemoFlags:
    """Flags of `demo`."""

    level: Annotated[
        Literal["easy", "normal", "hard"], tyro.conf.arg(help="Level of the mission.", metavar="NAME")
    ] = "normal"
    seed: Annotated[str, tyro.conf.arg(help="Seed of the run.", metavar="N")] = "1"
    max_time: Annotated[str, tyro.conf.arg(help="Time to train, at most.", metavar="TIME")] = "5m"
    runs_dir: RunsDir = Path("runs")


def demo(args: Sequence[str]) -> int:
    """`mission-gym demo`; 1 if the goal was not reached."""
    flags = parse(DemoFlags, args, "demo", "Train the capture mission until it wins, and show it.")
    values = {
        "seed": flags.seed, "max_time": flags.max_time, "runs_dir": str(flags.runs_dir),
        "env_kwargs": [f"level={flags.level}"],
    }  # fmt: skip
    resolved = resolve(CAPTURE_ID, _VALUES | values)
    wait = compile_beside(CAPTURE_ID, algo=resolved.config.run.algo)
    from mission_gym.run.start import start_run

    wait()
    with Screen() as listener, start_run(resolved, listener) as session:
        for _ in session.updates():
            pass
    if session.stop():
        return 130
    return _present(session.run)


def _present(run: RunDir) -> int:
    """Confirm on held-out seeds, film, report, and say where everything is."""
    from mission_gym.run.baselines import run_baselines
    from mission_gym.run.open import evaluate_run, keep_result, open_run

    opened = open_run(RunRef(run, None))
    say(f"\nconfirming on {_EPISODES} held-out episodes, beside scripted policies on the same seeds")
    trained, warnings = evaluate_run(opened, _EPISODES)
    for warning in warnings:
        say(f"warning: {warning}")
    baselines = run_baselines(opened.environment, _EPISODES, names=_BASELINES)
    write_baselines(run, baselines)
    results = {"trained": trained} | baselines
    show(results, as_json=False, view=view_results)
    keep_result(opened, trained)
    rate = trained["outcomes"]["captured"]
    reached = rate["low"] >= _GOAL
    verdict = (
        f"the goal was {'reached' if reached else 'NOT reached'}: captured {show_rate(rate['rate'])}, "
        f"at least {show_rate(rate['low'])} with 95 % confidence; the goal is {show_rate(_GOAL)}"
    )
    say("\nfilming the first, a middle and the last checkpoint on one seed")
    films = _film(run)
    html = run.path / "report.html"
    write_atomic(
        html, make_html([run], results, [Picture(films[0], "One seed, three checkpoints")], verdict=verdict)
    )
    name = run_argument(run.path)
    say(f"\n{verdict}")
    say(f"report   {show_path(html)}")
    say(f"films    {', '.join(show_path(film) for film in films)}")
    say(f"run      mission-gym runs show {name}")
    say(f"more     mission-gym record {name}; mission-gym play {CAPTURE_ID}; mission-gym demo --level hard")
    say("yours    mission-gym train ENV")
    return 0 if reached else 1


def _film(run: RunDir) -> list[Path]:
    """The same seed played by three checkpoints side by side, as GIF and MP4."""
    from mission_gym.run.open import open_run
    from mission_gym.video.record import join_videos, play_frames, read_fps, write_video

    seed = suite_seeds("report", 1)[0]
    players = [open_run(RunRef(run, info.step)) for info in choose_three(list_checkpoints(run.checkpoints))]
    paths = [run.path / f"learning{ending}" for ending in (".gif", ".mp4")]
    films = [(f"after {show_count(player.step)} steps", play_frames(player, seed)) for player in players]
    write_video(paths, join_videos(films, _FILM_WIDTH), read_fps(players[0]), gif_width=3 * _FILM_WIDTH)
    return paths


def choose_three(infos: Sequence[CheckpointInfo]) -> list[CheckpointInfo]:
    """The first, the one nearest to half of the way, and the last; fewer where there are fewer."""
    first, last = infos[0], infos[-1]
    middle = min(infos, key=lambda info: abs(info.step - last.step / 2))
    return list({info.step: info for info in (first, middle, last)}.values())
