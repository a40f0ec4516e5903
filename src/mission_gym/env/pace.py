"""Measures how fast an environment steps and whether it computes or waits, with legal random actions.

`train`, `tune` and `make_vec` all measure it here.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from mission_gym.data import Array, EnvSpec
from mission_gym.env.agents_slot import make_slot
from mission_gym.env.factory import Factory
from mission_gym.env.slot import EnvSlot
from mission_gym.env.spaces import make_action_encoder

_FEWEST_STEPS, _MOST_STEPS = 4, 20_000
WAITING_SHARE = 0.5  # an environment waits if its CPU time is a smaller share of its wall time


class Pace(NamedTuple):
    """Statistics of the steps of one environment."""

    num_steps: float
    step_s: float  # mean, with its share of resets, without time spent waiting for a core
    spread: float  # standard deviation of a step over its mean, without resets
    cpu_share: float  # for coroutines including time that blocks the event loop

    @property
    def waits(self) -> bool:
        return self.cpu_share < WAITING_SHARE


def time_steps(factory: Factory, spec: EnvSpec, seconds: float) -> Pace:
    """Step a temporary environment in this process for about `seconds`."""
    slot = make_slot(factory, spec, 0, lambda episode: episode)
    try:
        slot.reset(0)
        return measure_pace(slot, spec, seconds, has_process=False)
    finally:
        with suppress(Exception):  # border: failing to close a temporary environment is harmless
            slot.env.close()


def measure_pace(slot: EnvSlot, spec: EnvSpec, seconds: float, *, has_process: bool = True) -> Pace:
    """Step a slot that was reset for about `seconds`.

    has_process: this process holds only environments, so its child processes, such as a browser, are theirs,
    and their CPU time is not waiting.
    """
    rng = np.random.default_rng(0)
    spec.action_space.seed(0)
    walls: list[float] = []
    cpus: list[float] = []
    reset_s = 0.0
    elsewhere = _read_elsewhere(slot, has_process)  # before the clock starts, because it takes a while
    # The wall clock is read first and last, so that it covers all other measurements.
    begun, queued, cpu, held = time.perf_counter(), read_queued_s(), time.process_time(), _read_held_s()
    while len(walls) < _MOST_STEPS and (time.perf_counter() - begun < seconds or len(walls) < _FEWEST_STEPS):
        if slot.ended:
            start = time.perf_counter()
            slot.reset(slot.episode + 1)
            reset_s += time.perf_counter() - start
        action = _draw_action(slot, spec, rng)
        start, cpu_start = time.perf_counter(), time.thread_time()
        slot.step(action)
        cpus.append(time.thread_time() - cpu_start)
        walls.append(time.perf_counter() - start)
    cpu_s, queued_s = time.process_time() - cpu, read_queued_s() - queued
    wall_s = time.perf_counter() - begun
    more_cpu_s, more_queued_s = _read_elsewhere(slot, has_process)
    cpu_s += max(more_cpu_s - elsewhere[0], 0.0)
    queued_s += max(more_queued_s - elsewhere[1], 0.0)
    cpu_s = min(max(cpu_s, _read_held_s() - held), wall_s)
    # On a busy machine a step also waits for a core, which is not the environment's waiting.
    own_s = max(wall_s - queued_s, cpu_s, 1e-9)
    cpu_share = cpu_s / own_s
    steady = walls if cpu_share < 0.5 else cpus
    return Pace(
        num_steps=len(walls),
        step_s=(float(np.mean(walls)) + reset_s / len(walls)) * own_s / wall_s,
        spread=float(np.std(steady)) / max(float(np.mean(steady)), 1e-9),
        cpu_share=cpu_share,
    )


def _read_held_s() -> float:
    """Return the seconds that coroutines have held this process's event loop, if it has one."""
    loops = sys.modules.get("mission_gym.env.event_loop")
    return 0.0 if loops is None else float(loops.read_held_s())


def _read_elsewhere(slot: EnvSlot, has_process: bool) -> tuple[float, float]:
    """Return the CPU seconds of the game's process, or of all child processes, and the seconds that they
    waited for a core, as far as they are known."""
    if slot.env.has_wrapper_attr("engine_cpu_s"):
        return float(slot.env.get_wrapper_attr("engine_cpu_s")()), 0.0
    if not has_process:
        return 0.0, 0.0
    from mission_gym.procs.children import ProcessTree

    below = ProcessTree(os.getpid(), only_below=True)
    return below.read_cpu_s(), sum(map(read_queued_s, below.pids))


def _draw_action(slot: EnvSlot, spec: EnvSpec, rng: np.random.Generator) -> Any:
    if spec.agents:
        masks = slot.mask if slot.mask is not None else [None] * spec.num_agents
        return np.stack([_draw_one(mask, spec, rng) for mask in masks])
    return _draw_one(slot.mask, spec, rng)


def _draw_one(mask: Array | None, spec: EnvSpec, rng: np.random.Generator) -> Any:
    if mask is None:
        action = make_action_encoder(spec.action_space)(spec.action_space.sample())
        return np.array([action], spec.action.dtype)[0]
    scores = np.where(mask, rng.random(len(mask)), -1.0)
    edges = pairwise(np.cumsum((0, *spec.action.nvec)))
    categories = [scores[first:last].argmax() for first, last in edges]
    others = rng.integers(0, 2, spec.action.num_stored - len(categories)).tolist()
    return spec.action.to_env(np.array([categories + others]))[0]


def read_queued_s(pid: int | str = "self") -> float:
    """Return the seconds that a process has waited for a core; 0 if the system does not report them."""
    try:
        with open(f"/proc/{pid}/schedstat") as file:
            return int(file.read().split()[1]) * 1e-9
    except (OSError, IndexError):
        return 0.0
