"""`bench images`: pictures of 4 stacked frames, ours beside SB3's vectors over the same environments.

Three things, the contestants in turn, medians of the repeats: collecting into a rollout with fixed actions,
which is the work of vectors, stacks and rollouts alone; collecting with the same convolutions acting; and
whole updates of PPO with the same network and sizes. Either side runs in its process and in others, SB3 with
one thread and with all, and the best form of each counts. Last, the memory that one more transition of a
rollout takes, beside what the plan says.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import psutil

from mission_gym.config.schema import Settled
from mission_gym.data import ActOut, Array, Leaves, Weights
from mission_gym.learner import loop
from mission_gym.plan.costs import Builder
from mission_gym.plan.memory import count_bytes
from mission_gym.procs import usable_cores
from mission_gym.rollout.blocks import clear_block
from mission_gym.run.build import one_blas_thread
from mission_gym.run.config import resolve
from mission_gym.run.environment import Environment
from mission_gym.run.settle import make_builder, open_new
from mission_gym.streams import TrainingSeeds
from mission_gym_bench.burn import measure_spins_per_us
from mission_gym_bench.contest import Row
from mission_gym_bench.frames import Frames, MapAlone
from mission_gym_bench.vector import Measure

_FRAMES, _HIDDEN = 4, 64
_VECTORS = ("serial", "workers")
_STACKED = (f"frame-stack:{_FRAMES}",)
_STACKED_MAPS = (
    "mission_gym_bench.frames:MapAlone",
    f"gymnasium.wrappers:FrameStackObservation(stack_size={_FRAMES})",
)


class _AtRandom:
    """A policy that costs almost nothing."""

    version = 0

    def act(self, obs: Leaves, mask: Array | None, noise: Array | None, state: Leaves = ()) -> ActOut:
        num = len(obs[0])
        return ActOut(np.zeros((num, 1), np.int64), np.zeros(num, np.float32))

    def initial_state(self, num_rows: int) -> Leaves:
        return ()

    def load(self, weights: Weights) -> None: ...


@dataclass(frozen=True, slots=True)
class ImageCase:
    """An environment of pictures: its name for ours, and how SB3 makes the same."""

    name: str
    step_us: int = 0
    num_envs: int = 16

    @property
    def is_territory(self) -> bool:
        return self.name.startswith("territory")

    def __str__(self) -> str:
        cost = f", {self.step_us} us" if self.step_us else ""
        return f"{self.name}, {_FRAMES} frames{cost}, {self.num_envs} envs"

    def flags(self, spins_per_us: float, grid: ImageGrid) -> dict[str, Any]:
        sizes = {"n_envs": self.num_envs, "n_steps_per_env": grid.num_steps, "batch_size": grid.batch_size}
        learning = {"n_epochs": grid.num_epochs, "network_arch": str(_HIDDEN), "target_kl": None, "seed": 1}
        shared = sizes | learning | {"device": "cpu", "tune": False, "algo": "ppo"}
        if self.is_territory:
            return shared | {"wrap": list(_STACKED_MAPS)}
        return shared | {"wrap": list(_STACKED), "env_kwargs": {"spins": int(self.step_us * spins_per_us)}}

    @property
    def env_id(self) -> str:
        return "mission_gym/Territory-v0" if self.is_territory else "mission_gym_bench.frames:Frames"

    def make_peer(self, spins_per_us: float) -> Callable[[], Any]:
        """What makes one environment for SB3, which stacks by itself."""
        if self.is_territory:
            return lambda: MapAlone(gym.make(self.env_id))
        return partial(Frames, int(self.step_us * spins_per_us), channel=True)


@dataclass(frozen=True, slots=True)
class ImageGrid:
    """What is measured, and for how long each time."""

    collecting: tuple[ImageCase, ...] = (
        ImageCase("84 x 84"),
        ImageCase("84 x 84", step_us=100),
        ImageCase("84 x 84", step_us=1000),
        ImageCase("territory 64 x 64"),
    )
    learning: tuple[ImageCase, ...] = (ImageCase("84 x 84", step_us=100),)
    num_steps: int = 64
    batch_size: int = 256
    num_epochs: int = 4
    seconds: float = 0.8
    repeats: int = 3
    weighed: tuple[int, int] = (128, 640)  # steps of an environment in the rollouts that are weighed


def measure_images(grid: ImageGrid) -> list[Row]:
    """Rows for collecting, acting, learning and memory."""
    spins_per_us = measure_spins_per_us()
    rows: list[Row] = []
    with one_blas_thread():
        for case in grid.collecting:
            rows.append(_contest("collecting", case, grid, spins_per_us, _collect_ours, _collect_peers))
        for case in grid.learning:
            rows.append(_contest("collecting with a CNN", case, grid, spins_per_us, _act_ours, _act_peers))
            rows.append(_contest("PPO end to end", case, grid, spins_per_us, _train_ours, _train_peers))
    return [*rows, _weigh(grid)]


def _contest(
    what: str, case: ImageCase, grid: ImageGrid, spins_per_us: float, make_ours: Any, make_peers: Any
) -> Row:
    print(f"{what}, {case}", file=sys.stderr)
    rates: dict[str, list[float]] = {}
    with ExitStack() as stack:
        sides: dict[str, Measure] = {
            f"ours {vector}": stack.enter_context(make_ours(case, grid, spins_per_us, vector))
            for vector in _VECTORS
        }
        if importlib.util.find_spec("stable_baselines3"):
            sides |= stack.enter_context(make_peers(case, grid, spins_per_us))
        for measure in sides.values():
            measure(0.0)  # libraries are loaded, memory is taken
        for _ in range(grid.repeats):
            for name, measure in sides.items():
                rates.setdefault(name, []).append(measure(grid.seconds))
    medians = {name: statistics.median(column) for name, column in rates.items()}
    print(", ".join(f"{name} {rate:,.0f}" for name, rate in medians.items()), file=sys.stderr)
    own = {vector: medians.pop(f"ours {vector}") for vector in _VECTORS}
    ours = max(own.values())
    return {
        "case": f"{what}, {case}", "ours": ours, "own": own, "peers": medians,
        "ratio": ours / max(medians.values()) if medians else None, "unit": "steps/s",
        "spread": {name: [min(column), max(column)] for name, column in rates.items()},
    }  # fmt: skip


def _repeat(work: Callable[[], int], threads: int, seconds: float) -> float:
    """Steps per second of work that is done again and again; it tells how many steps it made."""
    import torch

    torch.set_num_threads(threads)  # one process plays all sides
    count, begun = 0, time.perf_counter()
    while not count or time.perf_counter() - begun < seconds:
        count += work()
    return count / (time.perf_counter() - begun)


def _assemble(
    case: ImageCase, grid: ImageGrid, spins_per_us: float, vector: str
) -> tuple[Environment, Builder, Settled]:
    flags = case.flags(spins_per_us, grid) | {"vector": vector}
    environment, resolved, *_ = open_new(resolve(case.env_id, flags))
    builder = make_builder(environment, resolved)
    return environment, builder, builder.settle(resolved)


@contextmanager
def _collect_ours(case: ImageCase, grid: ImageGrid, spins_per_us: float, vector: str) -> Iterator[Measure]:
    """As a run collects that acts with torch: the policy is here, wherever environments are stepped."""
    environment, _, config = _assemble(case, grid, spins_per_us, vector)
    environment = environment.with_backend(config)
    from mission_gym.rollout.make import CollectRequest, make_collector

    asked = CollectRequest(
        num_envs=case.num_envs, num_steps=grid.num_steps, num_blocks=1,
        acting_rows=config.compute.acting_rows, seed=1, first_ready=False, make_policy=_AtRandom,
        is_portable=False,
    )  # fmt: skip
    seeds = TrainingSeeds(1)
    vec, collector, blocks = make_collector(
        environment.backend, environment.source, environment.spec, seeds, asked
    )
    with vec:
        collector.start()
        yield partial(_repeat, _fill(collector, blocks[0]), 1)


@contextmanager
def _act_ours(case: ImageCase, grid: ImageGrid, spins_per_us: float, vector: str) -> Iterator[Measure]:
    _, builder, config = _assemble(case, grid, spins_per_us, vector)
    vec, collector, blocks = builder.make_collector(config)
    with vec:
        collector.policy.load(builder.make_learner(config).weights())
        collector.start()
        yield partial(_repeat, _fill(collector, blocks[0]), config.compute.threads)


def _fill(collector: Any, block: Any) -> Callable[[], int]:
    number = 0

    def work() -> int:
        nonlocal number
        clear_block(block)
        collector.fill(block, number, lambda: False)
        number += 1
        return int(block.reward.size)

    return work


@contextmanager
def _train_ours(case: ImageCase, grid: ImageGrid, spins_per_us: float, vector: str) -> Iterator[Measure]:
    _, builder, config = _assemble(case, grid, spins_per_us, vector)
    learner = builder.make_learner(config)
    vec, collector, blocks = builder.make_collector(config)
    with vec:
        collector.start()
        updates = loop.run(collector, learner, blocks, 1 << 62, lambda: False)
        last = 0

        def work() -> int:
            nonlocal last
            before, last = last, next(updates).step
            return last - before

        yield partial(_repeat, work, config.compute.threads)


def _forms(case: ImageCase, spins_per_us: float) -> dict[str, Callable[[], Any]]:
    """SB3's vectors of stacked frames, the channel first as its convolutions want it."""
    from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecFrameStack, VecTransposeImage

    def make(form: Any, **options: Any) -> Any:
        vec = form([case.make_peer(spins_per_us)] * case.num_envs, **options)
        stacked = VecFrameStack(vec, _FRAMES)
        return stacked if case.is_territory else VecTransposeImage(stacked)

    return {
        "sb3 dummy": partial(make, DummyVecEnv),
        "sb3 subproc": partial(make, SubprocVecEnv, start_method="fork"),
    }


