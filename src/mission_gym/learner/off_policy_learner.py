"""The learner of off-policy algorithms: replay bookkeeping around an algorithm's gradient steps.

A block goes into the replay, then as many gradient steps run as the replay ratio asks for. They are counted
over all valid transitions, so the ratio does not depend on the number of environments. A stop request is seen
between gradient steps: finished ones are kept, and the next call with the same block continues there.
Everything that follows a schedule goes by the absolute step. An algorithm adds its networks, its loss and its
exploration.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np

from mission_gym.data import Array, Block, Leaves, UpdateStats, Weights
from mission_gym.errors import NotFiniteError
from mission_gym.learner.blocks import check_finite, with_prefix
from mission_gym.learner.contract import Learner, Schedule, schedule_of
from mission_gym.learner.off_policy import ReplaySection, settled_ratio
from mission_gym.learner.replay import Replay, ReplayLayout
from mission_gym.policy import Encoded, PolicySpec
from mission_gym.streams import Streams

if TYPE_CHECKING:
    from mission_gym.learner.replay_loops import Priorities

# Transitions gathered at once: few calls, and still in the cache. Images are larger and slower to learn from,
# and a stop request waits for one call.
_GATHER_ROWS, _GATHER_IMAGES = 4096, 256
_MOST_SKIPPED = 10  # consecutive gradient steps that are not finite before the run fails
_NEAR = 1.25  # factor by which a standard deviation may differ from the unit before it replaces it
_FLOOR = 1e-8  # rewards with a smaller spread give no scale
_SCALE = "return_scale.moments"


class ReturnScale:
    """The unit of values: the standard deviation of discounted sums of rewards.

    In this unit, errors are about 1 for every task, so a loss that is linear beyond 1 and a clipped gradient
    mean the same everywhere. Rewards are neither clipped nor centred. The unit stays while the standard
    deviation is near it, so that targets do not drift. `add` every block, then `move`.
    """

    def __init__(self, num_columns: int, gamma: float) -> None:
        self.gamma = gamma
        self.sums = np.zeros(num_columns)  # of the running episodes
        self._moments = np.zeros(3)  # number of sums, their mean, sum of squared differences from it
        self.unit = 1.0

    @property
    def std(self) -> float:
        count, _, squares = self._moments
        return math.sqrt(squares / count) if count else 0.0

    def add(self, block: Block) -> None:
        """Add the rewards of a full block."""
        from mission_gym.learner.replay_loops import sum_rewards  # loads numba

        ended = block.terminated | block.truncated
        sum_rewards(block.reward, ended, block.valid, self.gamma, self.sums, self._moments)

    def move(self, has_learned: bool) -> float:
        """Update the unit; returns the factor that keeps values constant in units of reward.

        Before anything was learned, the unit is the standard deviation and values are random numbers: scaling
        them by a tiny or huge factor would only slow down learning.
        """
        before, now = self.unit, self.std
        if now > _FLOOR and not (has_learned and before / _NEAR <= now <= before * _NEAR):
            self.unit = now
        return before / self.unit if has_learned else 1.0

    def arrays(self) -> dict[str, Array]:
        return {"return_scale.sums": self.sums.copy(), _SCALE: np.array([*self._moments, self.unit])}

    def load(self, arrays: dict[str, Array]) -> None:
        self.sums = np.array(arrays["return_scale.sums"])
        *moments, self.unit = arrays[_SCALE].tolist()
        self._moments = np.array(moments)


@dataclass(slots=True)
class Transitions:
    """The transitions of some gradient steps, N = steps x batch_size, in the order of the steps."""

    inputs: Encoded
    action: Array  # [N, K], as stored
    reward: Array  # float32 [N], n-step, in the unit of values
    discount: Array  # float32 [N], 0 if terminated
    next_inputs: Encoded
    next_mask: Array | None  # bool [N, M]
    weight: Array | None  # float32 [N], of prioritised replay; None: all 1


class StepStats(NamedTuple):
    """The statistics of some gradient steps."""

    table: Array  # float64 [steps, columns of the algorithm]
    errors: Array  # float32 [N]: the priorities of the transitions
    num_skipped: int = 0  # steps that were not finite and were skipped


class OffPolicyLearner(Learner):
    """Learns from a replay; its extras are the replay.

    section: its hyperparameters. total_steps: of the run; schedules reach their end there.
    NUM_STATS, NORM: the columns of an algorithm's table of gradient steps, and that of the gradient norm.
    REMEDY: what to do if gradients are not finite.
    """

    keeps_updates = True  # overwritten transitions can't be restored
    has_extras = True
    NUM_STATS: ClassVar[int]
    NORM: ClassVar[int]
    REMEDY: ClassVar[str]

    def __init__(
        self,
        spec: PolicySpec,
        section: ReplaySection,
        layout: ReplayLayout,
        *,
        total_steps: int,
        seed: int,
        normalize_returns: bool,
    ) -> None:
        super().__init__(spec, seed)
        self.learning_starts = section.learning_starts
        self.scale = ReturnScale(layout.num_columns, layout.gamma) if normalize_returns else None
        self.section = section
        self._total_steps = total_steps
        self._beta = Schedule(section.prioritized_beta, 1.0, total_steps)
        self._streams = Streams()
        self._weights: Weights | None = None  # before the update in progress
        self._previous_weights: Weights | None = None  # before the last update
        self._skipped = self._skipped_in_a_row = 0  # gradient steps that were not finite
        self._layout = layout
        rows = _GATHER_ROWS if spec.is_flat else _GATHER_IMAGES
        self._steps_at_once = 1 if section.prioritized else max(1, rows // section.batch_size)
        self._begin_replay()

    @abstractmethod
    def _learn(self, batch: Transitions, learning_rate: float, first: int) -> StepStats:
        """Run one gradient step per `batch_size` transitions. first: steps of this update before them."""

    @abstractmethod
    def _describe(self, means: list[float] | None) -> dict[str, float]:
        """The algorithm's metrics, from the means of its table; None before it learns."""

    def _finish_update(self, after: int) -> None:
        """Called at the end of an update, with the step that it reaches."""

    @property
    def unit(self) -> float:
        """The unit of values and errors, in units of reward."""
        return 1.0 if self.scale is None else self.scale.unit

    def _begin_replay(self) -> None:
        """Start with an empty replay at the present step."""
        section = self.section
        self.replay = Replay(self._layout)
        self.priorities: Priorities | None = None
        if section.prioritized:
            from mission_gym.learner.replay_loops import Priorities  # loads numba

            slots = self.replay.length * self.replay.num_columns
            self.priorities = Priorities(slots, section.prioritized_alpha)
        self._first_step = self.step  # learning starts `learning_starts` steps later
        self._num_transitions = 0  # valid transitions since learning started
        self._num_steps_done = 0  # gradient steps for them, before this update
        self._is_block_stored = False  # whether the block of this update is in the replay
        self._table = np.zeros((0, self.NUM_STATS))  # statistics of this update's gradient steps

    def prime(self, obs: Leaves) -> None:
        super().prime(obs)
        self._weights = None

    def weights(self) -> Weights:
        """The weights for collecting the next block: those before an unfinished update."""
        if self._weights is None:
            self._weights = Weights(self.version, self.policy(), self.exploration())
        return self._weights

    def previous_weights(self) -> Weights | None:
        return self._previous_weights

    def load_previous_weights(self, weights: Weights) -> None:
        self._previous_weights = weights

    def undo(self) -> None:
        raise AssertionError("updates from a replay are kept")

    def update(self, block: Block, stop: Callable[[], bool] = lambda: False) -> UpdateStats | None:
        """Store a full block and run the gradient steps that are due; None if stopped."""
        after = self.step + block.reward.size
        if not self._is_block_stored:
            check_finite(block, self.version)
            self.weights()
            self._store(block, after)
            if self.scale is not None:
                self.scale.add(block)
                self._rescale(self.scale.move(has_learned=self.gradient_steps > 0))
        learning_rate = schedule_of(self.section, "learning_rate", self._total_steps).at(self.step)
        # Due steps are counted over all transitions so far, which carries fractions without drift.
        due = math.floor(settled_ratio(self.section) * self._num_transitions + 1e-9) - self._num_steps_done
        while len(self._table) < due:
            if stop():
                return None
            num_steps = min(self._steps_at_once, due - len(self._table))
            self._table = np.concatenate([self._table, self._run_steps(num_steps, learning_rate)])
        self._finish_update(after)
        if self.encoder.normalizer is not None:
            valid = tuple(leaf[: block.num_steps][block.valid] for leaf in block.obs)
            self.encoder.normalizer.merge(self.encoder.flatten(valid))
        metrics = self._metrics(learning_rate)
        made = self._count_made(self._table) if self._skipped else due
        self._num_steps_done += due
        self._is_block_stored, self._table = False, self._table[:0]
        self._previous_weights, self._weights = self._weights, None
        self.version += 1
        self.step = after
        self.gradient_steps += made
        return UpdateStats(made, metrics)

    def _store(self, block: Block, after: int) -> None:
        """Store the block, and count the transitions that gradient steps are due for."""
        stored = self.replay.store(block)
        if self.priorities is not None:
            self.priorities.clear(self.replay.slots_in(stored.lost))
            self.priorities.add(self.replay.slots_in(stored.eligible, valid=True))
        num_counted = after - max(self.step, self._first_step + self.learning_starts)
        if num_counted > 0 and self.replay.can_draw:
            self._num_transitions += int(np.count_nonzero(block.valid.ravel()[-num_counted:]))
        self._is_block_stored = True

    def _rescale(self, factor: float) -> None:
        """Multiply all values, and the errors that priorities are made of, by a factor."""
        if factor != 1.0:
            self.kernel.rescale_values(factor)
            if self.priorities is not None:
                self.priorities.rescale(factor)

    def _run_steps(self, num_steps: int, learning_rate: float) -> Array:
        """Sample transitions, learn from them and update their priorities; returns the table of the steps."""
        first, size = len(self._table), self.section.batch_size
        rng = self._streams.begin(self.seed, "replay", self.version, first)
        weight = None
        if self.priorities is None:
            ids = self.replay.draw(rng, num_steps * size)
        else:
            slots, weight = self.priorities.draw(rng.random(size), self._beta.at(self.step))
            ids = self.replay.ids_of(slots)
        sampled = self.replay.gather(ids)
        both, num, reward = self.encoder.encode(sampled.both), len(ids), sampled.reward
        if self.scale is not None:
            reward *= np.float32(1.0 / self.scale.unit)
        batch = Transitions(
            inputs=both.rows(slice(num)),
            action=sampled.action,
            reward=reward,
            discount=sampled.discount,
            next_inputs=both.rows(slice(num, None)),
            next_mask=sampled.next_mask,
            weight=weight,
        )
        stats = self._learn(batch, learning_rate, first)
        if stats.num_skipped:
            self._count_skipped(stats.table)
            return stats.table  # errors that are not finite can't be priorities
        self._skipped_in_a_row = 0
        if self.priorities is not None:
            held = self.replay.holds(ids)
            self.priorities.update(self.replay.slots_of(ids[held]), stats.errors[held])
        return stats.table

    def _count_made(self, table: Array) -> int:
        """The gradient steps of a table that were finite."""
        return int(np.count_nonzero(np.isfinite(table[:, self.NORM])))

    def _count_skipped(self, table: Array) -> None:
        """Count skipped gradient steps; NotFiniteError after many in a row."""
        for norm in table[:, self.NORM].tolist():
            if math.isfinite(norm):
                self._skipped_in_a_row = 0
                continue
            self._skipped += 1
            self._skipped_in_a_row += 1
            if self._skipped_in_a_row == _MOST_SKIPPED:
                self._abandon_update(np.concatenate([self._table, table]))
                raise NotFiniteError(
                    f"gradient norm is {norm} in update {self.version}, as in the {_MOST_SKIPPED - 1}"
                    " gradient steps before; a network with such a gradient is not updated."
                    f" {self.REMEDY}, then branch"
                )

    def _abandon_update(self, table: Array) -> None:
        """End the update in progress; its finite steps count."""
        self._num_steps_done += len(table)
        self.gradient_steps += self._count_made(table)
        self._is_block_stored, self._table, self._weights = False, table[:0], None

    def _metrics(self, learning_rate: float) -> dict[str, float]:
        metrics = {
            "train/n_updates": float(self.version + 1),
            "train/replay_size": float(self.replay.num_valid),
            "train/skipped_steps": float(self._skipped),
        }
        table = self._table
        if self._skipped:
            table = table[np.isfinite(table[:, self.NORM])]
        means = None
        if len(table):
            means = (table[0] if len(table) == 1 else table.mean(axis=0)).tolist()
            metrics |= {
                "train/grad_norm": means[self.NORM],
                "train/learning_rate": learning_rate,
                "train/replay_ratio": (self._num_steps_done + len(self._table)) / self._num_transitions,
            }
            if self.scale is not None:
                metrics["train/return_scale"] = self.scale.unit
            if self.priorities is not None:
                metrics["train/beta"] = self._beta.at(self.step)
        return metrics | self._describe(means)

    def arrays(self) -> dict[str, Array]:
        """The state without the replay: networks, optimizer, statistics, counters."""
        skipped = np.array([self._skipped, self._skipped_in_a_row], np.int64)
        scale = {} if self.scale is None else self.scale.arrays()
        return super().arrays() | scale | {"skipped": skipped}

    def load_arrays(self, arrays: dict[str, Array]) -> None:
        """Load the state that `arrays` returned. The replay is empty until it is loaded."""
        super().load_arrays(arrays)
        if self.scale is not None:
            self.scale.load(arrays)
        self._skipped, self._skipped_in_a_row = (int(x) for x in arrays["skipped"])
        self._weights = self._previous_weights = None
        self._begin_replay()

    def load_from_parent(self, arrays: dict[str, Array]) -> None:
        """Load the parent's values, in this run's unit; its running sums belong to other environments."""
        unit = float(arrays[_SCALE][-1]) if _SCALE in arrays else 1.0
        fresh = {} if self.scale is None else self.scale.arrays()
        self.load_arrays(fresh | arrays)
        if self.scale is None:
            self._rescale(unit)
        else:
            self.scale.sums = np.zeros(self._layout.num_columns)

    def extras(self) -> dict[str, Array]:
        """The replay, its priorities and the progress of the update."""
        if not self.section.save_replay:
            return {}
        progress = np.array(
            [self._first_step, self._num_transitions, self._num_steps_done, self._is_block_stored], np.int64
        )
        arrays = self.replay.arrays()
        if self.priorities is not None:
            arrays |= self.priorities.arrays(arrays["reward"].size)
        if self._is_block_stored:
            arrays |= {f"began/{name}": array for name, array in self.weights().pack().items()}
        return arrays | {"progress": progress, "update": self._table}

    def load_extras(self, arrays: dict[str, Array] | None) -> str:
        if arrays is None:
            if not self.step:
                return ""
            starts = self.learning_starts
            return f"the replay was not saved and is lost; learning continues after {starts} steps"
        self.replay.load(arrays)
        if self.priorities is not None:
            self.priorities.load(arrays)
        self._first_step, self._num_transitions, self._num_steps_done, stored = (
            int(x) for x in arrays["progress"]
        )
        self._is_block_stored, self._table = bool(stored), np.array(arrays["update"])
        if self._is_block_stored:
            self._weights = Weights.unpack(self.version, with_prefix(arrays, "began/"))
        return ""
