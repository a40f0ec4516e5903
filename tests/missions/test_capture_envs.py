"""The two environments: Gymnasium's contract, equality of rows and single games, saving and going on."""

import subprocess
import sys
import warnings

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode
from stable_baselines3.common.env_checker import check_env as check_env_sb3

import mission_gym_missions  # noqa: F401  registers the ids
from mission_gym.env.factory import EnvRequest, make_factory, make_vector_factory
from mission_gym.env.probe import probe, probe_vector
from mission_gym.env.resume import copy_plain
from mission_gym.errors import UsageError
from mission_gym.vector.batched import BatchedVec
from mission_gym_missions.capture.env import CaptureEnv
from mission_gym_missions.capture.sim.layout import NUM_ACTIONS, OUTCOMES
from mission_gym_missions.capture.sim.rows import step_rows
from mission_gym_missions.capture.simulator import compile_kernels
from mission_gym_missions.capture.vector_env import CaptureVectorEnv

ID = "mission_gym/Capture-v0"


@pytest.fixture(autouse=True)
def _no_display(monkeypatch):
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")


def legal_actions(mask, rng):
    legal = mask.reshape(len(mask), -1, NUM_ACTIONS)
    return (rng.random(legal.shape) * legal).argmax(axis=2)


def headings(rng, steps, num_rows):
    """Actions that need no mask: towards everywhere, with tags that may be illegal."""
    return rng.integers(0, NUM_ACTIONS, (steps, num_rows, 4))


@pytest.mark.parametrize("level", ["easy", "normal", "hard"])
def test_both_checkers_are_content(level):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env = gym.make(ID, level=level, render_mode="rgb_array")
        check_env(env.unwrapped)
        check_env_sb3(env.unwrapped)
        env.close()


