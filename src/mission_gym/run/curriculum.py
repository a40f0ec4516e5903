"""Where a run is in its curriculum, and when it moves on.

What it knows is plain values in the session's counters, so that a checkpoint has it. A move is decided
between updates, by the episodes that were learned from, and holds for blocks that begin after it: one that a
stop broke off goes on in the stage that it began in. So equal runs are equal, on every backend.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any, Literal

from mission_gym.config.curriculum import Curriculum, Rule
from mission_gym.data import Episode
from mission_gym.errors import RunStateError
from mission_gym.rollout.collector import BlockCollector

KEY = "curriculum"  # of the counters
_OWN = "episode/"  # prefix of the environment's own episode metrics
Kind = Literal["until", "back"]


class Progression:
    """One run's way through its stages; without a curriculum it does and tells nothing."""

    def __init__(
        self, curriculum: Curriculum | None, counters: dict[str, Any], collector: BlockCollector
    ) -> None:
        self._curriculum, self._counters, self._collector = curriculum, counters, collector
        if curriculum is not None:
            collector.stage_of = self._stage_of
            self.begin_at(0, None)

    @property
    def _state(self) -> dict[str, Any]:
        state: dict[str, Any] = self._counters[KEY]
        return state

    def begin_at(self, step: int, state: Mapping[str, Any] | None) -> None:
        """Begin with the first stage, or where another run was; before the first episode."""
        if self._curriculum is None:
            return
        first = {"stage": 0, "began_at": step, "until": [], "back": []}
        self._counters[KEY] = {**(first if state is None else state), "block": None}
        self._collector.vec.enter_stage(self._state["stage"])

    def go_on(self, stages: Iterable[int]) -> None:
        """Go on with counters that came from a checkpoint; before its environments come back, whose episodes
        are of these stages."""
        if self._curriculum is None:
            return
        highest, count = max([self._state["stage"], *stages]), len(self._curriculum.stages)
        if highest >= count:
            raise RunStateError(
                f"the checkpoint is of stage {highest + 1}, and the curriculum has {count}; it was changed in"
                " config.yaml: restore that, or branch"
            )
        block = self._state["block"]
        self._collector.vec.enter_stage(self._state["stage"] if block is None else block[1])

    def _stage_of(self, number: int) -> int:
        """The stage that episodes of a block begin in; blocks without a number are no part of the run."""
        state = self._state
        if number < 0:
            return int(state["stage"])
        if state["block"] is None or state["block"][0] != number:
            state["block"] = [number, state["stage"]]
        return int(state["block"][1])

    def see(self, episodes: Sequence[Episode]) -> None:
        """Take in episodes that were learned from; those of the running stage count."""
        if self._curriculum is None:
            return
        state = self._state
        for kind, rule in self._rules():
            name, window = rule.comparison.name if rule.comparison else "", state[kind]
            for episode in episodes:
                value = None if episode.failed or episode.stage != state["stage"] else _read(episode, name)
                if value is not None:
                    window.append(value)
            del window[: -(rule.episodes or 1)]

    def metrics(self, step: int) -> dict[str, float]:
        """What a row tells of it: the number of the stage, from 1 on, how long it has lasted, and where the
        metric stands that it waits for."""
        if self._curriculum is None:
            return {}
        state = self._state
        told = {"curriculum/stage": state["stage"] + 1, "curriculum/stage_steps": step - state["began_at"]}
        if state["until"]:
            told |= {"curriculum/metric": fmean(state["until"]), "curriculum/episodes": len(state["until"])}
        return told

    def move(self, step: int) -> dict[str, Any] | None:
        """Enter the next stage, or the one before, where that is due: the fields of its event."""
        if self._curriculum is None:
            return None
        state, stage = self._state, self._curriculum.stages[self._state["stage"]]
        if stage.until and (why := self._find_cause(stage.until, "until", step)):
            to = state["stage"] + 1
        elif stage.back and (why := self._find_cause(stage.back, "back", step)):
            to = state["stage"] - 1
        else:
            return None
        told = {"before": state["stage"] + 1, "stage": to + 1, "of": len(self._curriculum.stages)}
        state |= {"stage": to, "began_at": step, "until": [], "back": []}
        return {**told, "name": self._curriculum.labels[to], "why": why}

    def status(self) -> dict[str, Any] | None:
        """What status.json tells: the number of the stage, of how many, and its name."""
        if self._curriculum is None:
            return None
        number, labels = self._state["stage"] + 1, self._curriculum.labels
        return {"number": number, "of": len(labels), "name": labels[number - 1]}

    def _rules(self) -> list[tuple[Kind, Rule]]:
        """Those of the running stage that go by a metric."""
        assert self._curriculum is not None
        stage = self._curriculum.stages[self._state["stage"]]
        found: list[tuple[Kind, Rule | None]] = [("until", stage.until), ("back", stage.back)]
        return [(kind, rule) for kind, rule in found if rule is not None and rule.metric is not None]

    def _find_cause(self, rule: Rule, kind: Kind, step: int) -> str:
        """Why a rule moves the run on, empty where it does not. A mean counts once it is of as many episodes
        as it says, all of this stage: a lucky beginning moves nothing, and nothing moves twice at once."""
        window, compared = self._state[kind], rule.comparison
        if compared is not None and len(window) == rule.episodes and compared.holds(mean := fmean(window)):
            return (
                f"{compared.name} {mean:.4g} {compared.op} {compared.number:g} over {rule.episodes} episodes"
            )
        made = step - self._state["began_at"]
        return f"{made:,} steps" if rule.steps is not None and made >= rule.steps else ""


def _read(episode: Episode, name: str) -> float | None:
    """A metric of an episode; None where the environment did not tell it."""
    if name.startswith(_OWN):
        return episode.metrics.get(name.removeprefix(_OWN))
    return {"return": episode.ret, "length": float(episode.length)}.get(name, float(episode.outcome == name))
