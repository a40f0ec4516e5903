"""When a run moves through its stages: by steps, by a full mean of the stage's own episodes, and back."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mission_gym.config.curriculum import read_curriculum
from mission_gym.data import Block, Episode
from mission_gym.errors import RunStateError
from mission_gym.rollout.collector import BlockCollector
from mission_gym.run.curriculum import Progression
from mission_gym.run.snapshot import RunState, read_run_state


class Listening(BlockCollector):
    """A collector that fills nothing, and remembers the stage that its vector was told."""

    def __init__(self, num_envs: int = 1) -> None:
        super().__init__((), ())
        self.vec, self.told, self.num_envs = self, [-1], num_envs

    def enter_stage(self, stage: int) -> None:
        self.told = [stage]

    def load(self, weights: Any) -> None: ...

    def start(self) -> None: ...

    def make_short(self, num_steps: int) -> Block:
        raise NotImplementedError

    def _fill(self, block: Any, number: int, stop: Any) -> bool:
        return True


def make(
    *stages: dict[str, Any], state: RunState | None = None, num_envs: int = 1
) -> tuple[Progression, Listening]:
    collector = Listening(num_envs)
    named = [{"name": f"s{number}"} | stage for number, stage in enumerate(stages)]
    return Progression(read_curriculum({"stages": named}), state or RunState(), collector), collector


def play(outcomes: str, stage: int = 0, **fields: Any) -> list[Episode]:
    """Episodes by their outcomes, w and l."""
    made = [
        Episode(0, i, 0, float(o == "w"), 7, {"w": "won", "l": "lost"}[o], True, {})
        for i, o in enumerate(outcomes)
    ]
    return [episode._replace(stage=stage, **fields) for episode in made]


def test_steps_are_counted_from_the_beginning_of_a_stage() -> None:
    run, _ = make({"until": {"steps": 100}}, {"until": {"steps": 50}}, {})
    assert run.move(99) is None
    assert run.move(128) == {"before": 1, "stage": 2, "of": 3, "name": "s1", "why": "128 steps"}
    assert run.move(177) is None
    assert (run.move(178) or {})["stage"] == 3
    assert run.move(10**9) is None
    assert run.status() == {"number": 3, "of": 3, "name": "s2"}


def test_a_mean_counts_once_it_is_full_of_the_stages_own_episodes() -> None:
    run, _ = make(
        {"until": {"metric": "won>=0.75", "episodes": 4}},
        {"until": {"metric": "won>=0.75", "episodes": 4}},
        {},
    )
    run.see(play("www"))
    assert run.move(10) is None
    assert run.metrics(10) == {
        "curriculum/stage": 1, "curriculum/stage_steps": 10,
        "curriculum/episodes": 3,
    }  # fmt: skip
    run.see(play("w", failed=True) + play("w", stage=1))
    assert run.move(20) is None
    run.see(play("l"))
    assert run.metrics(20)["curriculum/metric"] == 0.75
    assert (run.move(30) or {})["why"] == "won 0.75 >= 0.75 over 4 episodes"
    assert run.metrics(30) == {
        "curriculum/stage": 2, "curriculum/stage_steps": 0, "curriculum/episodes": 0,
    }  # fmt: skip
    run.see(play("wwww"))  # begun in the stage before, or replayed from it
    assert run.move(40) is None
    run.see(play("lwww", stage=1))
    assert (run.move(50) or {})["stage"] == 3


@pytest.mark.parametrize("num_envs", [8, 100, 192, 256])
def test_short_episodes_that_finish_first_do_not_end_a_stage(num_envs: int) -> None:
    """Wins take 50 steps, losses 500, and 40 % are won: the episodes that finish first are all wins."""
    run, _ = make({"until": {"metric": "won>=0.8", "episodes": 100}}, {}, num_envs=num_envs)
    rng = np.random.default_rng(0)
    won = rng.random(num_envs) < 0.4
    ends = np.where(won, 50, 500)
    for step in range(10, 8000, 10):
        for env in np.flatnonzero(ends == step).tolist():
            run.see([play("w" if won[env] else "l")[0]._replace(env_id=env)])
            won[env] = rng.random() < 0.4
            ends[env] += 50 if won[env] else 500
        assert run.move(step * num_envs) is None
    metrics = run.metrics(0)
    assert metrics["curriculum/episodes"] == num_envs * -(-100 // num_envs)
    assert abs(metrics["curriculum/metric"] - 0.4) < 0.2


def test_a_branch_counts_episodes_from_its_beginning() -> None:
    run, _ = make({"until": {"metric": "won>=1", "episodes": 2}}, {})
    run.see(play("w"))
    assert run._state.until == [[1.0]]
    run.begin_at(50, run._state)
    assert run._state.until == []


@pytest.mark.parametrize(
    ("metric", "episode", "moves"),
    [
        ("return>0.5", {"ret": 0.6}, True),
        ("return>0.5", {"ret": 0.5}, False),
        ("length<=7", {"length": 7}, True),
        ("lost<0.5", {}, True),
        ("episode/bots>=3", {"metrics": {"bots": 3.0}}, True),
        ("episode/bots>=3", {"metrics": {}}, False),
    ],
)
def test_metrics(metric: str, episode: dict[str, Any], moves: bool) -> None:
    run, _ = make({"until": {"metric": metric, "episodes": 1}}, {})
    run.see(play("w", **episode))
    assert (run.move(10) is not None) is moves


def test_whatever_comes_first_moves_it() -> None:
    rule = {"until": {"metric": "won>=1", "episodes": 2, "steps": 100}}
    run, _ = make(rule, rule, {})
    run.see(play("ww"))
    assert (run.move(10) or {})["why"].startswith("won 1")
    assert (run.move(110) or {})["why"] == "100 steps"


def test_a_stage_that_is_too_hard_is_left_for_the_one_before() -> None:
    until, back = {"metric": "won>=0.5", "episodes": 2}, {"metric": "won<0.5", "episodes": 3}
    run, _ = make({"until": until}, {"back": back})
    run.see(play("ww"))
    assert (run.move(10) or {})["stage"] == 2
    run.see(play("wll", stage=1))
    assert run.move(20) == {
        "before": 2, "stage": 1, "of": 2, "name": "s0", "why": "won 0.3333 < 0.5 over 3 episodes",
    }  # fmt: skip
    assert run.move(30) is None, "both means begin anew"


def test_a_block_keeps_the_stage_that_it_began_in() -> None:
    run, collector = make({"until": {"steps": 10}}, {})
    empty: Any = None
    collector.fill(empty, -1, lambda: False)
    collector.fill(empty, 4, lambda: False)
    assert run.move(10) is not None
    collector.fill(empty, 4, lambda: False)  # the rest of it, after a stop
    assert collector.told == [0]
    collector.fill(empty, 5, lambda: False)
    assert collector.told == [1]


def test_it_continues_from_the_state_of_a_checkpoint() -> None:
    state = RunState()
    run, collector = make({"until": {"steps": 10}}, {}, state=state)
    empty: Any = None
    collector.fill(empty, 4, lambda: False)
    run.move(10)
    again, collector = make({"until": {"steps": 10}}, {})
    again.restore(state, [0, 1])
    assert collector.told == [0], "episodes that start during the restore belong to this block"
    collector.fill(empty, 5, lambda: False)
    assert collector.told == [1]
    with pytest.raises(RunStateError, match="is in stage 3, and the curriculum has 2; config"):
        again.restore(state, [2])
    with pytest.raises(RunStateError, match="of a run without a curriculum; config"):
        again.restore(RunState(), [0])


def test_without_a_curriculum_nothing_happens() -> None:
    state, collector = RunState(), Listening()
    run = Progression(None, state, collector)
    run.begin_at(5, None)
    run.see(play("w"))
    run.restore(state, [0])
    assert (run.move(10), run.metrics(10), run.status(), state) == (None, {}, None, RunState())
    collector.fill(None, 0, lambda: False)  # type: ignore[arg-type]
    assert collector.told == [-1]


def test_the_state_of_a_checkpoint_is_json() -> None:
    state = RunState()
    run, collector = make({"until": {"metric": "return>5", "episodes": 9}}, {}, state=state)
    run.see(play("wl", ret=float(np.float64(1.5))))
    empty: Any = None
    collector.fill(empty, 2, lambda: False)
    stored = json.loads(json.dumps(state.document()))
    assert stored["curriculum"]["until"] == [[1.5, 1.5]]
    checkpoint: Any = SimpleNamespace(state_json={"counters": {"session": stored}})
    assert read_run_state(checkpoint) == state
