"""DQN, in the order of its equations: store, draw, targets, gradient steps, priorities, target network.

A block comes in with raw observations and rewards and goes into the replay; then as many gradient steps are
made as the replay ratio asks for. A stop request is seen between them: what was made is kept, and the next
call with the same block goes on there. Everything that follows a schedule goes by the absolute step.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from mission_gym.algorithms.dqn.kernel import (
    ERROR,
    GRAD_NORM,
    LOSS,
    NUM_STATS,
    VALUE,
    Batches,
    QKernel,
    QSettings,
    QStats,
    make_settings,
)
from mission_gym.algorithms.dqn.section import SettledDqn
from mission_gym.data import Array, Block, Leaves, UpdateStats, Weights
from mission_gym.errors import NotFiniteError
from mission_gym.learner.blocks import check_finite, with_prefix
from mission_gym.learner.contract import Learner
from mission_gym.learner.replay import Replay, ReplayLayout
from mission_gym.learner.schedule import Schedule, schedule_of
from mission_gym.policy import PolicySpec
from mission_gym.policy.choosing import EPSILON
from mission_gym.streams import Streams, generator

# Transitions that are gathered at once: few calls, and still in the cache. Pictures are larger, and slower to
# learn from, and a stop request waits for no more than this.
_GATHER_ROWS, _GATHER_PICTURES = 4096, 256
_HEADS = ("q.2.", "value.2.")  # the last layer of each stream, by the names of its parameters
_SCALE = "value_scale.moments"
_NO_STEPS = np.zeros((0, NUM_STATS))
_PATIENCE = 10  # gradient steps in a row that are not finite: then something is wrong for good


class DqnLearner(Learner):
    """See `learner.contract.Learner`; its extras are the replay.

    section: its hyperparameters; docs/algorithms/dqn.md explains each. total_steps: of the run, over which
    schedules move.
    """

    kernel: QKernel
    keeps_updates = True  # what the replay has overwritten can't be put back
    has_extras = True

    def __init__(
        self,
        kernel: QKernel,
        spec: PolicySpec,
        section: SettledDqn,
        layout: ReplayLayout,
        *,
        total_steps: int,
        seed: int,
        normalize_returns: bool,
    ) -> None:
        from mission_gym.learner.scale import ValueScale  # numba, only where it is used

        super().__init__(spec, seed)
        self.kernel = kernel
        self.section = section
        self.learning_starts = section.learning_starts
        self._learning_rate = schedule_of(section, "learning_rate", total_steps)
        falls = max(1, round(section.exploration_fraction * total_steps))
        self._epsilon = Schedule(section.exploration_initial_eps, section.exploration_final_eps, falls)
        if section.exploration == "noisy":
            self._epsilon = Schedule(0.0, 0.0, 1)
        self._beta = Schedule(section.prioritized_beta, 1.0, total_steps)
        self._streams = Streams()
        self.scale = ValueScale(layout.num_envs, layout.gamma) if normalize_returns else None
        self._weights: Weights | None = None  # before the update under way
        self._behind: Weights | None = None  # before the last one
        self._skipped = self._skipped_in_a_row = 0  # gradient steps that were not finite, and so not made
        self._layout = layout
        rows = _GATHER_ROWS if spec.is_flat else _GATHER_PICTURES
        self._steps_at_once = 1 if section.prioritized else max(1, rows // section.batch_size)
        self._begin_replay()

    def _begin_replay(self) -> None:
        """An empty replay, from this step on."""
        self.replay = Replay(self._layout)
        self.priorities = None
        if self.section.prioritized:
            from mission_gym.learner.priorities import Priorities  # numba, only where it is used

            slots = self.replay.num_rows * self.replay.num_envs
            self.priorities = Priorities(slots, self.section.prioritized_alpha)
        self._begun = self.step  # learning starts so many steps behind it
        self._counted = 0  # valid transitions since learning started
        self._paid = 0  # gradient steps made for them, before this update
        self._stored = False  # whether the block in hand is in the replay
        self._table = _NO_STEPS  # statistics of the gradient steps of this update

    def prime(self, obs: Leaves) -> None:
        super().prime(obs)
        self._weights = None

    def weights(self) -> Weights:
        """What collects the next block: the weights before the update under way, if one is half made."""
        if self._weights is None:
            self._weights = Weights(self.version, self.policy())
        return self._weights

    def previous_weights(self) -> Weights | None:
        return self._behind

    def load_previous_weights(self, arrays: dict[str, Array]) -> None:
        self._behind = Weights(self.version - 1, arrays)

    def undo(self) -> None:
        raise AssertionError("updates of DQN are kept")

    def policy(self) -> dict[str, Array]:
        return super().policy() | {EPSILON: np.array(self._epsilon.at(self.step))}

    def update(self, block: Block, stop: Callable[[], bool] = lambda: False) -> UpdateStats | None:
        """Store a full block and make the gradient steps that are due; None if a stop was asked for."""
        after = self.step + block.num_steps * block.num_columns
        if not self._stored:
            check_finite(block, self.version)
            self.weights()
            self._store(block, after)
            self._see_rewards(block)
        settings = make_settings(self.section, self.section.batch_size, self._learning_rate.at(self.step))
        # The steps due are those of all transitions together, so the fraction is carried without drift.
        due = math.floor(self.section.replay_ratio * self._counted + 1e-9) - self._paid
        while len(self._table) < due:
            if stop():
                return None
            stats = self._learn(min(self._steps_at_once, due - len(self._table)), settings)
            self._table = np.concatenate([self._table, stats.table])

        interval = self.section.target_update_interval
        if self.section.tau == 1.0 and after // interval > self.step // interval:
            self.kernel.copy_to_target()
        if self.encoder.normalizer is not None:
            seen = tuple(leaf[: block.num_steps][block.valid] for leaf in block.obs)
            self.encoder.normalizer.merge(self.encoder.flatten(seen))
        metrics = self._metrics(settings)
        made = _count_made(self._table) if self._skipped else due
        self._paid += due
        self._stored, self._table = False, _NO_STEPS
        self._behind, self._weights = self._weights, None
        self.version += 1
        self.step = after
        self.gradient_steps += made
        return UpdateStats(made, metrics)

    def _store(self, block: Block, after: int) -> None:
        """Put the block into the replay, and count the transitions that gradient steps are owed for."""
        stored = self.replay.store(block)
        if self.priorities is not None:
            self.priorities.clear(self.replay.slots_in(stored.lost))
            self.priorities.add(self.replay.slots_in(stored.ripe, valid=True))
        behind = after - max(self.step, self._begun + self.learning_starts)
        if behind > 0 and self.replay.can_draw:
            self._counted += int(np.count_nonzero(block.valid.ravel()[-behind:]))
        self._stored = True

    def _see_rewards(self, block: Block) -> None:
        """Take rewards into the scale; where its unit moves, values stay what they are in units of reward."""
        if self.scale is not None:
            self.scale.see(block)
            self._rescale(self.scale.move())

    def _rescale(self, factor: float) -> None:
        """Multiply all values, of both networks, by a factor."""
        if factor != 1.0:
            kernel = self.kernel
            kernel.load_parameters(_scale_values(kernel.parameters(), factor))
            kernel.load_target(_scale_values(kernel.target(), factor))
            kernel.load_optimizer(_scale_moments(kernel.optimizer(), factor))

    @property
    def _unit(self) -> float:
        """Of values and errors, in units of reward."""
        return 1.0 if self.scale is None else self.scale.unit

    def _learn(self, num_steps: int, settings: QSettings) -> QStats:
        """Draw transitions, make gradient steps on them, and return their errors to the priorities."""
        made, size = len(self._table), settings.batch_size
        rng = self._streams.begin(self.seed, "replay", self.version, made)
        weight = None
        if self.priorities is None:
            ids = self.replay.draw(rng, num_steps * size)
        else:
            beta = self._beta.at(self.step)
            slots, weight = self.priorities.draw(rng.random(size), beta)
            ids = self.replay.ids_of(slots)
        sampled = self.replay.gather(ids)
        both, num, reward = self.encoder.encode(sampled.both), len(ids), sampled.reward
        if self.scale is not None:
            reward *= np.float32(1.0 / self.scale.unit)
        batches = Batches(
            inputs=both.rows(slice(num)),
            action=sampled.action,
            reward=reward,
            discount=sampled.discount,
            next_inputs=both.rows(slice(num, None)),
            next_mask=sampled.next_mask,
            weight=weight,
        )
        stats = self.kernel.learn(
            batches, settings, lambda place: generator(self.seed, "noisy", self.version, made + place)
        )
        if stats.num_skipped:
            self._count_skipped(stats.table)
            return stats  # errors that are not finite are no priorities
        self._skipped_in_a_row = 0
        if self.priorities is not None:
            held = self.replay.holds(ids)
            self.priorities.update(self.replay.slots_of(ids[held]), stats.errors[held])
        return stats

    def _count_skipped(self, table: Array) -> None:
        """Count gradient steps that were not finite, and were not made; fail at many in a row."""
        for row in table:
            if math.isfinite(row[GRAD_NORM]):
                self._skipped_in_a_row = 0
                continue
            self._skipped += 1
            self._skipped_in_a_row += 1
            if self._skipped_in_a_row == _PATIENCE:
                self._give_up(np.concatenate([self._table, table]))
                raise NotFiniteError(
                    f"gradient norm is {row[GRAD_NORM]} in update {self.version} (mean value"
                    f" {row[VALUE]:.3g}), as in the {_PATIENCE - 1} gradient steps before; none was made."
                    " Lower learning_rate, scale the rewards or set loss=huber, then branch"
                )

    def _give_up(self, table: Array) -> None:
        """Leave the update under way; what was made of it counts."""
        self._paid += len(table)
        self.gradient_steps += _count_made(table)
        self._stored, self._table, self._weights = False, _NO_STEPS, None

    def _metrics(self, settings: QSettings) -> dict[str, float]:
        metrics = {
            "rollout/exploration_rate": self._epsilon.at(self.step),
            "train/n_updates": float(self.version + 1),
            "train/replay_size": float(self.replay.num_valid),
            "train/skipped_steps": float(self._skipped),
        }
        table = self._table
        if self._skipped:
            table = table[np.isfinite(table[:, GRAD_NORM])]
        if not len(table):
            return metrics
        means = (table[0] if len(table) == 1 else table.mean(axis=0)).tolist()
        metrics |= {
            "train/loss": means[LOSS],
            "train/q_mean": means[VALUE] * self._unit,
            "train/td_error": means[ERROR] * self._unit,
            "train/grad_norm": means[GRAD_NORM],
            "train/learning_rate": settings.learning_rate,
            "train/replay_ratio": (self._paid + len(self._table)) / self._counted,
        }
        if self.scale is not None:
            metrics["train/return_scale"] = self.scale.unit
        if self.priorities is not None:
            metrics["train/beta"] = self._beta.at(self.step)
        return metrics

    def arrays(self) -> dict[str, Array]:
        """What the learner goes on from but for the replay: networks, optimizer, statistics, counters."""
        target = {f"target/{name}": array for name, array in self.kernel.target().items()}
        skipped = np.array([self._skipped, self._skipped_in_a_row], np.int64)
        scale = {} if self.scale is None else self.scale.arrays()
        return super().arrays() | target | scale | {"skipped": skipped}

    def load_arrays(self, arrays: dict[str, Array]) -> None:
        """Take back what `arrays` gave; the replay begins empty, unless it is loaded next."""
        super().load_arrays(arrays)
        self.kernel.load_target(with_prefix(arrays, "target/"))
        if _SCALE not in arrays:
            self.scale = None  # a run of before learned from raw rewards, and goes on with them
        elif self.scale is not None:
            self.scale.load(arrays)
        # Before it counted them, the first such step ended a run.
        self._skipped, self._skipped_in_a_row = (int(x) for x in arrays.get("skipped", (0, 0)))
        self._weights = self._behind = None
        self._begin_replay()

    def adopt(self, arrays: dict[str, Array]) -> None:
        """The parent's values, in our unit; its running sums are of other environments."""
        scale, fresh = self.scale, {} if self.scale is None else self.scale.arrays()
        theirs = float(arrays[_SCALE][-1]) if _SCALE in arrays else 1.0
        self.load_arrays(fresh | arrays)
        self.scale = scale
        if scale is None:
            self._rescale(theirs)
        else:
            scale.sums = np.zeros(self._layout.num_envs)

    def lose_episode(self, env_id: int) -> None:
        if self.scale is not None:
            self.scale.sums[env_id] = 0.0

    def extras(self) -> dict[str, Array]:
        """The replay, its priorities and how far the update has come."""
        if not self.section.save_replay:
            return {}
        progress = np.array([self._begun, self._counted, self._paid, self._stored], np.int64)
        arrays = self.replay.arrays()
        if self.priorities is not None:
            arrays |= self.priorities.arrays(arrays["action"].size)
        if self._stored:
            arrays |= {f"began/{name}": array for name, array in self.weights().arrays.items()}
        return arrays | {"progress": progress, "update": self._table}

    def load_extras(self, arrays: dict[str, Array] | None) -> str:
        if arrays is None:
            if not self.step:
                return ""
            return (
                f"the replay was not saved and is lost; learning goes on after {self.learning_starts} steps"
            )
        self.replay.load(arrays)
        if self.priorities is not None:
            self.priorities.load(arrays)
        self._begun, self._counted, self._paid, stored = (int(x) for x in arrays["progress"])
        self._stored, self._table = bool(stored), np.array(arrays["update"])
        if self._stored:
            self._weights = Weights(self.version, with_prefix(arrays, "began/"))
        return ""


def _count_made(table: Array) -> int:
    """The gradient steps of a table that were finite, and so were made."""
    return int(np.count_nonzero(np.isfinite(table[:, GRAD_NORM])))


def _scale_values(arrays: dict[str, Array], factor: float) -> dict[str, Array]:
    """Parameters of a network whose outputs are to be `factor` times what they were."""
    return {name: array * factor if name.startswith(_HEADS) else array for name, array in arrays.items()}


def _scale_moments(arrays: dict[str, Array], factor: float) -> dict[str, Array]:
    """Adam's moments for the same network: errors are `factor` times what they were, and so are the gradients
    of the heads; those below also pass the heads' weights, and are so twice."""
    scaled = {}
    for name, array in arrays.items():
        moment, _, parameter = name.partition(".")
        power = {"mean": 1, "square": 2}.get(moment, 0) * (1 if parameter.startswith(_HEADS) else 2)
        scaled[name] = (array * factor**power).astype(array.dtype)
    return scaled
