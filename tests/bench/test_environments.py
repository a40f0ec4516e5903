"""The toys have the optimum and the random score they claim, and no settings match the environments."""

from __future__ import annotations

import itertools
import warnings

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from mission_gym.config.layers import read_settings
from mission_gym_bench import environments
from mission_gym_bench.defaults.trials import CASES

TOYS = {
    name: toy
    for name, toy in vars(environments).items()
    if isinstance(toy, type)
    and issubclass(toy, environments.Toy)
    and toy not in (environments.Toy, environments.Catch)
}
BY_NAME = {case.name: case for case in CASES}


def play(env, policy, num_episodes=3):
    """The mean return; policy: observation -> action."""
    returns = []
    for number in range(num_episodes):
        obs, _ = env.reset(seed=number)
        total, ended = 0.0, False
        while not ended:
            obs, reward, terminated, truncated, _ = env.step(policy(obs))
            total += reward
            ended = terminated or truncated
        returns.append(total)
    return float(np.mean(returns))


def test_every_toy_is_a_case():
    assert TOYS.keys() <= BY_NAME.keys()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_no_case_has_shipped_settings_and_all_can_be_built(case, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # MuJoCo leaves its log where it runs
    assert case.env_id not in read_settings()
    if case.is_there:
        env = getattr(environments, case.name)()
        env.reset(seed=1)
        env.close()


@pytest.mark.parametrize("name", TOYS)
def test_toys_keep_the_contract_and_their_seed(name):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*not having a spec.*")  # they are registered nowhere
        warnings.filterwarnings("error")
        check_env(TOYS[name](), skip_render_check=True)
    traces = []
    for _ in range(2):
        env = TOYS[name]()
        env.action_space.seed(5)
        seen = [env.reset(seed=3)[0]]
        for _ in range(30):
            obs, *_ = env.step(env.action_space.sample())
            seen.append(obs)
        traces.append(np.array(seen))
    assert np.array_equal(*traces)


@pytest.mark.parametrize("name", TOYS)
def test_the_random_score_of_a_case_is_that_of_its_toy(name):
    assert BY_NAME[name].random == TOYS[name].random
    assert float(BY_NAME[name].known.replace(",", "")) == TOYS[name].optimum


ORACLES = {
    "RarePrizes": lambda obs: int(obs[1] > 0),
    "LargeObservations": lambda obs: min(int((obs[0] * obs[2] / 1e4 + 1) * 1.5), 2),
    "FarOffset": lambda obs: int((obs[0] - 5e6 + 0.05) / 0.1 * 3),
    "SparseGoal": lambda obs: (obs[0] < obs[2]) * 1 if obs[0] != obs[2] else 2 + (obs[1] < obs[3]) * 1,
}


@pytest.mark.parametrize("name", ORACLES)
def test_who_knows_the_rule_gets_the_optimum(name):
    assert play(TOYS[name](), ORACLES[name]) == TOYS[name].optimum


def test_the_far_offset_is_a_constant_in_single_precision():
    env = environments.FarOffset()
    shown = [env.reset(seed=seed)[0] for seed in range(20)]
    assert all(abs(obs[0] - 5e6) <= 0.05 for obs in shown)
    assert len({float(obs[0]) for obs in shown}) == 20
    assert {float(np.float32(obs[0])) for obs in shown} == {5e6}


def solve(states, outcomes, length):
    """Best and random return of so many steps by state; outcomes(state, action): chance, state, reward."""
    best, mean = dict.fromkeys(states, 0.0), dict.fromkeys(states, 0.0)

    def worth(values, state, action):
        return sum(chance * (paid + values[to]) for chance, to, paid in outcomes(state, action))

    for _ in range(length):
        best = {state: max(worth(best, state, action) for action in range(3)) for state in states}
        mean = {state: np.mean([worth(mean, state, action) for action in range(3)]) for state in states}
    return best, mean


def test_the_continuing_toy_is_worth_what_dynamic_programming_says():
    env = environments.Continuing()

    def outcomes(level, action):
        for chance, moved in ((1 - env.slip, env.move(level, action)), (env.slip, env.move(level, 2))):
            yield chance, moved, 2 * (moved / env.top) ** 3

    best, mean = solve(range(env.top + 1), outcomes, env.length)
    assert np.mean([best[level] for level in range(3)]) == pytest.approx(env.optimum, abs=1)
    assert np.mean([mean[level] for level in range(3)]) == pytest.approx(env.random, abs=1)


def test_the_sledge_is_worth_what_dynamic_programming_says():
    env = environments.LargeRewards()

    def outcomes(state, action):
        moved = env.move(*state, action - 1)
        yield 1.0, moved, 1000.0 if abs(moved[0]) <= env.near else -1000.0

    states = [(place, speed) for place in range(-20, 21) for speed in range(-3, 4)]
    best, mean = solve(states, outcomes, env.length)
    starts = [(side * place, 0) for side in (-1, 1) for place in range(5, 21)]
    assert np.mean([best[start] for start in starts]) == pytest.approx(env.optimum, abs=1)
    assert np.mean([mean[start] for start in starts]) == pytest.approx(env.random, abs=1)


def test_rare_prizes_are_paid_once_at_the_end():
    env = environments.RarePrizes()
    obs, _ = env.reset(seed=1)
    shown, rewards = [obs], []
    for _ in range(env.length):
        obs, reward, terminated, truncated, _ = env.step(0)
        shown.append(obs)
        rewards.append(reward)
        assert not truncated
    assert terminated
    assert not np.any(shown[:799])
    assert shown[799][0] == 1.0
    assert rewards == [0.0] * 799 + [1000.0 if shown[799][1] < 0 else 300.0]


def test_the_sparse_goal_is_found_as_often_as_said():
    env = environments.SparseGoal()
    size = 8
    found = 0.0
    for goal in range(size**2):
        chance = np.zeros((size, size))
        spot = divmod(goal, size)
        for _ in range(env.length):
            chance[spot] = 1.0
            padded = np.pad(chance, 1, mode="edge")  # walls
            chance = (padded[:-2, 1:-1] + padded[2:, 1:-1] + padded[1:-1, :-2] + padded[1:-1, 2:]) / 4
        chance[spot] = 0.0  # never begun from
        found += chance.sum() / (size**2 - 1) / size**2
    assert found == pytest.approx(env.random, abs=1e-3)


@pytest.mark.parametrize("name", ["CatchPixels", "CatchPlanes"])
def test_all_balls_can_be_caught_and_a_quarter_is_by_chance(name):
    env = TOYS[name]()

    def follow(_):
        column, slant = env.column, env.slant
        for _ in range(env.cells - 1 - env.row):
            column, slant = env.move(column, slant)
        return int(np.sign(min(max(column, 1), env.cells - 2) - env.paddle)) + 1

    assert play(env, follow) == env.optimum
    landings = []
    for column, slant in itertools.product(range(env.cells), env.slants):
        for _ in range(env.cells - 1):
            column, slant = env.move(column, slant)
        landings.append(column)
    # A paddle that begins anywhere and moves at random stays anywhere.
    caught = np.mean([abs(column - paddle) <= 1 for column in landings for paddle in range(1, env.cells - 1)])
    assert env.balls * (2 * caught - 1) == pytest.approx(env.random)


def test_a_ball_shows_where_it_came_from():
    pixels, planes = TOYS["CatchPixels"](), TOYS["CatchPlanes"]()
    for env in (pixels, planes):
        env.reset(seed=3)
    shown, *_ = planes.step(1)
    picture, *_ = pixels.step(1)
    assert shown.sum(axis=(0, 1)).tolist() == [1, 1, 3]
    cells = picture[::4, ::4, 0]
    assert [(cells == grey).sum() for grey in (255, 128, 192)] == [1, 1, 3]
    assert np.array_equal(cells == 255, shown[:, :, 0])
