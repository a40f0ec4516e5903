"""How fast an environment steps, and whether it computes or waits: legal random actions in a slot, timed.

The one way to measure that, for `train`, `tune` and `make_vec`.
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
from mission_gym.env.actions import make_action_row
from mission_gym.env.agents_slot import make_slot
from mission_gym.env.factory import Factory
from mission_gym.env.slot import EnvSlot

_FEWEST_STEPS, _MOST_STEPS = 4, 20_000
WAITING_SHARE = 0.5  # of a step's wall time that is CPU time; below it, the environment waits


class Pace(NamedTuple):
    """Steps of one environment, for some time."""

    num_steps: float
    step_s: float  # mean, with the share of resets, without the time spent waiting for a core
    spread: float  # standard deviation of a step over its mean, resets left out
    cpu_share: float  # of coroutines also what blocks their event loop: nobody else can run meanwhile

    @property
    def waits(self) -> bool:
        return self.cpu_share < WAITING_SHARE


def time_steps(factory: Factory, spec: EnvSpec, seconds: float) -> Pace:
    """Play in a throw-away environment in this process for about `seconds`."""
    slot = make_slot(factory, spec, 0, lambda episode: episode)
    try:
        slot.reset(0)
        return measure_pace(slot, spec, seconds, has_process=False)
    finally:
        with suppress(Exception):  # border: a throw-away environment that can't close harms nothing
            slot.env.close()


def measure_pace(slot: EnvSlot, spec: EnvSpec, seconds: float, *, has_process: bool = True) -> Pace:
    """Play in a slot that was reset for about `seconds`. has_process: whether this process is there for
    environments alone, so that what runs below it is theirs, such as a browser: what that computes is not
    waiting."""
    rng = np.random.default_rng(0)
    spec.action_space.seed(0)
    walls: list[float] = []
    cpus: list[float] = []
    reset_s = 0.0
    elsewhere = _read_elsewhere(slot, has_process)  # which takes a while itself
    # The clock is looked at first and last: time in the queue between two looks is then inside the whole.
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
    # On a busy machine a step also waits for a core: that is not the environment's waiting.
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
    """Seconds that coroutines have held the event loop of this process, if there is one."""
    loops = sys.modules.get("mission_gym.env.event_loop")
    return 0.0 if loops is None else float(loops.read_held_s())


def _read_elsewhere(slot: EnvSlot, has_process: bool) -> tuple[float, float]:
    """CPU seconds of the process where the game is, or of all that environments have started, and the seconds
    that these were ready and had no core, as far as they are known."""
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
        action = make_action_row(spec.action_space)(spec.action_space.sample())
        return np.array([action], spec.action.dtype)[0]
    scores = np.where(mask, rng.random(len(mask)), -1.0)
    edges = pairwise(np.cumsum((0, *spec.action.nvec)))
    categories = [scores[first:last].argmax() for first, last in edges]
    others = rng.integers(0, 2, spec.action.num_stored - len(categories)).tolist()
    return spec.action.to_env(np.array([categories + others]))[0]


def read_queued_s(pid: int | str = "self") -> float:
    """Seconds that a process was ready and had no core, 0 where the system does not tell."""
    try:
        with open(f"/proc/{pid}/schedstat") as file:
            return int(file.read().split()[1]) * 1e-9
    except (OSError, IndexError):
        return 0.0
