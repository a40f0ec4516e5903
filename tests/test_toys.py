"""The toys keep Gymnasium's contract and pay what they promise."""

import warnings

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from mission_gym.env.factory import EnvRequest, make_factory
from toys import Binary, Blindfold, Constant, DictMask, Faulty, Identity, Pointer, Stateful


@pytest.mark.parametrize("toy", [Binary, Blindfold, Constant, Identity, Pointer, Stateful, Faulty])
def test_gymnasiums_checker_is_content(toy):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # Checks of registered environments, and advice that a toy ignores on purpose.
        warnings.filterwarnings("ignore", message=".*(render|spec|deterministic|infinity|bound|symmetric).*")
        check_env(toy(**({"at": 100} if toy is Faulty else {})), skip_render_check=True)


RIGHT = {
    "Identity": (lambda env, obs: obs, 20.0),
    "Binary": (lambda env, obs: obs, 20.0),
    "Pointer": (lambda env, obs: obs, 0.0),
    "Constant": (lambda env, obs: 0, 10.0),
    "DictMask": (lambda env, obs: np.array([obs["colour"], obs["body"]["switches"][0]]), 10.0),
}


@pytest.mark.parametrize("name", RIGHT)
def test_the_right_answer_is_in_the_observation(name):
    answer, expected = RIGHT[name]
    env = make_factory(EnvRequest(f"toys:{name}"))()
    obs, info = env.reset(seed=0)
    total, truncated = 0.0, False
    while not truncated:
        obs, reward, terminated, truncated, info = env.step(answer(env, obs))
        assert not terminated
        total += reward
    assert total == pytest.approx(expected)
    assert info.get("outcome") == ("won" if name == "DictMask" else None)


def test_a_forbidden_action_is_an_error():
    env = DictMask()
    env.reset(seed=0)
    with pytest.raises(ValueError, match=r"colour \d is forbidden now"):
        env.step(np.array([env.forbidden, 0]))