@contextmanager
def _collect_peers(case: ImageCase, grid: ImageGrid, spins_per_us: float) -> Iterator[dict[str, Measure]]:
    """Their vectors, with observations put into their rollout buffer."""
    import torch
    from stable_baselines3.common.buffers import RolloutBuffer

    def fill(vec: Any) -> Callable[[], int]:
        buffer = RolloutBuffer(
            grid.num_steps, vec.observation_space, vec.action_space, "cpu", n_envs=case.num_envs
        )
        blank, actions, obs = torch.zeros(case.num_envs), np.zeros(case.num_envs, np.int64), vec.reset()

        def work() -> int:
            nonlocal obs
            buffer.reset()
            for _ in range(grid.num_steps):
                after, reward, ended, _ = vec.step(actions)
                buffer.add(obs, actions[:, None], reward, ended, blank, blank)
                obs = after
            return grid.num_steps * case.num_envs

        return work

    with ExitStack() as stack:
        sides: dict[str, Measure] = {}
        for name, make in _forms(case, spins_per_us).items():
            vec = make()
            stack.callback(vec.close)
            sides[name] = partial(_repeat, fill(vec), 1)
        yield sides


@contextmanager
def _models(case: ImageCase, grid: ImageGrid, spins_per_us: float) -> Iterator[dict[str, tuple[Any, int]]]:
    """SB3's PPO with its NatureCNN in each form, and with how many threads."""
    from stable_baselines3 import PPO

    with ExitStack() as stack:
        models = {}
        for name, make in _forms(case, spins_per_us).items():
            for threads in dict.fromkeys((1, usable_cores())):
                vec = make()
                stack.callback(vec.close)
                network = {"net_arch": [_HIDDEN]}
                model = PPO(
                    "CnnPolicy", vec, n_steps=grid.num_steps, batch_size=grid.batch_size, seed=1,
                    n_epochs=grid.num_epochs, policy_kwargs=network, device="cpu",
                )  # fmt: skip
                models[f"{name}, {threads} threads"] = model, threads
        yield models


