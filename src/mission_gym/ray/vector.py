"""Environments on the nodes of a cluster: their beginnings, states and numbers, in order.

Steps are made by the actors that hold them, whole segments at a time (`rollout/cluster.py`), so nothing is
sent or received step by step here, and what rows show stays where they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from mission_gym.data import Array, EnvSpec, Episode, StepBatch
from mission_gym.env.resume import SlotState
from mission_gym.errors import UsageError
from mission_gym.ray.actors import ActorPool
from mission_gym.vector.base import Options, SeedOf, Vector
from mission_gym.vector.crew import Lost
from mission_gym.vector.rows import make_rows

_WAIT_S = 0.5


class Beginning(NamedTuple):
    """Where the episodes of a share begin: where these states stand, or anew."""

    seed_of: SeedOf
    states: Sequence[SlotState] | None = None
    budget_s: float = 0.0  # for replays


class Begun(NamedTuple):
    """What a share tells once its episodes have begun."""

    ways: list[str]  # how each environment came back, where it did
    numbers: list[int]


class ClusterVec(Vector):
    """A vector whose environments are held by actors of a cluster, a share each. shares: the environments of
    each."""

    rows_step_alone = False

    def __init__(
        self, spec: EnvSpec, num_envs: int, seed_of: SeedOf, shares: list[range], crew: ActorPool
    ) -> None:
        super().__init__(spec, num_envs, seed_of)
        self.shares, self.crew = shares, crew
        self._numbers = [0] * num_envs  # of the running episodes
        self._ways: dict[int, list[str]] = {}  # of restored shares
        self._begun: set[int] = set()
        self._worker_restarts = [0] * len(shares)
        crew.begin = self._begin_again

    def hear(self, timeout_s: float) -> list[tuple[int, Any]]:
        """What shares have delivered, or Lost: its segments are gone, and its next episodes begin."""
        heard: list[tuple[int, Any]] = []
        for call, reply in self.crew.wait(timeout_s):
            if isinstance(reply, Lost):
                heard.append((call.share, reply))
            elif call.name == "begin":
                ids = self.shares[call.share]
                self._numbers[ids[0] : ids[-1] + 1] = reply.numbers
                self._ways[call.share] = reply.ways
                self._begun.add(call.share)
            else:
                heard.append((call.share, reply))
        return heard

    def count(self, episodes: Sequence[Episode]) -> None:
        """Take note of episodes that ended."""
        self._num_episodes += len(episodes)
        for episode in episodes:
            self._numbers[episode.env_id] = episode.number + 1

    def note_restarts(self, share: int, number: int) -> None:
        """Take note of how many workers of a share were replaced on its node so far."""
        self._worker_restarts[share] = number

    def grow(self) -> list[int]:
        """Move shares that were squeezed in to where there is room now, with their episodes; which ones."""
        found = self.crew.find_room()
        states = self.crew.ask(found, "state") if found else {}
        moved = [share for share, reply in states.items() if not isinstance(reply, Lost)]
        for share in moved:
            self.crew.move(share)
            self._begun.discard(share)
            self.crew.call(share, "begin", Beginning(self._seed_of, states[share], float("inf")))
        return moved

    def episode_numbers(self) -> list[int]:
        return list(self._numbers)

    def _begin_again(self, share: int) -> tuple[Beginning]:
        """The episodes after those that a share lost."""
        self._begun.discard(share)
        ids = self.shares[share]
        reason = "its node was lost"
        states = [SlotState("boundary", self._numbers[i], None, 0, 0.0, (), reason=reason) for i in ids]
        for env_id in ids:
            self._numbers[env_id] += 1
        return (Beginning(self._seed_of, states),)

    def _reset(
        self, env_ids: list[int] | None, seeds: Sequence[int | None] | None, options: Options
    ) -> StepBatch:
        if env_ids is not None or seeds is not None or options is not None:
            raise UsageError("environments on a cluster are reset all at once, with their own seeds")
        self._numbers = [0] * self.num_envs
        self._begin(dict.fromkeys(range(len(self.shares)), Beginning(self._seed_of)))
        return self._show()

    def _restore(self, states: Sequence[SlotState], budget_s: float) -> tuple[StepBatch, list[str]]:
        self._numbers = [state.episode for state in states]
        parts = {
            share: Beginning(self._seed_of, list(states[ids[0] : ids[-1] + 1]), budget_s)
            for share, ids in enumerate(self.shares)
        }
        self._begin(parts)
        late = ["boundary: its node is not there yet"]
        ways = [self._ways.get(share, late * len(ids)) for share, ids in enumerate(self.shares)]
        return self._show(), [way for each in ways for way in each]

    def _begin(self, beginnings: dict[int, Beginning]) -> None:
        """Begin the episodes of all shares; where some can do without the rest, wait for the first."""
        self._begun.clear()
        self._ways.clear()
        for share, beginning in beginnings.items():
            self.crew.call(share, "begin", beginning)
        while not self._begun or (self.crew.needs_all and len(self._begun) < len(beginnings)):
            self.hear(_WAIT_S)

    def _state(self, ids: list[int]) -> list[SlotState]:
        asked = set(ids)
        shares = [share for share, own in enumerate(self.shares) if asked.issuperset(own)]
        replies = self.crew.ask(shares, "state")
        states: list[SlotState] = []
        for share, own in enumerate(self.shares):
            reply = replies.get(share)
            if reply is None or isinstance(reply, Lost):
                why = "its node was lost"
                reply = [
                    SlotState(
                        "boundary", self._numbers[i], None, 0, 0.0, (), reason=self.abandoned.get(i, why)
                    )
                    for i in own
                ]
            states += reply
        return states

    def _send(self, actions: Array, ids: list[int]) -> None:
        raise UsageError("environments on a cluster are stepped by their actors; collect segments of them")

    def _recv(self) -> StepBatch:
        raise UsageError("environments on a cluster are stepped by their actors; collect segments of them")

    def _statistics(self) -> dict[str, Any]:
        return {
            "num_actors": self.crew.size,
            "worker_restarts": self.crew.num_restarts + sum(self._worker_restarts),
        }

    def _close(self) -> list[str]:
        return self.crew.close()

    def _show(self) -> StepBatch:
        """No rows: what they show stays with the actors."""
        return make_rows(self.spec, 0).as_batch(np.empty(0, np.int64), 0, {})
