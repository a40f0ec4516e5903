"""`bench ray`: the cost of a cluster compared with workers, the rate with more actors, and the cost of a lost
node.

Everything runs on this machine: with more actors than cores the environments wait. `--full` adds the long
proofs: a node removed every 30 s for five minutes, and five seeds of CartPole on three nodes compared with
workers.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil

from mission_gym.data import EnvSpec, Weights
from mission_gym.env.factory import Factory
from mission_gym.env.probe import probe
from mission_gym.policy import NumpyPolicy, PolicySpec
from mission_gym.ray.cluster import Cluster, open_cluster
from mission_gym.ray.costs import measure_cluster
from mission_gym.rollout.blocks import clear_block
from mission_gym.rollout.collector import BlockCollector
from mission_gym.rollout.make import CollectRequest, make_collector
from mission_gym.run.config import resolve
from mission_gym.run.start import start_run
from mission_gym.store.checkpoints import load_last_good
from mission_gym.vector.backends import load_backend
from mission_gym.vector.record import Source, VectorOptions
from mission_gym_bench.ray_nodes import SMALL, ray_nodes
from mission_gym_bench.runner import Row, find_medians, make_row, measure_in_turn
from mission_gym_bench.synthetic import Burn, measure_spins_per_us
from mission_gym_bench.vector import make_weights

_WAIT_S = 5e-3


@dataclass(frozen=True, slots=True)
class RayGrid:
    """What is measured. loss_s: how long nodes are removed, one every `every_s`."""

    actors: tuple[int, ...] = (1, 2, 4, 8, 16)
    seconds: float = 2.0
    repeats: int = 5
    loss_s: float = 20.0
    every_s: float = 30.0
    seeds: tuple[int, ...] = ()


def measure_ray(grid: RayGrid) -> list[Row]:
    """Return all rows."""
    cluster = open_cluster(num_cpus=max(grid.actors))
    try:
        costs = measure_cluster(cluster)
        rows = [
            _measure_overhead(cluster, grid),
            make_row("messages on one node", 1e3 * costs.latency_s, "ms per call", costs=costs._asdict()),
            *_measure_actors(cluster, grid),
        ]
    finally:
        cluster.close()
    return [*rows, _measure_losses(grid), *map(_learn, grid.seeds)]


def _measure_overhead(cluster: Cluster, grid: RayGrid) -> Row:
    """Compare collecting at 1 ms per step by an actor of two workers with two workers, in turn."""
    factory = partial(Burn, int(1000 * measure_spins_per_us()))
    spec = probe(factory, "burn")
    weights = make_weights(spec)
    with ExitStack() as stack:
        measures = {
            name: partial(_fill_for, stack.enter_context(_collect(name, factory, spec, weights, where, 2, 2)))
            for name, where in (("ray", cluster), ("workers", None))
        }
        rates = measure_in_turn(measures, grid.seconds, grid.repeats)
    medians = find_medians(rates)
    ratios = [mine / theirs for mine, theirs in zip(rates["ray"], rates["workers"], strict=True)]
    return make_row(
        "collecting at 1 ms per step, 16 envs, 2 workers in an actor",
        medians["ray"],
        "steps/s",
        {"our workers": medians["workers"]},
        statistics.median(ratios),
        ratios=[round(each, 3) for each in ratios],
    )


def _measure_actors(cluster: Cluster, grid: RayGrid) -> Iterator[Row]:
    """Collect blocks with more and more actors whose environments wait, and compare with linear scaling."""
    factory = partial(Burn, wait_s=_WAIT_S)
    spec = probe(factory, "burn")
    weights = make_weights(spec)
    one_actor = 0.0
    for number in grid.actors:
        with _collect("ray", factory, spec, weights, cluster, number, 1, num_steps=16) as fill:
            rates = [_fill_for(fill, grid.seconds) for _ in range(grid.repeats)]
        rate = statistics.median(rates)
        one_actor = one_actor or rate / number
        yield make_row(
            f"{number} actors, 8 envs that wait 5 ms each, segments of 128 steps",
            rate,
            "steps/s",
            {"linear": one_actor * number},
            rate / (one_actor * number),
            lowest=min(rates),
            highest=max(rates),
        )


@contextmanager
def _collect(
    name: str,
    factory: Factory,
    spec: EnvSpec,
    weights: Weights,
    cluster: Cluster | None,
    num_workers: int,
    actor_workers: int,
    *,
    num_rows: int = 8,
    num_steps: int = 64,
) -> Iterator[Callable[[], int]]:
    """Yield a function that fills a block with a backend, `num_rows` environments per worker, and returns its
    steps."""
    backend = load_backend(name)
    options = VectorOptions(num_workers=num_workers)
    source = Source("burn", factory, options=options, cluster=cluster, actor_workers=actor_workers)
    asked = CollectRequest(
        num_envs=num_rows * num_workers,
        num_steps=num_steps,
        num_blocks=1,
        acting_rows=num_rows,
        seed=0,
        first_ready=False,
        make_policy=partial(NumpyPolicy, PolicySpec(spec.leaves, spec.action)),
        is_portable=True,
    )
    vec, collector, (block,) = make_collector(
        backend, source, spec, lambda env_id, episode: 1000 * env_id + episode, asked
    )
    numbers = iter(range(1 << 62))

    def fill() -> int:
        clear_block(block)
        collector.fill(block, next(numbers), lambda: False)
        return int(block.reward.size)

    with vec:
        _begin(collector, weights)
        yield fill


def _begin(collector: BlockCollector, weights: Weights) -> None:
    collector.load(weights)
    collector.start()


def _fill_for(fill: Callable[[], int], seconds: float) -> float:
    """Return the steps per second of whole blocks over at least `seconds`."""
    count, begun = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - begun) < seconds:
        count += fill()
    return count / elapsed


_RUN: dict[str, Any] = {
    "n_envs": 6, "num_workers": 3, "actor_workers": 1, "n_steps_per_env": 64, "batch_size": 128,
    "eval_freq": 0, "tune": False, "tensorboard": False, "threads": 1, "overlap": "off",
}  # fmt: skip


def _measure_losses(grid: RayGrid) -> Row:
    """Train on three nodes; again and again one is removed without warning and another added."""
    lost = num_updates = most_stored = 0
    with ray_nodes(1, 1, 1) as nodes, TemporaryDirectory(prefix="mission-gym-bench-") as folder:
        flags = _RUN | {"vector": "ray", "ray_address": nodes.address, "timesteps": 1 << 40}
        flags |= {"runs_dir": folder, "max_time": f"{grid.loss_s + grid.every_s:.0f}s"}
        with start_run(resolve("CartPole-v1", flags), lambda event: None) as session:
            begun = time.monotonic()
            for _ in session.updates():
                num_updates += 1
                held = sum(part.num_pending for part in getattr(session.collector, "_parts", ()))
                most_stored = max(most_stored, held)
                if time.monotonic() - begun > min(grid.every_s * (lost + 0.5), grid.loss_s) and (
                    lost * grid.every_s < grid.loss_s
                ):
                    lost += 1
                    nodes.remove_node(next(iter(nodes.worker_nodes)), allow_graceful=False)
                    nodes.add_node(num_cpus=1, **SMALL)
                    print(f"node {lost} was removed after {num_updates} updates", file=sys.stderr)
            failures, restarts = session.state.env_failures, session.status.worker_restarts
            state = session.run.read_status()["state"]
    left = [each.name() for each in psutil.Process().children(recursive=True)]
    return make_row(
        f"nodes removed without warning, one every {grid.every_s:.0f} s",
        lost,
        "nodes",
        updates=num_updates,
        ended=state,
        episodes_lost=failures,
        actors_replaced=restarts,
        segments_in_flight_at_most=most_stored,
        left_behind=[name for name in left if "ray" in name or "gcs" in name],
    )


def _learn(seed: int) -> Row:
    """Train a seed of CartPole on three nodes, and with workers on this machine."""
    returns: dict[str, float] = {}
    policies: dict[str, Any] = {}
    flags = {key: value for key, value in _RUN.items() if key != "actor_workers"}
    flags |= {"seed": seed, "timesteps": 60_000, "n_envs": 8, "num_workers": 2, "batch_size": 256}
    for name in ("ray", "workers"):
        with ExitStack() as stack:
            folder = stack.enter_context(TemporaryDirectory(prefix="mission-gym-bench-"))
            where: dict[str, Any] = {"vector": name, "runs_dir": folder}
            if name == "ray":
                nodes = stack.enter_context(ray_nodes(1, 1, 1))
                where |= {"ray_address": nodes.address, "actor_workers": 1}
            with start_run(resolve("CartPole-v1", flags | where), lambda event: None) as session:
                for _ in session.updates():
                    pass
                returns[name] = session.recorder.rolling()["rollout/ep_rew_mean"]
                checkpoint, _ = load_last_good(Path(session.run.checkpoints))
                policies[name] = {key: array.tobytes() for key, array in checkpoint.policy.items()}
    return make_row(
        f"CartPole, 60,000 steps, seed {seed}, three nodes",
        returns["ray"],
        "return",
        {"our workers": returns["workers"]},
        returns["ray"] / returns["workers"],
        equal_bit_for_bit=policies["ray"] == policies["workers"],
    )
