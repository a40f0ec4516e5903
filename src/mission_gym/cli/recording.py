"""`record`: a film of a run's policy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from mission_gym.cli.flags import RUNS_DIR, Switch, parse
from mission_gym.cli.output import messages_to_stderr, note
from mission_gym.data import Array
from mission_gym.errors import UsageError
from mission_gym.report.formats import show_count, show_path
from mission_gym.store.checkpoints import step_name
from mission_gym.store.resolve import find_run
from mission_gym.streams import suite_seeds


@dataclass(kw_only=True)
class RecordFlags:
    """Flags of `record`."""

    run: Annotated[
        tyro.conf.Positional[str],
        tyro.conf.arg(metavar="RUN[@STEP]", help="The run; without a step its best checkpoint."),
    ]
    seed: Annotated[
        int | None,
        tyro.conf.arg(
            metavar="N",
            help="Seed of the first episode, which the others count on from. Without it: the report suite.",
            help_behavior_hint="",
        ),
    ] = None
    episodes: Annotated[int, tyro.conf.arg(metavar="K", help="Episodes, one after the other.")] = 1
    out: Annotated[
        Path | None,
        tyro.conf.arg(
            metavar="FILE.gif|.mp4", help="Where to. Without it: an MP4 in the run.", help_behavior_hint=""
        ),
    ] = None
    stochastic: Annotated[
        Switch, tyro.conf.arg(help="Sample actions instead of the likeliest one.", help_behavior_hint="")
    ] = False
    runs_dir: Annotated[Path, tyro.conf.arg(help=RUNS_DIR, metavar="DIR")] = Path("runs")


def record(args: Sequence[str]) -> int:
    """`mission-gym record RUN[@STEP]`."""
    flags = parse(RecordFlags, args, "record", "Film the episodes that a run's policy plays.")
    if flags.episodes < 1:
        raise UsageError(f"episodes={flags.episodes} is not a positive count [--episodes]")
    ref = find_run(flags.run, flags.runs_dir)
    note(ref.note)
    from mission_gym.films.film import check_film_path, play_frames, read_fps, write_films
    from mission_gym.run.open import open_run

    with messages_to_stderr():
        opened = open_run(ref)
        path = flags.out or opened.run.path / f"{step_name(opened.step)}.mp4"
        check_film_path(path)
        fps = read_fps(opened)
        if flags.seed is None:
            seeds = suite_seeds("report", flags.episodes)
        else:
            seeds = [flags.seed + number for number in range(flags.episodes)]

        def frames() -> Iterator[Array]:
            for seed in seeds:
                yield from play_frames(opened, seed, explore=flags.stochastic)

        note(f"filming {opened.run.name} at step {show_count(opened.step)}")
        write_films([path], frames(), fps)
    print(show_path(path))
    return 0
