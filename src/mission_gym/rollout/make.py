"""Makes a run's vector, the collector that steps it, and the blocks that it fills."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

if TYPE_CHECKING:  # NumPy and Gymnasium are imported inside functions: workers start first
    from mission_gym.data import Block, EnvSpec
    from mission_gym.rollout.collector import BlockCollector, Collector
    from mission_gym.vector.base import SeedOf, Vector
    from mission_gym.vector.record import Backend, Source


class CollectRequest(NamedTuple):
    """The settings of a collector."""

    num_envs: int
    num_steps: int
    num_blocks: int
    acting_rows: int
    seed: int
    first_ready: bool
    make_policy: Callable[[], Any]  # without weights
    is_portable: bool  # whether the policy can act in another process
    first_row: int = 0  # of these environments in a larger vector


Collected: TypeAlias = "tuple[Vector, BlockCollector, list[Block]]"  # the caller closes the vector


def make_collector(
    backend: Backend, source: Source, spec: EnvSpec, seed_of: SeedOf, request: CollectRequest
) -> Collected:
    """The vector, its collector and the blocks: the policy acts in the backend's processes if both can."""
    if backend.make_collector is not None:
        collected: Collected = backend.make_collector(source, spec, seed_of, request)
        return collected
    if backend.acts_itself:
        return _collect_in_workers(backend, source, spec, seed_of, request)
    return _collect_here(backend, source, spec, seed_of, request)


def _collect_here(
    backend: Backend, source: Source, spec: EnvSpec, seed_of: SeedOf, request: CollectRequest
) -> Collected:
    """The policy acts in this process, for all rows at once."""
    from mission_gym.rollout.collector import Collector

    vec = backend.make_vector(source, spec, request.num_envs, seed_of)
    collector = Collector(vec, request.make_policy(), spec, request.seed, request.acting_rows)
    return vec, collector, _make_blocks(collector, request)


def _collect_in_workers(
    backend: Backend, source: Source, spec: EnvSpec, seed_of: SeedOf, request: CollectRequest
) -> Collected:
    """The policy acts inside the workers. If it can't, it acts here, for the workers that are ready."""
    from mission_gym.rollout import remote
    from mission_gym.rollout.central import ReadyCollector
    from mission_gym.rollout.worker import CollectSetup, carve_shared

    make = partial(backend.make_vector, source, spec, request.num_envs, seed_of)
    unit = request.acting_rows // spec.num_agents  # environments that are acted for together
    vec: Any
    if request.is_portable:
        setup = CollectSetup(
            request.make_policy, request.seed, request.acting_rows, request.num_steps, request.num_blocks,
            request.first_ready, request.first_row,
        )  # fmt: skip
        carve = carve_shared(spec, setup, request.num_envs)
        vec = make(unit=unit, service=remote.SERVICE, extra=setup, carve=carve)
        collector = remote.RemoteCollector(vec, spec, first_ready=request.first_ready)
        return vec, collector, list(collector.blocks)
    if not backend.chooses_workers or unit == request.num_envs:
        return _collect_here(backend, source, spec, seed_of, request)
    vec = make(unit=unit, first_ready=True)
    ready = ReadyCollector(vec, request.make_policy(), spec, request.seed, request.acting_rows)
    return vec, ready, _make_blocks(ready, request)


def _make_blocks(collector: Collector, request: CollectRequest) -> list[Block]:
    """Blocks in this process's memory."""
    from mission_gym.rollout.blocks import make_block

    sizes = (request.num_steps, collector.vec.num_rows)
    return [make_block(collector.spec, *sizes, state=collector.memory) for _ in range(request.num_blocks)]
