"""`bench vector`: steps per second of vectors over environments of known cost, peers in the same run.

Stepping compares `make_vec(backend="auto")` with Gymnasium's and SB3's vectors, and with each of our backends
by name. Collecting compares our workers, which act themselves with a 64,64 policy, with the same peers and
the same policy in this process. The limit is one plain loop per core, all at once; for environments that
wait, the limit of their waiting. Every number is a median of three, in turn; the share of the limit is the
median of the shares in each turn.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np

from mission_gym.data import EnvSpec, Weights
from mission_gym.env.probe import probe
from mission_gym.plan.env_costs import mean_memory
from mission_gym.policy import Encoder, NumpyPolicy, PolicySpec
from mission_gym.policy.sampling import draw_noise
from mission_gym.procs import usable_cores
from mission_gym.rollout.blocks import clear_block
from mission_gym.rollout.make import CollectRequest
from mission_gym.rollout.remote import WorkerCollector
from mission_gym.rollout.worker import extend_workers
from mission_gym.run.environment import choose_acting_rows
from mission_gym.vector.backends import load_backend
from mission_gym.vector.make_vec import make_vec
from mission_gym.vector.record import VectorOptions
from mission_gym.vector.serial import SerialVec
from mission_gym.vector.threads import ThreadedVec
from mission_gym.vector.workers import WorkersVec
from mission_gym_bench.overhead import measure_start
from mission_gym_bench.runner import Measure, Row, find_medians, make_row, measure_in_turn
from mission_gym_bench.synthetic import Burn, loop_burn, measure_spins_per_us


@dataclass(frozen=True, slots=True)
class VectorCase:
    """The cost of environments."""

    step_us: int
    num_envs: int = 32
    jitter: bool = False
    reset_steps: int = 0
    slow: bool = False  # the first environment is 20 times slower
    image: bool = False
    wait_ms: int = 0  # in addition to the CPU time

    def __str__(self) -> str:
        extras = [
            "jitter" if self.jitter else "",
            f"reset = {self.reset_steps} steps" if self.reset_steps else "",
            "one 20 times slower" if self.slow else "",
            "84x84x4" if self.image else "",
            f"waits {self.wait_ms} ms" if self.wait_ms else "",
        ]
        return ", ".join([f"{self.step_us} us", f"{self.num_envs} envs", *filter(None, extras)])

    def factories(self, spins_per_us: float) -> list[Callable[[], Burn]]:
        spins = int(self.step_us * spins_per_us)
        shared: dict[str, Any] = {"jitter": self.jitter, "reset_steps": self.reset_steps, "image": self.image}
        shared["wait_s"] = self.wait_ms / 1000
        rest = [partial(Burn, spins, **shared)] * (self.num_envs - 1)
        return [partial(Burn, spins * (20 if self.slow else 1), **shared), *rest]


SHORT = (
    *(VectorCase(step_us) for step_us in (0, 10, 100, 1000)),
    VectorCase(100, jitter=True),
    VectorCase(100, reset_steps=50),
    VectorCase(100, slow=True),
    VectorCase(100, num_envs=8),
    VectorCase(100, image=True),
    VectorCase(0, num_envs=64, wait_ms=20),
    VectorCase(1000, wait_ms=5),
)
_KINDS: tuple[dict[str, Any], ...] = ({}, {"jitter": True}, {"reset_steps": 50}, {"slow": True})
FULL = tuple(
    VectorCase(step_us, num_envs, image=image, **kind)
    for step_us in (0, 10, 100, 1000)
    for num_envs in (8, 32, 128)
    for image in (False, True)
    for kind in _KINDS
) + tuple(VectorCase(step_us, n, wait_ms=ms) for step_us in (0, 1000) for n in (8, 32, 128) for ms in (5, 20))


@dataclass(frozen=True, slots=True)
class VectorGrid:
    """What is measured, and for how long each time."""

    cases: tuple[VectorCase, ...] = SHORT
    seconds: float = 0.6
    waiting_envs: int = 256
    waiting_s: float = 1.0
    starts: int = 3
    repeats: int = 3


def measure_vector(grid: VectorGrid) -> list[Row]:
    """Up to three rows per case, then waiting environments, the memory of a worker, and start-up."""
    spins_per_us = measure_spins_per_us()
    rows: list[Row] = []
    for number, case in enumerate(grid.cases, 1):
        print(f"[{number}/{len(grid.cases)}] {case}", file=sys.stderr)
        rows += _measure_case(case, spins_per_us, grid)
    rows += [*_measure_waiting(grid), _measure_memory()]
    return [*rows, measure_start(grid.starts)]


def _measure_case(case: VectorCase, spins_per_us: float, grid: VectorGrid) -> list[Row]:
    factories = case.factories(spins_per_us)
    spec = probe(factories[-1], "burn")
    weights = make_weights(spec) if not case.image and not case.wait_ms else None
    with ExitStack() as stack:
        measures: dict[str, Measure] = {}
        for name, make in _peers(case.num_envs).items():
            step, close = make(factories)
            stack.callback(close)
            measures[name] = partial(step_for, step, case.num_envs)
            if weights is not None:
                measures[f"{name} with policy"] = partial(_act_and_step, step, spec, weights, case.num_envs)
        own = ("serial", "workers", *(("threads",) if case.wait_ms else ()))
        for name, backend in (("stepping", "auto"), *((f"our {each}", each) for each in own)):
            ours: Any = make_vec(factories, backend=backend, autoreset_mode="same_step")
            stack.enter_context(closing(ours))
            ours.reset(seed=0)
            measures[name] = partial(step_for, ours.step, case.num_envs)
        measures["limit"] = partial(_measure_limit, case, spins_per_us)
        if weights is not None:
            for name, first_ready in (("collecting", False), ("collecting first ready", True)):
                measures[name], _ = stack.enter_context(
                    _collect_case(factories, spec, weights, case, first_ready)
                )
        rates = measure_in_turn(measures, grid.seconds, grid.repeats)
    rows = [_row("stepping", case, rates, set(_peers(case.num_envs)))]
    named = {each: statistics.median(rates[f"our {each}"]) for each in own}
    rows[0] |= {"own": named, "ratio_to_own": rows[0]["ours"] / max(named.values())}
    if weights is not None:
        peers = {name for name in rates if name.endswith("with policy")}
        rows += [_row(name, case, rates, peers) for name in ("collecting", "collecting first ready")]
    return rows


def _row(name: str, case: VectorCase, rates: dict[str, list[float]], peers: set[str]) -> Row:
    medians = find_medians(rates)
    rivals = {peer: medians[peer] for peer in sorted(peers)}
    parallel = [rate for peer, rate in rivals.items() if "async" in peer or "subproc" in peer]
    shares = (rate / limit for rate, limit in zip(rates[name], rates["limit"], strict=True))
    return make_row(
        f"{name}, {case}",
        medians[name],
        "steps/s",
        rivals,
        medians[name] / max(rivals.values()) if rivals else None,
        ratio_to_parallel=medians[name] / max(parallel) if parallel else None,
        limit=medians["limit"],
        of_limit=statistics.median(shares),
    )


def step_for(step: Callable[[Any], Any], num_envs: int, seconds: float) -> float:
    """Return the steps per second of a vector's step function."""
    actions = np.zeros(num_envs, np.int64)
    count, begun = 0, time.perf_counter()
    while time.perf_counter() - begun < seconds:
        step(actions)
        count += num_envs
    return count / (time.perf_counter() - begun)


