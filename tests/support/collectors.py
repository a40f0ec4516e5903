"""Collectors of every kind, the weights that they act with, and blocks that are compared."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from mission_gym.data import Block, EnvSpec, Weights
from mission_gym.policy import Encoder, NumpyPolicy, PolicySpec
from mission_gym.rollout.blocks import pack_block
from mission_gym.rollout.collector import Collector, ReadyCollector
from mission_gym.rollout.make import CollectRequest
from mission_gym.rollout.remote import WorkerCollector
from mission_gym.rollout.worker import CollectService, SegmentOrder, extend_workers
from mission_gym.vector.aio import AioVec
from mission_gym.vector.record import Limits, VectorOptions
from mission_gym.vector.serial import SerialVec
from mission_gym.vector.threads import ThreadedVec
from mission_gym.vector.worker import serve
from mission_gym.vector.workers import WorkersVec
from timeouts import LONG_S
from toys import seed_of

SEED = 5
# serial: this process acts and steps. ready: this process acts for workers as they get ready. The others act
# in their worker processes; first-ready blocks take any columns that are done.
KINDS = ("serial", "ready", "workers", "threads", "aio", "first_ready", "first_ready, threads")


def never() -> bool:
    return False


@contextmanager
def collecting(
    kind: str,
    factory: Any,
    spec: EnvSpec,
    num_envs: int = 4,
    num_steps: int = 40,
    *,
    group: int = 2,
    num_workers: int = 2,
    make_policy: Callable[[], Any] | None = None,
    seeds: Callable[[int, int], int] = seed_of,
    service: str = "",
    **limits: Any,
) -> Iterator[tuple[Any, Block]]:
    """A collector with weights, not started, and its block. group: environments that act together.

    make_policy: by default a NumPy policy with the weights of `make_weights`; others get no weights.
    """
    make = make_policy or partial(NumpyPolicy, policy_spec(spec))
    options = VectorOptions(limits=Limits(**({"timeout_s": LONG_S} | limits)))
    rows = group * spec.num_agents
    request = CollectRequest(num_envs, num_steps, 1, rows, SEED, kind.startswith("first_ready"), make)
    vec: Any
    if kind == "serial":
        vec = SerialVec(factory, spec, num_envs, seeds, options)
    elif kind == "ready":
        options = replace(options, num_workers=num_workers, group_size=group, first_ready=True)
        vec = WorkersVec(factory, spec, num_envs, seeds, options)
    else:
        extension = extend_workers(spec, request)
        extension = extension._replace(service=service or extension.service)
        num_workers = 1 if kind.endswith("threads") else num_workers
        options = replace(options, num_workers=num_workers, group_size=group, extension=extension)
        step_kind = ThreadedVec if kind.endswith("threads") else AioVec if kind == "aio" else SerialVec
        vec = WorkersVec(factory, spec, num_envs, seeds, options, step_kind)
    with vec:
        collector: Any
        if kind in ("serial", "ready"):
            collector = (ReadyCollector if kind == "ready" else Collector)(vec, make(), spec, SEED, rows)
            block = collector.make_short(num_steps)
        else:
            collector = WorkerCollector(vec, spec, first_ready=request.first_ready)
            block = collector.blocks[0]
        collector.load(make_weights(spec) if make_policy is None else Weights(0, {}))
        yield collector, block


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


def assert_equal_blocks(mine: Block, theirs: Block) -> None:
    ours, others = pack_block(mine), pack_block(theirs)
    assert ours.keys() == others.keys()
    for name, array in ours.items():
        np.testing.assert_array_equal(array, others[name], err_msg=name)
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
