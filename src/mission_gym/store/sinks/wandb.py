"""Weights & Biases. Without an API key its client writes offline runs, which `wandb sync` uploads."""

from __future__ import annotations

import os
import time
from datetime import datetime
from typing import Literal

from mission_gym.store.sinks.tracker import PROJECT, RunInfo, StepRow, make_tracker_sink


class _WandbRun:
    def __init__(self, info: RunInfo, run_id: str | None) -> None:
        import wandb

        mode: Literal["offline"] | None = None
        if "WANDB_MODE" not in os.environ and wandb.api.api_key is None:
            mode = "offline"  # otherwise it asks for a key on the terminal
            command = f"wandb sync {info.path}/wandb/*"
            info.notify(f"wandb has no API key (`wandb login`); it writes offline runs: {command}")
        # W&B names a run's folder by second and id. A resume in the same second would get the same folder,
        # whose file some versions keep as it is: the rows of the second process would be lost.
        while run_id is not None and any((info.path / "wandb").glob(f"*run-{_second()}-{run_id}*")):
            time.sleep(0.05)
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT), name=info.name, id=run_id, resume="allow",
            group=info.group, dir=info.path, config=info.config, mode=mode, reinit="create_new",
            settings=wandb.Settings(console="off", silent=True),
        )  # fmt: skip
        self.id = self._run.id
        # W&B's own steps only increase, but a resumed run repeats steps.
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def log(self, rows: list[StepRow]) -> None:
        for step, scalars in rows:
            self._run.log({"step": step, **scalars})

    def close(self) -> None:
        self._run.finish()


def _second() -> str:
    """Return the current second as W&B writes it in folder names."""
    return f"{datetime.fromtimestamp(time.time()):%Y%m%d_%H%M%S}"


SINK = make_tracker_sink(
    "wandb", _WandbRun, "wandb/run-*/**/*", "wandb/offline-run-*/**/*", "wandb/latest-run", "wandb/debug*.log"
)
