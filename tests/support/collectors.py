"""Collectors of every kind, the weights that they act with, and blocks that are compared."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from mission_gym.data import Block, EnvSpec, Weights
from mission_gym.env.factory import Factory
from mission_gym.policy import Encoder, NumpyPolicy, PolicySpec
from mission_gym.rollout.collector import Collector
from mission_gym.rollout.make import CollectRequest
from mission_gym.rollout.remote import WorkerCollector
from mission_gym.rollout.worker import CollectService, SegmentOrder, extend_workers
from mission_gym.vector.record import Limits, VectorOptions
from mission_gym.vector.serial import SerialVec
from mission_gym.vector.threads import ThreadedVec
from mission_gym.vector.worker import serve
from mission_gym.vector.workers import WorkersVec
from timeouts import LONG_S
from toys import seed_of

SEED = 5


def never() -> bool:
    return False


def final_places(block: Block) -> list[tuple[int, int]]:
    """Where a block keeps final observations: (t, column)."""
    return [(final.t, final.column) for final in block.finals]


def make_weights(spec: EnvSpec) -> Weights:
    """A policy of random weights, 16 wide."""
    encoder, rng = Encoder(spec.leaves, True), np.random.default_rng(0)
    widths = (encoder.num_flat, 16, PolicySpec(spec.leaves, spec.action).num_outputs)
    arrays = {"log_std": np.zeros(spec.action.num_stored, np.float32)}
    for i in range(2):
        arrays[f"actor.{2 * i}.weight"] = rng.normal(size=(widths[i + 1], widths[i])).astype(np.float32)
        arrays[f"actor.{2 * i}.bias"] = np.zeros(widths[i + 1], np.float32)
    if encoder.normalizer is not None:
        arrays |= encoder.normalizer.arrays()
    return Weights(0, arrays)


def policy_spec(spec: EnvSpec) -> PolicySpec:
    return PolicySpec(spec.leaves, spec.action, network_arch=(16,))


@contextmanager
def remote(
    factory: Any,
    spec: EnvSpec,
    num_envs: int,
    num_steps: int,
    rows: int,
    num_workers: int,
    service: str = "",
    step_kind: type[SerialVec] | None = None,
    **limits: Any,
) -> Iterator[WorkerCollector]:
    """No workers stands for threads, where no kind is given."""
    make = partial(NumpyPolicy, policy_spec(spec))
    extension = extend_workers(spec, CollectRequest(num_envs, num_steps, 1, rows, SEED, False, make))
    options = VectorOptions(
        num_workers=num_workers or 1,
        limits=Limits(**({"timeout_s": LONG_S} | limits)),
        group_size=rows,
        extension=extension._replace(service=service or extension.service),
    )
    kind = step_kind or (SerialVec if num_workers else ThreadedVec)
    with WorkersVec(factory, spec, num_envs, seed_of, options, kind) as vec:
        collector = WorkerCollector(vec, spec)
        collector.load(make_weights(spec))
        yield collector


@contextmanager
def serial(factory: Factory, spec: EnvSpec, num_envs: int, rows: int) -> Iterator[Collector]:
    with SerialVec(factory, spec, num_envs, seed_of) as vec:
        policy = NumpyPolicy(policy_spec(spec))
        policy.load(make_weights(spec))
        yield Collector(vec, policy, spec, SEED, rows)


def assert_equal_blocks(mine: Block, theirs: Block) -> None:
    np.testing.assert_array_equal(mine.filled, theirs.filled)
    for name in ("action", "log_prob", "reward", "terminated", "truncated", "valid", "env_ids", "version"):
        np.testing.assert_array_equal(getattr(mine, name), getattr(theirs, name), err_msg=name)
    for one, two in zip(mine.obs, theirs.obs, strict=True):
        np.testing.assert_array_equal(one, two)
    if theirs.mask is not None:
        np.testing.assert_array_equal(mine.mask, theirs.mask)
    assert final_places(mine) == final_places(theirs)
    for ours, other in zip(mine.finals, theirs.finals, strict=True):
        for one, two in zip(ours.obs, other.obs, strict=True):
            np.testing.assert_array_equal(one, two)
    assert mine.episodes == theirs.episodes


class FaultyService(CollectService):
    """A worker with a fault of our own in its first segment."""

    def _fill_segment(self, order: SegmentOrder) -> None:
        once = Path(os.environ["FAULT_ONCE"])
        if not once.exists():
            once.touch()
            raise KeyError("a fault of ours")
        super()._fill_segment(order)


def serve_faulty(link: Any, setup: bytes) -> None:
    serve(link, setup, FaultyService)
