"""`bench ray`: what a cluster costs beside workers, what it makes of more actors, and what a lost node costs.

All on this machine: more actors than cores have environments that wait. Predictions are those of `tune`, from
messages that were measured just before. `--full` adds the long proofs: a node that is removed every 30 s for
five minutes, and five seeds of CartPole on three nodes beside workers.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
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
from mission_gym.ray.costs import MOST_ACTORS, measure_cluster
from mission_gym.ray.rates import ClusterCosts, Work, find_knee, list_sizes, predict_rate
from mission_gym.rollout.blocks import block_bytes, clear_block
from mission_gym.rollout.collector import BlockCollector
from mission_gym.rollout.make import CollectRequest, make_collector
from mission_gym.run.config import resolve
from mission_gym.run.start import start_run
from mission_gym.store.checkpoints import load_last_good
from mission_gym.vector.backends import load_backend
from mission_gym.vector.record import Source
from mission_gym_bench.burn import Burn, measure_spins_per_us
from mission_gym_bench.contest import Row
from mission_gym_bench.ray_nodes import SMALL, ray_nodes
from mission_gym_bench.vector import make_weights

_UPDATE_S = 20e-6  # a transition of PPO with a small network on two cores, 10 epochs
_WAIT_S = 5e-3


@dataclass(frozen=True, slots=True)
class RayGrid:
    """What is measured. loss_s: for which nodes are removed, one every `every_s`."""

    actors: tuple[int, ...] = (1, 2, 4, 8, 16)
    seconds: float = 2.0
    repeats: int = 5
    loss_s: float = 20.0
    every_s: float = 30.0
    seeds: tuple[int, ...] = ()


def measure_ray(grid: RayGrid) -> list[Row]:
    """The rows of the contest."""
    cluster = open_cluster(num_cpus=max(grid.actors))
    try:
        costs = measure_cluster(cluster)
        rows = [_measure_overhead(cluster, grid), _tell_costs(costs), *_measure_actors(cluster, costs, grid)]
    finally:
        cluster.close()
    rows += [*_predict(), _measure_losses(grid)]
    return rows + [_learn(seed) for seed in grid.seeds]


def _measure_overhead(cluster: Cluster, grid: RayGrid) -> Row:
    """Collecting at 1 ms a step through an actor of two workers, and through two workers, by turns."""
    factory = partial(Burn, int(1000 * measure_spins_per_us()))
    spec = probe(factory, "burn")
    weights = make_weights(spec)
    rates: dict[str, list[float]] = {}
    with ExitStack() as stack:
        ways = {
            name: stack.enter_context(_collect(name, factory, spec, weights, where, 2, 2))
            for name, where in (("ray", cluster), ("workers", None))
        }
        for _ in range(grid.repeats):
            for name, fill in ways.items():
                rates.setdefault(name, []).append(_fill_for(fill, grid.seconds))
    ratios = [mine / theirs for mine, theirs in zip(rates["ray"], rates["workers"], strict=True)]
    return {
        "case": "collecting at 1 ms a step, 16 envs, 2 workers in an actor",
        "ours": statistics.median(rates["ray"]),
        "peers": {"our workers": statistics.median(rates["workers"])},
        "ratio": statistics.median(ratios),
        "unit": "steps/s",
        "ratios": [round(each, 3) for each in ratios],
    }


def _tell_costs(costs: ClusterCosts) -> Row:
    return {
        "case": "messages on one node", "ours": 1e3 * costs.latency_s, "peers": {}, "ratio": None,
        "unit": "ms a call", "costs": costs._asdict(),
    }  # fmt: skip


def _measure_actors(cluster: Cluster, costs: ClusterCosts, grid: RayGrid) -> Iterator[Row]:
    """Real blocks of so many actors, whose environments wait, beside the prediction."""
    factory = partial(Burn, wait_s=_WAIT_S)
    spec = probe(factory, "burn")
    weights = make_weights(spec)
    num_rows, num_steps = 8, 16
    sizes = {"num_rows": num_rows, "num_steps": num_steps}
    with _collect("workers", factory, spec, weights, None, 1, 1, **sizes) as fill:  # what a step takes here
        step_s = 1.0 / statistics.median(_fill_for(fill, grid.seconds) for _ in range(grid.repeats))
    work = _make_work(spec, weights, num_rows, num_steps, step_s)
    for number in grid.actors:
        with _collect("ray", factory, spec, weights, cluster, number, 1, **sizes) as fill:
            rates = [_fill_for(fill, grid.seconds) for _ in range(grid.repeats)]
        expected = predict_rate(costs, work, number).steps_per_s
        yield {
            "case": f"{number} actors, 8 envs that wait 5 ms each, segments of 128 steps",
            "ours": statistics.median(rates),
            "peers": {"predicted": expected},
            "ratio": statistics.median(rates) / expected,
            "unit": "steps/s",
            "lowest": min(rates),
            "highest": max(rates),
        }


def _predict() -> Iterator[Row]:
    """To 1,000 actors on paper, from what messages cost between two nodes, with a small network."""
    with ray_nodes(1, 1) as nodes:
        cluster = open_cluster(nodes.address)
        costs = measure_cluster(cluster)
        cluster.close()
    spec = probe(Burn, "burn")
    for step_s in (0.02, 0.001):
        work = _make_work(spec, make_weights(spec), 8, 128, step_s)._replace(update_s=_UPDATE_S)
        predictions = [predict_rate(costs, work, number) for number in list_sizes(MOST_ACTORS)]
        knee = find_knee(predictions)
        yield {
            "case": f"on paper: {1000 * step_s:.0f} ms a step, segments of 1,024 steps, knee",
            "ours": knee.num_actors,
            "peers": {},
            "ratio": None,
            "unit": "actors",
            "bound": knee.bound,
            "costs": costs._asdict(),
            "predictions": [asdict(each) for each in predictions],
        }


def _make_work(spec: EnvSpec, weights: Weights, num_rows: int, num_steps: int, step_s: float) -> Work:
    step_bytes = block_bytes(spec, num_steps, num_rows) // (num_rows * num_steps)
    weights_bytes = sum(array.nbytes for array in weights.arrays.values())
    return Work(1, num_rows, num_steps, step_s, step_bytes, weights_bytes, 0.0)


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
    """What fills a block of a backend: `num_rows` environments for each worker; it returns the steps."""
    backend = load_backend(name)
    source = Source("burn", factory, num_workers=num_workers, cluster=cluster, actor_workers=actor_workers)
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
    collector.policy.load(weights)
    collector.start()


def _fill_for(fill: Callable[[], int], seconds: float) -> float:
    """Steps per second of whole blocks, for so long at least."""
    count, begun = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - begun) < seconds:
        count += fill()
    return count / elapsed


_RUN: dict[str, Any] = {
    "n_envs": 6, "num_workers": 3, "actor_workers": 1, "n_steps_per_env": 64, "batch_size": 128,
    "eval_freq": 0, "tune": False, "tensorboard": False, "threads": 1, "overlap": "off",
}  # fmt: skip


def _measure_losses(grid: RayGrid) -> Row:
    """A run on three nodes, one of which is removed without warning and another added, again and again."""
    lost = num_updates = most_stored = 0
    with ray_nodes(1, 1, 1) as nodes, TemporaryDirectory(prefix="mission-gym-bench-") as folder:
        flags = _RUN | {"vector": "ray", "ray_address": nodes.address, "timesteps": 1 << 40}
        flags |= {"runs_dir": folder, "max_time": f"{grid.loss_s + grid.every_s:.0f}s"}
        with start_run(resolve("CartPole-v1", flags), lambda event: None) as session:
            begun = time.monotonic()
            for _ in session.updates():
                num_updates += 1
                held = sum(len(part.serials) for part in getattr(session.collector, "_parts", ()))
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
    return {
        "case": f"nodes removed without warning, one every {grid.every_s:.0f} s",
        "ours": lost,
        "peers": {},
        "ratio": None,
        "unit": "nodes",
        "updates": num_updates,
        "ended": state,
        "episodes_lost": failures,
        "actors_replaced": restarts,
        "segments_in_flight_at_most": most_stored,
        "left_behind": [name for name in left if "ray" in name or "gcs" in name],
    }


def _learn(seed: int) -> Row:
    """A seed of CartPole on three nodes, and with workers here."""
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
    return {
        "case": f"CartPole, 60,000 steps, seed {seed}, three nodes",
        "ours": returns["ray"],
        "peers": {"our workers": returns["workers"]},
        "ratio": returns["ray"] / returns["workers"],
        "unit": "return",
        "equal_bit_for_bit": policies["ray"] == policies["workers"],
    }