def _act_and_step(
    step: Callable[[Any], Any], spec: EnvSpec, weights: Weights, num_envs: int, seconds: float
) -> float:
    """Act for all environments, then step them, like a collector of one process."""
    policy = NumpyPolicy(PolicySpec(spec.leaves, spec.action))
    policy.load(weights)
    rng = np.random.default_rng(0)
    obs = np.zeros((num_envs, *spec.leaves[0].shape), np.float32)
    count, begun = 0, time.perf_counter()
    while time.perf_counter() - begun < seconds:
        out = policy.act((obs,), None, draw_noise(spec.action, rng, 1, num_envs)[0])
        obs = step(out.action[:, 0])[0]
        count += num_envs
    return count / (time.perf_counter() - begun)


def _collect_case(
    factories: Any, spec: EnvSpec, weights: Weights, case: VectorCase, first_ready: bool
) -> Any:
    """Open our workers, one per core, with blocks of about a quarter of a second."""
    workers = min(usable_cores(), case.num_envs)
    step_s = (case.step_us * (2 if case.reset_steps or case.slow else 1) + 10) * 1e-6
    num_steps = int(np.clip(0.25 * workers / (step_s * case.num_envs), 16, 512))
    rows = choose_acting_rows(case.num_envs, workers)
    return collect(factories, spec, weights, rows, num_steps, first_ready, num_workers=workers)


@contextmanager
def collect(
    factories: Any,
    spec: EnvSpec,
    weights: Weights,
    rows: int,
    num_steps: int,
    first_ready: bool = False,
    *,
    num_workers: int,
    kind: type[SerialVec] = SerialVec,
) -> Iterator[tuple[Measure, WorkersVec]]:
    """Open workers that fill blocks, and their vector; each acts for `rows` environments at once."""
    num_envs = len(factories)
    make = partial(NumpyPolicy, PolicySpec(spec.leaves, spec.action))
    request = CollectRequest(num_envs, num_steps, 1, rows, 0, first_ready, make)
    options = VectorOptions(num_workers=num_workers, group_size=rows, extension=extend_workers(spec, request))
    with WorkersVec(
        factories, spec, num_envs, lambda env_id, number: 1000 * env_id + number, options, kind
    ) as vec:
        collector = WorkerCollector(vec, spec, first_ready=first_ready)
        (block,) = collector.blocks
        collector.load(weights)
        collector.start()

        def measure(seconds: float) -> float:
            number, begun = -1, 0.0
            while number < 1 or time.perf_counter() - begun < seconds:
                if number == 0:  # segments that continued between two turns are in the previous block
                    begun = time.perf_counter()
                collector.fill(block, number, lambda: False)
                clear_block(block)
                number += 1
            return number * num_steps * num_envs / (time.perf_counter() - begun)

        yield measure, vec


