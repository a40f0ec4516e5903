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
    is_portable: bool = True  # whether the policy can act in another process
    first_column: int = 0  # of these environments in a larger vector, which draws the noise


Collected: TypeAlias = "tuple[Vector, BlockCollector, list[Block]]"  # the caller closes the vector


def make_collector(
    backend: Backend, source: Source, spec: EnvSpec, seed_of: SeedOf, request: CollectRequest
) -> Collected:
    """The vector, its collector and the blocks. The policy acts in the backend's processes if both can."""
    if backend.make_collector is not None:
        collected: Collected = backend.make_collector(source, spec, seed_of, request)
        return collected
    make = partial(backend.make_vector, source, spec, request.num_envs, seed_of)
    group_size = request.acting_rows // spec.num_agents
    vec: Any
    if backend.acts_itself and request.is_portable:
        from mission_gym.rollout.remote import WorkerCollector
        from mission_gym.rollout.worker import extend_workers

        vec = make(group_size=group_size, extension=extend_workers(spec, request))
        collector = WorkerCollector(vec, spec, first_ready=request.first_ready)
        return vec, collector, list(collector.blocks)
    from mission_gym.rollout.collector import Collector, ReadyCollector

    kind: type[Collector] = Collector
    if backend.acts_itself and backend.chooses_workers and group_size < request.num_envs:
        kind, make = ReadyCollector, partial(make, group_size=group_size, first_ready=True)
    vec = make()
    local = kind(vec, request.make_policy(), spec, request.seed, request.acting_rows)
    return vec, local, [local.make_short(request.num_steps) for _ in range(request.num_blocks)]
