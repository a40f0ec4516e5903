"""`record`: a film of a run's policy, or a page that plays its episode."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from mission_gym.cli.flags import PlayedRunFlags, parse, said
from mission_gym.cli.output import messages_to_stderr
from mission_gym.data import Array
from mission_gym.errors import UsageError
from mission_gym.report.formats import show_count, show_path
from mission_gym.report.screen.streams import inert, say
from mission_gym.store.checkpoints import step_name
from mission_gym.store.files import write_atomic
from mission_gym.streams import suite_seeds


@dataclass(kw_only=True)
class RecordFlags(PlayedRunFlags):
    """Flags of `record`."""

    seed: Annotated[
        int | None,
        said("Seed of the first episode, which the others count on from. Without it: the report suite.", "N"),
    ] = None
    episodes: Annotated[int, tyro.conf.arg(metavar="K", help="Episodes, one after the other.")] = 1
    out: Annotated[Path | None, said("Where to. Without it: an MP4 in the run.", "FILE.gif|.mp4|.html")] = (
        None
    )


def record(args: Sequence[str]) -> None:
    """`mission-gym record RUN[@STEP]`."""
    flags = parse(RecordFlags, args, "record", "Film the episodes that a run's policy plays.")
    if flags.episodes < 1:
        raise UsageError(f"episodes={flags.episodes} is not a positive count [--episodes]")
    ref = flags.find(flags.run)
    from mission_gym.run.open import open_run
    from mission_gym.video.record import PAGE, check_video_path, play_frames, play_page, read_fps, write_video

    with messages_to_stderr():
        opened = open_run(ref, eval_stage=flags.eval_stage)
        for text in opened.notes:
            say(text)
        path = flags.out or opened.run.path / f"{step_name(opened.step)}.mp4"
        check_video_path(path)
        is_page = path.suffix.lower() == PAGE
        if is_page and flags.episodes > 1:
            raise UsageError(
                f"episodes={flags.episodes} is not possible: a page replays one episode; use 1 [--episodes]"
            )
        fps = 0.0 if is_page else read_fps(opened)
        if flags.seed is None:
            seeds = suite_seeds("report", flags.episodes)
        else:
            seeds = [flags.seed + number for number in range(flags.episodes)]

        def frames() -> Iterator[Array]:
            for seed in seeds:
                yield from play_frames(opened, seed, explore=flags.stochastic)

        say(f"filming {opened.run.name} at step {show_count(opened.step)}")
        if is_page:
            write_atomic(path, play_page(opened, seeds[0], explore=flags.stochastic))
        else:
            write_video([path], frames(), fps)
    print(inert(show_path(path)))
