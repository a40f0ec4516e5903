"""A run's way through the stages of its curriculum.

The position is part of `RunState`, so checkpoints store it. A move is decided between updates, from the
episodes that were learned from, and applies to blocks that start after it; a block that a stop interrupted
continues in the stage in which it started. So equal runs are equal on every backend. Every environment
contributes the same number of episodes, because the first to finish are the short ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import Any, Literal

from mission_gym.config.curriculum import Curriculum, Rule
from mission_gym.data import Episode
from mission_gym.errors import RunStateError
from mission_gym.rollout.collector import BlockCollector
from mission_gym.run.snapshot import RunState, StageState

_OWN = "episode/"  # prefix of the environment's own episode metrics
Kind = Literal["until", "back"]


class Progression:
    """Moves one run through its stages; does nothing without a curriculum."""

    def __init__(self, curriculum: Curriculum | None, state: RunState, collector: BlockCollector) -> None:
        self._curriculum, self._run_state, self._collector = curriculum, state, collector
        if curriculum is not None:
            collector.stage_of = self._stage_of
            self.begin_at(0, None)

    @property
    def _state(self) -> StageState:
        state = self._run_state.curriculum
        assert state is not None
        return state

    def begin_at(self, step: int, state: StageState | None) -> None:
        """Start with the first stage, or where another run was; before the first episode. The other run's
        episodes do not count: those that it cut were the long ones."""
        if self._curriculum is not None:
            stage, began_at = (0, step) if state is None else (state.stage, state.began_at)
            self._run_state.curriculum = StageState(stage, began_at)
            self._collector.vec.enter_stage(self._state.stage)

    def restore(self, state: RunState, stages: Iterable[int]) -> None:
        """Continue from a checkpoint, before its environments are restored. stages: of their episodes."""
        self._run_state = state
        if self._curriculum is None:
            return
        changed = "config.yaml was changed: restore it, or branch"
        if state.curriculum is None:
            raise RunStateError(f"the checkpoint is of a run without a curriculum; {changed}")
        highest, count = max([state.curriculum.stage, *stages]), len(self._curriculum.stages)
        if highest >= count:
            raise RunStateError(
                f"the checkpoint is in stage {highest + 1}, and the curriculum has {count}; {changed}"
            )
        block = self._state.block
        self._collector.vec.enter_stage(self._state.stage if block is None else block[1])

    def _stage_of(self, number: int) -> int:
        """The stage in which episodes of a block start. Blocks before training have negative numbers."""
        state = self._state
        if number < 0:
            return state.stage
        if state.block is None or state.block[0] != number:
            state.block = number, state.stage
        return state.block[1]

    def see(self, episodes: Sequence[Episode]) -> None:
        """Count episodes that were learned from; only those of the current stage matter."""
        for kind, rule in self._rules():
            if (compared := rule.comparison) is None:
                continue
            windows, most = self._windows(kind), self._count_per_env(rule)
            for episode in episodes:
                value = _read(episode, compared.name)
                if value is not None and not episode.failed and episode.stage == self._state.stage:
                    window = windows[episode.env_id]
                    window.append(value)
                    del window[:-most]

    def metrics(self, step: int) -> dict[str, float]:
        """A row's metrics: the stage from 1, the steps since it started, and the metric of its rule."""
        if self._curriculum is None:
            return {}
        state = self._state
        metrics: dict[str, float] = {"stage": state.stage + 1, "stage_steps": step - state.began_at}
        for kind, rule in self._rules():
            if kind == "until" and rule.comparison is not None:
                metrics["episodes"] = sum(map(len, self._windows(kind)))
                if values := self._full_window(kind, rule):
                    metrics["metric"] = fmean(values)
        return {f"curriculum/{name}": value for name, value in metrics.items()}

    def move(self, step: int) -> dict[str, Any] | None:
        """Enter the next or previous stage if a rule applies; the fields of the event, else None."""
        if self._curriculum is None:
            return None
        before = self._state.stage
        for kind, rule in self._rules():
            if cause := self._find_cause(rule, kind, step):
                to = before + (1 if kind == "until" else -1)
                self._run_state.curriculum = StageState(to, step, block=self._state.block)
                labels = self._curriculum.labels
                event = {"before": before + 1, "stage": to + 1, "of": len(labels)}
                return {**event, "name": labels[to], "why": cause}
        return None

    def status(self) -> dict[str, Any] | None:
        """The entry of status.json: the stage from 1, the number of stages, and its name."""
        if self._curriculum is None:
            return None
        number, labels = self._state.stage + 1, self._curriculum.labels
        return {"number": number, "of": len(labels), "name": labels[number - 1]}

    def _rules(self) -> list[tuple[Kind, Rule]]:
        """The rules of the current stage."""
        if self._curriculum is None:
            return []
        stage = self._curriculum.stages[self._state.stage]
        rules: list[tuple[Kind, Rule | None]] = [("until", stage.until), ("back", stage.back)]
        return [(kind, rule) for kind, rule in rules if rule is not None]

    def _windows(self, kind: Kind) -> list[list[float]]:
        """The values of the last episodes, by environment."""
        windows = self._state.until if kind == "until" else self._state.back
        if not windows:
            windows += [[] for _ in range(self._collector.vec.num_envs)]
        return windows

    def _count_per_env(self, rule: Rule) -> int:
        """Episodes of each environment in a rule's mean: together at least those of the rule."""
        num_envs: int = self._collector.vec.num_envs
        return math.ceil((rule.episodes or 1) / num_envs)

    def _full_window(self, kind: Kind, rule: Rule) -> list[float]:
        """The values of a rule's mean; empty until every environment has finished all of its episodes."""
        windows, needed = self._windows(kind), self._count_per_env(rule)
        if any(len(window) < needed for window in windows):
            return []
        return [value for window in windows for value in window]

    def _find_cause(self, rule: Rule, kind: Kind, step: int) -> str:
        """Why a rule applies, or an empty string. A mean counts once it has all its episodes, all of this
        stage, so that neither a lucky start nor the last stage's episodes move the run."""
        compared, values = rule.comparison, self._full_window(kind, rule)
        if compared is not None and values and compared.holds(mean := fmean(values)):
            threshold = f"{compared.op} {compared.number:g}"
            return f"{compared.name} {mean:.4g} {threshold} over {len(values)} episodes"
        made = step - self._state.began_at
        return f"{made:,} steps" if rule.steps is not None and made >= rule.steps else ""


def _read(episode: Episode, name: str) -> float | None:
    """A metric of an episode; None if the environment did not report it."""
    if name.startswith(_OWN):
        return episode.metrics.get(name.removeprefix(_OWN))
    return {"return": episode.ret, "length": float(episode.length)}.get(name, float(episode.outcome == name))