def test_importing_the_room_is_cheap():
    code = (
        "import sys, mission_gym_missions; "
        "print([name for name in ('numba', 'torch', 'pygame', 'pydantic') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_rest_of_the_product_reads_both_forms_alike():
    request = EnvRequest(ID)
    one, many = probe(make_factory(request), ID), probe_vector(make_vector_factory(request), ID)
    assert one.signature == many.signature
    assert one.outcomes == many.outcomes == OUTCOMES
    assert one.main_outcome == "captured"
    assert one.mask_source == many.mask_source == "info"
    assert one.trusted
    assert many.trusted


def test_a_row_of_a_batch_is_a_single_environment_bit_for_bit():
    seeds = [7, 3, 2**31 - 1, 12]
    vec, envs = CaptureVectorEnv(4), [CaptureEnv() for _ in seeds]
    obs, infos = vec.reset(seed=seeds)
    firsts = [env.reset(seed=seed) for env, seed in zip(envs, seeds, strict=True)]
    assert np.array_equal(obs, [first for first, _ in firsts])
    rng, ended = np.random.default_rng(1), 0
    mask = infos["action_mask"]
    for _ in range(450):
        actions = legal_actions(mask, rng)
        obs, rewards, terminated, truncated, infos = vec.step(actions)
        assert not truncated.any()
        mask = infos["action_mask"]
        for row, env in enumerate(envs):
            one, reward, over, _, info = env.step(actions[row])
            assert (reward, over) == (rewards[row], terminated[row])
            batch = infos["final_info"] if over else infos
            assert info["outcome"] == batch["outcome"][row]
            assert info["reward_terms"] == {
                name: values[row] for name, values in batch["reward_terms"].items() if name[0] != "_"
            }
            assert sum(info["reward_terms"].values()) == reward
            assert np.array_equal(info["action_mask"], batch["action_mask"][row])
            if over:
                ended += 1
                assert np.array_equal(one, infos["final_obs"][row])
                assert infos["_final_obs"][row]
                metrics = batch["episode_metrics"]
                assert info["episode_metrics"] == {
                    name: values[row] for name, values in metrics.items() if name[0] != "_"
                }
                one, _ = env.reset()
            assert np.array_equal(one, obs[row])
    assert ended >= 4


@pytest.mark.parametrize(("num_rows", "threads"), [(1, 1), (5, 2), (16, 3), (16, 16)])
def test_rows_do_not_depend_on_their_number_threads_or_neighbours(num_rows, threads):
    actions = headings(np.random.default_rng(2), 150, 16)
    reference = CaptureVectorEnv(16)
    reference.reset(seed=list(range(16)))
    other = CaptureVectorEnv(num_rows, threads=threads)
    last = list(range(16))[-num_rows:]
    other.reset(seed=last)
    for step in range(150):
        obs, rewards, *_ = reference.step(actions[step])
        other_obs, other_rewards, *_ = other.step(actions[step, last])
        assert np.array_equal(obs[last], other_obs)
        assert np.array_equal(rewards[last], other_rewards)
    other.close()


def test_the_batched_vector_of_the_product_counts_episodes_terms_and_outcomes():
    spec = probe_vector(make_vector_factory(EnvRequest(ID)), ID)
    with BatchedVec(CaptureVectorEnv(8), spec, lambda env_id, episode: 5 + episode) as vec:
        mask = vec.reset().mask
        episodes, rng = [], np.random.default_rng(0)
        while len(episodes) < 8:
            batch = vec.step(legal_actions(mask, rng))
            mask = batch.mask
            episodes += batch.episodes
    for episode in episodes:
        assert episode.outcome in OUTCOMES
        assert episode.terminated
        parts = [value for name, value in episode.metrics.items() if name.startswith("reward_terms/")]
        assert sum(parts) == pytest.approx(episode.ret)
        assert episode.metrics["units_alive"] <= 4


def test_one_seed_is_spread_over_the_rows_and_episodes_differ():
    vec = CaptureVectorEnv(3)
    spread, _ = vec.reset(seed=5)
    listed, _ = vec.reset(seed=[5, 6, 7])
    assert np.array_equal(spread, listed)
    following, _ = vec.reset()
    assert not (following == listed).all(axis=1).any()
    fresh = CaptureVectorEnv(3)
    fresh.reset(seed=[5, 6, 7])
    assert np.array_equal(fresh.reset()[0], following)
    unseeded = CaptureVectorEnv(2)
    first, _ = unseeded.reset()
    assert not np.array_equal(first[0], first[1])


@pytest.mark.parametrize("threads", [1, 2])
def test_a_batch_goes_on_exactly_from_its_saved_state(threads):
    actions = headings(np.random.default_rng(3), 120, 6)
    one, other = CaptureVectorEnv(6), CaptureVectorEnv(6, threads=threads)
    one.reset(seed=1)
    for step in range(60):
        one.step(actions[step])
    saved = copy_plain(one.get_state())
    other.reset(seed=99)
    other.set_state(saved)
    for step in range(60, 120):
        a, b = one.step(actions[step]), other.step(actions[step])
        assert all(np.array_equal(left, right) for left, right in zip(a[:4], b[:4], strict=True))
    other.close()


def test_a_single_environment_goes_on_exactly_and_refuses_a_foreign_state():
    actions = headings(np.random.default_rng(4), 60, 1)[:, 0]
    one, other = CaptureEnv(), CaptureEnv()
    one.reset(seed=1)
    for action in actions[:30]:
        one.step(action)
    other.set_state(copy_plain(one.get_state()))
    for action in actions[30:]:
        a, b = one.step(action), other.step(action)
        assert np.array_equal(a[0], b[0])
        assert a[1:4] == b[1:4]
    vec = CaptureVectorEnv(2)
    vec.reset(seed=0)
    with pytest.raises(UsageError, match="another version of the mission, another level or another number"):
        other.set_state(vec.get_state())


def test_every_call_gives_fresh_arrays():
    vec = CaptureVectorEnv(2)
    obs, infos = vec.reset(seed=0)
    kept = [obs, infos["action_mask"]]
    copies = [array.copy() for array in kept]
    for _ in range(3):
        obs, rewards, terminated, truncated, infos = vec.step(np.full((2, 4), 3))
        for array in (
            obs,
            rewards,
            terminated,
            truncated,
            infos["action_mask"],
            *infos["reward_terms"].values(),
        ):
            kept.append(array)
            copies.append(array.copy())
    assert all(np.array_equal(array, copy) for array, copy in zip(kept, copies, strict=True))


def test_the_simulator_can_be_compiled_ahead():
    compile_kernels()
    assert step_rows.stats.cache_path
    assert step_rows.nopython_signatures


def test_the_vector_form_is_registered_with_same_step_reset():
    vec = gym.make_vec(ID, num_envs=3, vectorization_mode="vector_entry_point", level="easy")
    assert isinstance(vec, CaptureVectorEnv)
    assert vec.metadata["autoreset_mode"] == AutoresetMode.SAME_STEP
    assert vec.observation_space.shape == (3, *vec.single_observation_space.shape)
    vec.close()


def test_wrong_calls_are_explained():
    env = CaptureEnv()
    with pytest.raises(UsageError, match=r"step\(\) before reset\(\)"):
        env.step(np.zeros(4, np.int64))
    env.reset(seed=0)
    with pytest.raises(UsageError, match="action 10 does not exist; the mission takes 0 "):
        env.step(np.array([0, 10, 0, 0]))
    with pytest.raises(UsageError, match="takes 4 whole numbers from 0 to 9"):
        env.step(np.zeros(3, np.int64))
    with pytest.raises(UsageError, match="takes 4 whole numbers"):
        env.step(np.zeros(4))
    with pytest.raises(UsageError, match=r"render\(\) without a render mode"):
        env.render()
    with pytest.raises(UsageError, match="render_mode='ansi' is unknown; use rgb_array, human or none"):
        CaptureEnv(render_mode="ansi")
    vec = CaptureVectorEnv(2)
    with pytest.raises(UsageError, match=r"step\(\) before reset\(\); reset first"):
        vec.step(np.zeros((2, 4), np.int64))
    with pytest.raises(UsageError, match="3 seeds for 2 rows; give one for each"):
        vec.reset(seed=[1, 2, 3])
    with pytest.raises(UsageError, match="the batched mission draws nothing"):
        CaptureVectorEnv(2, render_mode="rgb_array")
    with pytest.raises(UsageError, match="threads=0; at least one is needed"):
        CaptureVectorEnv(2, threads=0)


def test_an_episode_that_ended_must_be_reset():
    env = CaptureEnv()
    env.reset(seed=0)
    over = False
    while not over:
        _, _, over, _, info = env.step(np.zeros(4, np.int64))
    assert info["outcome"] == "stalled"
    assert info["episode_metrics"]["units_alive"] <= 4
    with pytest.raises(UsageError, match="after the end of the episode"):
        env.step(np.zeros(4, np.int64))
