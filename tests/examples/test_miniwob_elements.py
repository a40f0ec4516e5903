"""MiniWoB++ by its elements, on a page without a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from miniwob_elements import NUM_FEATURES, OUTCOMES, Elements

import mission_gym as mg
from mission_gym.check.environment import check_environment
from mission_gym.check.findings import has_errors
from mission_gym.env.factory import EnvRequest, make_factory
from page_toys import Page


def shown(obs: dict[str, Any], num: int = 16) -> Any:
    return obs["elements"].reshape(num, NUM_FEATURES)


def test_elements_that_the_instruction_names_come_first_and_the_rest_is_masked() -> None:
    env = Elements(Page(), num=6)
    obs, info = env.reset(seed=1)
    assert env.observation_space.contains(obs)
    assert info["action_mask"].tolist() == [1, 1, 1, 1, 0, 0]  # two buttons, a text, a label
    assert [element.ref for element in env._elements] == [
        3 + env.unwrapped.wanted,
        4 - env.unwrapped.wanted,
        2,
        7,
    ]
    assert shown(obs, 6)[:, 0].tolist() == [1, 1, 1, 1, 0, 0]
    assert obs["instruction"].endswith(". ?")
    assert "root_dom" not in info
    assert env.unwrapped.options == {"record_screenshots": False}


def test_a_click_pays_what_the_task_does_whatever_time_is_left() -> None:
    env = Elements(Page())
    for place, reward, outcome in ((0, 1.0, "success"), (1, -1.0, "failure")):
        env.reset(seed=3)
        _, paid, terminated, truncated, info = env.step(place)
        assert (paid, terminated, truncated, info["outcome"]) == (reward, True, False, outcome)
    assert env.metadata["main_outcome"] == OUTCOMES[0]


def test_what_does_nothing_is_a_step_and_steps_end() -> None:
    env = Elements(Page(), max_steps=3)
    env.reset(seed=0)
    env.step(12)  # there is none
    env.step(2)  # a text
    _, reward, terminated, truncated, info = env.step(2)
    assert (reward, terminated, truncated, info["outcome"]) == (0.0, False, True, "out_of_steps")
    assert [action["action_type"] for action in env.unwrapped.done] == [0, 2, 2]


def test_fields_of_the_instruction_can_be_typed_and_show() -> None:
    env = Elements(Page(field=True), num=8, fields=3)
    obs, info = env.reset(seed=0)
    mask = info["action_mask"].reshape(4, 8)
    place = [element.ref for element in env._elements].index(5)
    assert [np.flatnonzero(row).tolist() for row in mask[1:]] == [[place], [place], []]
    before = shown(obs, 8)[place].sum()
    obs, *_ = env.step(2 * 8 + place)
    assert env.unwrapped.typed == "Ida"
    assert shown(obs, 8)[place].sum() == before + 2  # it holds something, and that is the second field
    assert env.step(3 * 8 + place)[1:4] == (0.0, False, False)  # there is no third one
    assert env.step(0)[1] == 1.0


def test_videos_show_the_page_with_the_clicked_element_framed() -> None:
    request = EnvRequest(
        "page_toys:Page", wrap=("miniwob_elements:Elements(8)",)
    )  # whose constructor takes no render mode
    env = make_factory(request, render_mode="rgb_array")()
    env.reset(seed=0)
    assert env.unwrapped.options == {"record_screenshots": True}
    first = env.render()
    assert (first.shape, first.dtype) == ((420, 320, 3), np.uint8)
    assert (first == 100).all()
    env.step(0)
    left = 20 if env.unwrapped.wanted == 0 else 120
    changed = np.argwhere((env.render() != 100).any(axis=2))
    assert changed.min(axis=0).tolist() == [116, left - 4]
    assert changed.max(axis=0).tolist() == [165, left + 85]
    env.close()


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: gym.make("CartPole-v1"), r"is for environments of MiniWoB\+\+.*\[--wrap\]"),
        (lambda: Page(types=["NONE"]), "needs the action types CLICK_ELEMENT; use action_space_config=liu18"),
    ],
)
def test_what_does_not_fit_is_refused(make: Any, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        Elements(make())


def test_the_doctor_finds_no_fault() -> None:
    request = EnvRequest("page_toys:Page", {"field": True}, ("miniwob_elements:Elements(8, 2)",))
    assert not has_errors(check_environment(request, num_episodes=4))


def test_a_policy_learns_which_one_is_meant(tmp_path: Path) -> None:
    run = mg.train(
        "page_toys:Page", wrap=["miniwob_elements:Elements(8)"], runs_dir=str(tmp_path), seed=1, n_envs=8,
        n_steps_per_env=16, timesteps=1024, batch_size=64, learning_rate=3e-3, eval_freq=0,
        network_arch="16", vector="serial", trust=True, tune=False, tensorboard=False, progress=False,
    )  # fmt: skip
    assert run.evaluate(30)["outcomes"]["success"]["rate"] >= 0.9
