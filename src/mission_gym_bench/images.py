"""`bench images`: images of 4 stacked frames, ours compared with SB3's vectors over the same environments.

Three measurements, the sides in turn, medians of the repeats: collecting into a rollout with fixed actions,
which is the work of vectors, stacks and rollouts alone; collecting with the same convolutions acting; and
whole updates of PPO with the same network and sizes. Both sides run in one process and in several, SB3 with
one thread and with all, and the best form of each counts. Last, the memory of one more transition of a
rollout, compared with the plan's prediction.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import sys
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
from mission_gym.rollout.blocks import clear_block
from mission_gym.rollout.make import CollectRequest, make_collector
from mission_gym.run.build import one_blas_thread
from mission_gym.run.config import resolve
from mission_gym.run.environment import Environment
from mission_gym.run.settle import make_builder, open_new
from mission_gym.streams import TrainingSeeds
from mission_gym_bench.runner import (
    Measure,
    Row,
    find_medians,
    find_spreads,
    make_row,
    measure_in_turn,
    repeat_work,
)
from mission_gym_bench.synthetic import Frames, MapOnly, measure_spins_per_us

_VECTORS = ("serial", "workers")


class _ConstantPolicy:
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
    """An environment of images, for ours and for SB3."""

    name: str
    step_us: int = 0
    num_envs: int = 16
    num_frames: int = 4
    num_hidden: int = 64

    @property
    def is_territory(self) -> bool:
        return self.name.startswith("territory")

    def __str__(self) -> str:
        cost = f", {self.step_us} us" if self.step_us else ""
        return f"{self.name}, {self.num_frames} frames{cost}, {self.num_envs} envs"

    def flags(self, spins_per_us: float, grid: ImageGrid) -> dict[str, Any]:
        sizes = {"n_envs": self.num_envs, "n_steps_per_env": grid.num_steps, "batch_size": grid.batch_size}
        network = str(self.num_hidden)
        learning = {"n_epochs": grid.num_epochs, "network_arch": network, "target_kl": None, "seed": 1}
        shared = sizes | learning | {"device": "cpu", "tune": False, "algo": "ppo"}
        if self.is_territory:
            stack = f"gymnasium.wrappers:FrameStackObservation(stack_size={self.num_frames})"
            return shared | {"wrap": ["mission_gym_bench.synthetic:MapOnly", stack]}
        spins = int(self.step_us * spins_per_us)
        return shared | {"wrap": [f"frame-stack:{self.num_frames}"], "env_kwargs": {"spins": spins}}

    @property
    def env_id(self) -> str:
        return "mission_gym/Territory-v0" if self.is_territory else "mission_gym_bench.synthetic:Frames"

    def make_peer(self, spins_per_us: float) -> Callable[[], Any]:
        """Return a factory of one environment for SB3, which stacks frames itself."""
        if self.is_territory:
            return lambda: MapOnly(gym.make(self.env_id))
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
    weighed: tuple[int, int] = (128, 640)  # steps per environment of the rollouts whose memory is measured


def measure_images(grid: ImageGrid) -> list[Row]:
    """Rows for collecting, acting, learning and memory."""
    spins_per_us = measure_spins_per_us()
    rows: list[Row] = []
    has_peer = importlib.util.find_spec("stable_baselines3") is not None
    collect_peers = act_peers = train_peers = None
    if has_peer:
        from mission_gym_bench.sb3 import collect_images, open_image_models

        collect_peers = collect_images
        act_peers, train_peers = (partial(open_image_models, learns=learns) for learns in (False, True))
    with one_blas_thread():
        for case in grid.collecting:
            rows.append(_compare("collecting", case, grid, spins_per_us, (_collect_ours, collect_peers)))
        for case in grid.learning:
            rows.append(_compare("collecting with a CNN", case, grid, spins_per_us, (_act_ours, act_peers)))
            rows.append(_compare("PPO end to end", case, grid, spins_per_us, (_train_ours, train_peers)))
    return [*rows, _measure_memory(grid)]


def _compare(
    what: str, case: ImageCase, grid: ImageGrid, spins_per_us: float, sides: tuple[Any, Any | None]
) -> Row:
    """Measure our vectors and the peer's. sides: openers of ours and, if installed, of the peer's."""
    print(f"{what}, {case}", file=sys.stderr)
    open_ours, open_peers = sides
    with ExitStack() as stack:
        measures: dict[str, Measure] = {
            f"ours {vector}": stack.enter_context(open_ours(case, grid, spins_per_us, vector))
            for vector in _VECTORS
        }
        if open_peers is not None:
            measures |= stack.enter_context(open_peers(case, grid, spins_per_us))
        for measure in measures.values():
            measure(0.0)  # loads libraries and allocates memory
        rates = measure_in_turn(measures, grid.seconds, grid.repeats)
    medians = find_medians(rates)
    print(", ".join(f"{name} {rate:,.0f}" for name, rate in medians.items()), file=sys.stderr)
    own = {vector: medians.pop(f"ours {vector}") for vector in _VECTORS}
    ours = max(own.values())
    ratio = ours / max(medians.values()) if medians else None
    return make_row(f"{what}, {case}", ours, "steps/s", medians, ratio, own=own, spread=find_spreads(rates))


def _assemble(
    case: ImageCase, grid: ImageGrid, spins_per_us: float, vector: str
) -> tuple[Environment, Builder, Settled]:
    flags = case.flags(spins_per_us, grid) | {"vector": vector}
    environment, resolved, *_ = open_new(resolve(case.env_id, flags))
    builder = make_builder(environment, resolved)
    return environment, builder, builder.settle(resolved)


@contextmanager
def _collect_ours(case: ImageCase, grid: ImageGrid, spins_per_us: float, vector: str) -> Iterator[Measure]:
    """Collect like a run that acts with torch: the policy is in this process, wherever environments step."""
    environment, _, config = _assemble(case, grid, spins_per_us, vector)
    environment = environment.with_backend(config)
    asked = CollectRequest(
        num_envs=case.num_envs, num_steps=grid.num_steps, num_blocks=1,
        acting_rows=config.compute.acting_rows, seed=1, first_ready=False, make_policy=_ConstantPolicy,
        is_portable=False,
    )  # fmt: skip
    seeds = TrainingSeeds(1)
    vec, collector, blocks = make_collector(
        environment.backend, environment.source, environment.spec, seeds, asked
    )
    with vec:
        collector.start()
        yield partial(repeat_work, _fill(collector, blocks[0]), 1)


@contextmanager
def _act_ours(case: ImageCase, grid: ImageGrid, spins_per_us: float, vector: str) -> Iterator[Measure]:
    _, builder, config = _assemble(case, grid, spins_per_us, vector)
    vec, collector, blocks = builder.make_collector(config)
    with vec:
        collector.load(builder.make_learner(config).weights())
        collector.start()
        yield partial(repeat_work, _fill(collector, blocks[0]), config.compute.threads)


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

        yield partial(repeat_work, work, config.compute.threads)


def _measure_memory(grid: ImageGrid) -> Row:
    """Measure the bytes of one more transition of a rollout: two sizes, each in a fresh process."""
    print("memory of a rollout", file=sys.stderr)
    found = []
    for num_steps in grid.weighed:
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            found.append(pool.submit(_train_once, num_steps).result())
    (few, little, _), (many, much, predicted) = found
    measured = (much - little) / (many - few)
    case = "memory of a transition in a rollout, 84 x 84, 4 frames, measured and predicted"
    return make_row(case, measured, "bytes", {"predicted": predicted}, predicted / measured)


def _train_once(num_steps: int) -> tuple[int, int, float]:
    """Return the transitions of a rollout, the peak memory of this process, and predicted bytes per
    transition."""
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
    counted = count_bytes(config, spec, backend)
    each = counted["block_copies"] * counted["step_bytes"] + counted["encoded_bytes"]
    return config.rollout_size, _read_peak_bytes(), each


def _read_peak_bytes() -> int:
    """Return the peak memory of this process; getrusage would include the parent's."""
    status = Path("/proc/self/status")
    if not status.exists():
        return int(psutil.Process().memory_info().rss)
    (line,) = (line for line in status.read_text("utf-8").splitlines() if line.startswith("VmHWM:"))
    return 1024 * int(line.split()[1])
