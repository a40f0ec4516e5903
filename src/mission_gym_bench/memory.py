"""`bench memory`: tasks that need memory, with and without it, and the speed against sb3-contrib.

learning: the final policy on 100 episodes of the report suite, for each cell and without one. speed: steps
per second of CPU time after the first update, ours and sb3-contrib's RecurrentPPO in turn, at equal settings:
one shared LSTM, the same networks, rollout, minibatches and epochs. Every training is one process with one
thread, so its CPU time is the time that a quiet core would need.
"""

from __future__ import annotations

import importlib.util
import time
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from mission_gym.run.config import resolve
from mission_gym.run.start import start_run
from mission_gym_bench.runner import OURS, Row, Stopwatch, TrainingJob, TrainingResult, make_row, run_jobs

_CONTRIB = "sb3-contrib"
_KINDS = ("none", "gru", "lstm", "mingru")


class TMaze(gym.Env[Any, Any]):
    """A corridor of `length` steps. The first observation shows a side, the last one the junction: 1 for a
    turn to that side, else 0. Actions in the corridor have no effect, so memory alone decides: 0.5 without.
    """

    def __init__(self, length: int = 50) -> None:
        self.length = length
        self.observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.at = self.side = 0

    def _observe(self) -> Any:
        return np.array([(2 * self.side - 1) * (self.at == 0), self.at == self.length], np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.at, self.side = 0, int(self.np_random.integers(2))
        return self._observe(), {}

    def step(self, action: Any) -> Any:
        ended = self.at == self.length
        self.at += not ended
        return self._observe(), float(ended and int(action) == self.side), ended, False, {}


class _Chosen(gym.ObservationWrapper[Any, Any, Any]):
    """Shows some entries of a vector observation."""

    def __init__(self, env: gym.Env[Any, Any], entries: list[int]) -> None:
        super().__init__(env)
        self._entries, whole = entries, env.observation_space
        assert isinstance(whole, spaces.Box)
        self.observation_space = spaces.Box(whole.low[entries], whole.high[entries], dtype=np.float32)

    def observation(self, observation: Any) -> Any:
        return observation[self._entries]


def make_cartpole() -> gym.Env[Any, Any]:
    """CartPole-v1 without its two velocities."""
    return _Chosen(gym.make("CartPole-v1"), [0, 2])


def make_pendulum() -> gym.Env[Any, Any]:
    """Pendulum-v1 without its angular velocity."""
    return _Chosen(gym.make("Pendulum-v1"), [0, 1])


def make_minigrid() -> gym.Env[Any, Any]:
    """MiniGrid-MemoryS7-v0 without its constant text."""
    import minigrid

    minigrid.register_minigrid_envs()
    return gym.make("MiniGrid-MemoryS7-v0")


@dataclass(frozen=True, slots=True)
class MemoryCase:
    """A task, its budget, its settings, and the return that counts as solved."""

    name: str
    env_id: str
    timesteps: int
    threshold: float
    flags: dict[str, Any]
    package: str = ""  # that it needs


# 16 x 128 steps, chunks as long as an episode of the T-maze: its signal is only asked for at the end.
_SIZES = {"n_envs": 16, "n_steps_per_env": 128, "learning_rate": 1e-3}
CASES = (
    MemoryCase("T-maze of 50", f"{__name__}:TMaze", 100_000, 0.95, _SIZES | {"bptt_steps": 64}),
    MemoryCase("CartPole without velocities", f"{__name__}:make_cartpole", 100_000, 450.0, _SIZES),
    MemoryCase(
        "Pendulum without velocity", f"{__name__}:make_pendulum", 100_000, -300.0, _SIZES | {"gamma": 0.9}
    ),
    MemoryCase("MiniGrid-MemoryS7", f"{__name__}:make_minigrid", 1_000_000, 0.9, _SIZES, "minigrid"),
)


@dataclass(frozen=True, slots=True)
class MemoryGrid:
    """What is measured."""

    cases: tuple[MemoryCase, ...] = CASES
    kinds: tuple[str, ...] = _KINDS
    seeds: tuple[int, ...] = (1,)
    report_episodes: int = 100
    num_updates: int = 3  # of the speed, after the first; 0 for none
    repeats: int = 1


def measure_memory(grid: MemoryGrid) -> list[Row]:
    """A row for each task and cell, then one for the speed."""
    rows = [_learn(case, kind, grid) for case in grid.cases if _has(case.package) for kind in grid.kinds]
    return rows + (_compare_speed(grid) if grid.num_updates else [])


def _has(package: str) -> bool:
    return not package or importlib.util.find_spec(package) is not None


def _learn(case: MemoryCase, kind: str, grid: MemoryGrid) -> Row:
    flags = case.flags | {"timesteps": case.timesteps, "recurrent": kind}
    if kind == "none":
        flags.pop("bptt_steps", None)
    jobs = [
        TrainingJob(
            OURS, case.env_id, flags | {"seed": seed}, grid.report_episodes, trainer="ours:train_defaults"
        )
        for seed in grid.seeds
    ]
    results = [result for _, result in run_jobs(jobs, at_once=1)]
    returns = [result.report_return for result in results]
    passed = sum(each is not None and each >= case.threshold for each in returns)
    name = f"{case.name}, {case.timesteps:,} steps, {kind}"
    found = median(each for each in returns if each is not None)
    return make_row(
        name,
        found,
        "mean return",
        threshold=case.threshold,
        returns=returns,
        passed=f"{passed}/{len(returns)}",
        train_s=[result.warm_s for result in results],
    )


def _compare_speed(grid: MemoryGrid) -> list[Row]:
    """Rows for an LSTM on both sides, and for our other cells against contrib's LSTM."""
    flags = {
        "n_envs": 8, "n_steps_per_env": 128, "batch_size": 128, "bptt_steps": 32, "n_epochs": 10,
        "recurrent_size": 128, "network_arch": "64,64", "activation": "tanh", "learning_rate": 3e-4,
        "normalize_obs": False, "normalize_returns": False, "timesteps": 1024 * (1 + grid.num_updates),
    }  # fmt: skip
    env_id = f"{__name__}:make_cartpole"
    forms = [
        TrainingJob(OURS, env_id, flags | {"recurrent": kind}, form=kind, trainer="memory:train_ours")
        for kind in _KINDS[1:]
    ]
    has_contrib = _has("sb3_contrib")
    if has_contrib:
        forms.append(TrainingJob(_CONTRIB, env_id, flags, form="lstm", trainer="memory:train_contrib"))
    jobs = [
        replace(form, flags=form.flags | {"seed": seed})
        for seed in range(1, grid.repeats + 1)
        for form in forms
    ]
    rates: dict[str, list[float]] = {}
    for job, result in run_jobs(jobs, at_once=1):
        rates.setdefault(job.name, []).append(result.steps_per_s)
    theirs = median(rates[f"{_CONTRIB} lstm"]) if has_contrib else None
    note = "" if has_contrib else f"{_CONTRIB} is not installed: pip install sb3-contrib"
    return [
        make_row(
            f"8 x 128, batch 128, 10 epochs, {kind}",
            ours := median(rates[f"{OURS} {kind}"]),
            "steps per CPU second",
            {_CONTRIB: theirs},
            ours / theirs if theirs else None,
            rates=rates,
            note=note,
        )
        for kind in _KINDS[1:]
    ]


def train_ours(job: TrainingJob, folder: Path) -> TrainingResult:
    """Train in one process, on its CPU clock."""
    plain = {"vector": "serial", "device": "cpu", "threads": 1, "eval_freq": 0, "tensorboard": False}
    resolved = resolve(job.env_id, job.flags | plain | {"tune": False, "runs_dir": str(folder)})
    with start_run(resolved, lambda event: None) as session:
        updates = session.updates()
        warm_from, watch = next(updates).step, Stopwatch(time.process_time)
        for _ in updates:
            pass
        steps = session.step - warm_from
        return TrainingResult(session.learner.gradient_steps, steps, watch.read_s(), None, [], None)


def train_contrib(job: TrainingJob, folder: Path) -> TrainingResult:
    """Train sb3-contrib's RecurrentPPO with the same settings; the folder stays empty."""
    from sb3_contrib import RecurrentPPO
    from stable_baselines3.common.callbacks import BaseCallback
    from torch import nn

    flags, num_envs = job.flags, job.flags["n_envs"]
    rollout = num_envs * flags["n_steps_per_env"]

    class Clock(BaseCallback):
        watch = Stopwatch(time.process_time)

        def _on_rollout_start(self) -> None:
            if self.num_timesteps == rollout:  # after the first update
                self.watch = Stopwatch(time.process_time)

        def _on_step(self) -> bool:
            return True

    from stable_baselines3.common.vec_env import DummyVecEnv

    clock = Clock()
    size = flags["recurrent_size"]
    model = RecurrentPPO(
        "MlpLstmPolicy",
        DummyVecEnv([make_cartpole] * num_envs),
        n_steps=flags["n_steps_per_env"],
        batch_size=flags["batch_size"],
        n_epochs=flags["n_epochs"],
        learning_rate=flags["learning_rate"],
        seed=flags["seed"],
        device="cpu",
        policy_kwargs={
            "lstm_hidden_size": size, "shared_lstm": True, "enable_critic_lstm": False,
            "net_arch": [64, 64], "activation_fn": nn.Tanh,
        },
    )  # fmt: skip
    model.learn(flags["timesteps"], callback=clock)
    warm_s, steps = clock.watch.read_s(), model.num_timesteps - rollout
    return TrainingResult(model._n_updates, steps, warm_s, None, [], None)
