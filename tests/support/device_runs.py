"""Short runs on devices that `mission_gym_bench.fake_gpu` pretends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mission_gym as mg

IMAGE_PROFILE = "toys:Glimpses"
SMALL: dict[str, Any] = {
    "timesteps": 64, "n_envs": 4, "n_steps_per_env": 8, "batch_size": 16, "n_epochs": 1, "network_arch": "8",
    "eval_freq": 0, "tensorboard": False, "tune": False, "progress": False, "precision": "float32",
}  # fmt: skip


def train(folder: Path, kind: str = "cuda", env: str = IMAGE_PROFILE, **flags: Any) -> mg.Run:
    return mg.train(env, runs_dir=str(folder), device=kind, **(SMALL | flags))


def read_plan(run: mg.Run) -> dict[str, Any]:
    plan: dict[str, Any] = json.loads((run.path / "plan.json").read_text())
    return plan