@contextmanager
def _act_peers(case: ImageCase, grid: ImageGrid, spins_per_us: float) -> Iterator[dict[str, Measure]]:
    def collect(model: Any) -> Callable[[], int]:
        _, callback = model._setup_learn(1 << 40)

        def work() -> int:
            model.collect_rollouts(model.env, callback, model.rollout_buffer, grid.num_steps)
            return grid.num_steps * case.num_envs

        return work

    with _models(case, grid, spins_per_us) as models:
        yield {name: partial(_repeat, collect(model), threads) for name, (model, threads) in models.items()}


@contextmanager
def _train_peers(case: ImageCase, grid: ImageGrid, spins_per_us: float) -> Iterator[dict[str, Measure]]:
    rollout = grid.num_steps * case.num_envs

    def train(model: Any) -> int:
        model.learn(rollout, reset_num_timesteps=False)
        return rollout

    with _models(case, grid, spins_per_us) as models:
        yield {
            name: partial(_repeat, partial(train, model), threads)
            for name, (model, threads) in models.items()
        }


def _weigh(grid: ImageGrid) -> Row:
    """Bytes of one more transition of a rollout, learned from: two sizes, each in a fresh process."""
    print("memory of a rollout", file=sys.stderr)
    found = []
    for num_steps in grid.weighed:
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            found.append(pool.submit(_train_once, num_steps).result())
    (few, little, _), (many, much, predicted) = found
    measured = (much - little) / (many - few)
    return {
        "case": "memory of a transition in a rollout, 84 x 84, 4 frames, measured and predicted",
        "ours": measured, "peers": {"predicted": predicted}, "ratio": predicted / measured, "unit": "bytes",
    }  # fmt: skip


def _train_once(num_steps: int) -> tuple[int, int, float]:
    """Transitions of a rollout, the most memory of this process, and predicted bytes of a transition."""
    case = ImageCase("84 x 84", num_envs=16)
    environment, builder, config = _assemble(
        case, ImageGrid(num_steps=num_steps, batch_size=64, num_epochs=1), 0.0, "workers"
    )
    learner = builder.make_learner(config)
    vec, collector, blocks = builder.make_collector(config)
    with vec:
        collector.start()
        updates = loop.run(collector, learner, blocks, 1 << 62, lambda: False)
        for _ in range(2):
            next(updates)
    spec, backend = environment.spec, environment.backend
    wishes = count_bytes(config, spec, backend)
    each = wishes["block_copies"] * wishes["step_bytes"] + wishes["encoded_bytes"]
    return config.rollout_size, _read_peak_bytes(), each


def _read_peak_bytes() -> int:
    """The most memory that this process has held; getrusage would tell the parent's, too."""
    status = Path("/proc/self/status")
    if not status.exists():
        return int(psutil.Process().memory_info().rss)
    (line,) = (line for line in status.read_text("utf-8").splitlines() if line.startswith("VmHWM:"))
    return 1024 * int(line.split()[1])
