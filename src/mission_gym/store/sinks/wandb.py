"""Weights & Biases. Without a key its client writes offline runs into the run, which `wandb sync` uploads."""

from __future__ import annotations

import os
from typing import Literal

from mission_gym.store.sinks import Sink
from mission_gym.store.sinks.tracker import ERRORS, PROJECT, Facts, Row, Tracker


class _Run:
    def __init__(self, facts: Facts, run_id: str | None) -> None:
        import wandb

        mode: Literal["offline"] | None = None
        if "WANDB_MODE" not in os.environ and wandb.api.api_key is None:
            mode = "offline"  # it would ask for a key on the terminal
            facts.tell(
                f"wandb has no key (`wandb login`); it writes offline runs: wandb sync {facts.path}/wandb/*"
            )
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT), name=facts.name, id=run_id, resume="allow",
            group=facts.group, dir=facts.path, config=facts.config, mode=mode, reinit="create_new",
            settings=wandb.Settings(console="off", silent=True),
        )  # fmt: skip
        self.id = self._run.id
        # Its own steps only rise; a resume makes rows again.
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def log(self, rows: list[Row]) -> None:
        for step, scalars in rows:
            self._run.log({"step": step, **scalars})

    def close(self) -> None:
        self._run.finish()


SINK = Sink(lambda place, position: Tracker("wandb", place, _Run), errors=ERRORS, may_lose_rows=True)
