"""What a cluster can make, on paper: steps per second against the number of actors, and what bounds them.

Pure arithmetic over measured costs. Four things work side by side, and the slowest of them is the rate: the
actors, which step; the driver, which makes a call for each segment and copies its columns; the object store,
which carries segments in and weights out; the learner, which takes every step once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

Bound = Literal["actors", "driver", "object store", "learner"]
_LEAST_S = 1e-12  # what costs nothing bounds nothing
KNEE = 0.9  # of the best rate that more actors could give


class ClusterCosts(NamedTuple):
    """What messages cost, as measured on a cluster."""

    latency_s: float  # of a call that is waited for
    call_s: float  # of the driver for a call among many
    put_s: float  # to store an object, beside its bytes
    put_byte_s: float
    get_byte_s: float  # to take a segment out of the store, and into a block
    carry_byte_s: float  # from one node's store to another's


class Work(NamedTuple):
    """What is made: an actor's segments, and what a step of them costs."""

    num_workers: int  # of an actor
    num_rows: int  # of an actor's segments
    num_steps: int  # of a row
    step_s: float  # of one environment and its policy, in one worker
    step_bytes: int  # of a transition in a block
    weights_bytes: int
    update_s: float  # of the learner, for each transition
    overlaps: bool = True  # the learner works beside the actors

    @property
    def segment(self) -> int:
        """Transitions of a call."""
        return self.num_rows * self.num_steps


@dataclass(frozen=True, slots=True)
class Prediction:
    """The rate with so many actors, and what it would be if only one thing bounded it."""

    num_actors: int
    steps_per_s: float
    bound: Bound
    limits: dict[Bound, float]


def predict_rate(costs: ClusterCosts, work: Work, num_actors: int) -> Prediction:
    """Steps per second of so many actors, each of whose segments goes into every block."""
    block = num_actors * work.segment
    own_s = work.segment * work.step_s / work.num_workers + costs.latency_s
    weights_s = costs.put_s + work.weights_bytes * costs.put_byte_s
    driver_s = weights_s + num_actors * (costs.call_s + work.segment * work.step_bytes * costs.get_byte_s)
    store_s = (block * work.step_bytes + num_actors * work.weights_bytes) * costs.carry_byte_s
    limits: dict[Bound, float] = {
        "actors": block / own_s,
        "driver": block / max(driver_s, _LEAST_S),
        "object store": block / max(store_s, _LEAST_S),
        "learner": 1.0 / max(work.update_s, _LEAST_S),
    }
    bound = min(limits, key=lambda name: limits[name])
    rate = limits[bound]
    if not work.overlaps:  # collecting and learning take turns
        collect = min(rate for name, rate in limits.items() if name != "learner")
        rate = 1.0 / (1.0 / collect + work.update_s)
    return Prediction(num_actors, rate, bound, limits)


def find_knee(predictions: Sequence[Prediction]) -> Prediction:
    """The fewest actors that come close to the best rate: more would hardly help."""
    best = max(each.steps_per_s for each in predictions)
    return next(each for each in predictions if each.steps_per_s >= KNEE * best)


def list_sizes(most: int) -> list[int]:
    """Numbers of actors worth a line: powers of two, and the largest."""
    return sorted({1 << power for power in range(most.bit_length())} | {most})