def _measure_limit(case: VectorCase, spins_per_us: float, seconds: float) -> float:
    """Run one plain loop per core, all at once; one slow environment leaves the others its share of the
    cores."""
    cores = usable_cores()
    if case.wait_ms:
        step_s = case.step_us / 1e6
        return min(case.num_envs / (step_s + case.wait_ms / 1e3), cores / step_s if step_s else float("inf"))
    spins = int(case.step_us * spins_per_us)
    kwargs = {"spins": spins, "jitter": case.jitter, "reset_steps": case.reset_steps, "image": case.image}
    with ProcessPoolExecutor(cores, multiprocessing.get_context("fork")) as pool:
        start_at = time.time() + 0.1
        jobs = [pool.submit(loop_burn, kwargs, seconds, start_at) for _ in range(cores)]
        limit = sum(job.result() for job in jobs)
    # Equal steps of all: the work of 31 + 20 steps for 32 steps.
    return limit * case.num_envs / (case.num_envs + 19) if case.slow else limit


def _peers(num_envs: int) -> dict[str, Any]:
    """Return, by name, makers of peers from factories: their step and close functions. Processes are
    forked, which starts them fastest."""

    def gymnasium(kind: Any, **options: Any) -> Any:
        def make(factories: Any) -> Any:
            vec = kind(factories, autoreset_mode=gym.vector.AutoresetMode.SAME_STEP, **options)
            vec.reset(seed=0)
            return vec.step, vec.close

        return make

    def sb3(name: str, **options: Any) -> Any:
        def make(factories: Any) -> Any:
            from stable_baselines3.common import vec_env

            vec = getattr(vec_env, name)(factories, **options)
            vec.reset()
            return vec.step, vec.close

        return make

    peers = {
        "gymnasium sync": gymnasium(gym.vector.SyncVectorEnv),
        "gymnasium async": gymnasium(gym.vector.AsyncVectorEnv, context="fork"),
    }
    if importlib.util.find_spec("stable_baselines3") and num_envs <= 32:
        peers |= {"sb3 dummy": sb3("DummyVecEnv"), "sb3 subproc": sb3("SubprocVecEnv", start_method="fork")}
    return peers


def make_weights(spec: EnvSpec) -> Weights:
    """Return the weights of a 64,64 policy."""
    encoder, rng = Encoder(spec.leaves, True), np.random.default_rng(0)
    widths = (encoder.num_flat, 64, 64, PolicySpec(spec.leaves, spec.action).num_outputs)
    arrays = {} if encoder.normalizer is None else encoder.normalizer.arrays()
    for layer in range(3):
        shape = (widths[layer + 1], widths[layer])
        arrays[f"actor.{2 * layer}.weight"] = rng.normal(size=shape).astype(np.float32) * np.float32(0.1)
        arrays[f"actor.{2 * layer}.bias"] = np.zeros(shape[0], np.float32)
    return Weights(0, arrays)


def _measure_waiting(grid: VectorGrid, wait_s: float = 0.02) -> list[Row]:
    """Measure environments that wait, as threads of one process: stepped together, and collecting like a
    run."""
    num_envs, factory = grid.waiting_envs, partial(Burn, wait_s=wait_s)
    spec = probe(factory, "burn")
    with ExitStack() as stack:
        vec: Any = stack.enter_context(closing(make_vec(factory, num_envs, backend="threads")))
        vec.reset(seed=0)
        weights = make_weights(spec)
        group = choose_acting_rows(num_envs, load_backend("threads").count_groups(num_envs))
        collecting = collect([factory] * num_envs, spec, weights, group, 32, kind=ThreadedVec, num_workers=1)
        ways: dict[str, Measure] = {
            "stepping": partial(step_for, vec.step, num_envs),
            "collecting": stack.enter_context(collecting)[0],
        }
        medians = find_medians(measure_in_turn(ways, grid.waiting_s, grid.repeats))
    limit, case = num_envs / wait_s, f"threads, {num_envs} envs that wait {1000 * wait_s:.0f} ms"
    return [
        make_row(f"{name}, {case}", rate, "steps/s", limit=limit, of_limit=rate / limit)
        for name, rate in medians.items()
    ]


def _measure_memory() -> Row:
    """Measure the proportional memory (PSS) of a worker with CartPole, 8 environments in two workers."""
    vec: Any = make_vec("CartPole-v1", 8, backend="workers", num_workers=2)
    with closing(vec):
        vec.reset(seed=0)
        step_for(vec.step, 8, 0.2)
        size = mean_memory(vec.inner.pids())
    return make_row("memory of a CartPole worker, subreaper included", size and size / 1e6, "MB PSS")
