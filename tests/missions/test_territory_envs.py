"""The two forms: Gymnasium's contract, equal rows and single games, saving and going on, baselines."""

import copy
import pickle
import warnings

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode
from stable_baselines3.common.env_checker import check_env as check_env_sb3

from mission_gym.env.factory import EnvRequest, make_factory, make_vector_factory
from mission_gym.env.probe import probe, probe_vector
from mission_gym.env.resume import copy_plain
from mission_gym.errors import UsageError
from mission_gym.vector.batched import BatchedVec
from mission_gym_missions import TERRITORY_ID
from mission_gym_missions.territory.env import TerritoryEnv
from mission_gym_missions.territory.rules import SHIPPED
from mission_gym_missions.territory.sim.layout import OUTCOMES
from mission_gym_missions.territory.vector_env import TerritoryVectorEnv


@pytest.fixture
def short(tmp_path):
    """Rules of games of 12 steps."""
    path = tmp_path / "short.yaml"
    path.write_text(SHIPPED.read_text().replace("max_steps: 240", "max_steps: 12"))
    return str(path)


def draw_legal(mask, rng):
    return (rng.random(mask.shape) * mask).argmax(axis=1)


def assert_same(one, other):
    assert one.keys() == other.keys()
    assert all(np.array_equal(one[name], other[name]) for name in one)


def take_row(batch, row):
    return {name: values[row] for name, values in batch.items() if name[0] != "_"}


def test_both_checkers_are_content(short):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env = gym.make(TERRITORY_ID, render_mode="rgb_array", rules_file=short)
        check_env(env.unwrapped)
        check_env_sb3(env.unwrapped)
        env.close()


def test_the_rest_of_the_product_reads_both_forms_alike():
    request = EnvRequest(TERRITORY_ID)
    one = probe(make_factory(request), TERRITORY_ID)
    many = probe_vector(make_vector_factory(request), TERRITORY_ID)
    assert one.signature == many.signature
    assert one.outcomes == many.outcomes == OUTCOMES
    assert one.main_outcome == "victory"
    assert one.mask_source == many.mask_source == "info"
    assert [leaf.kind for leaf in one.leaves] == ["image", "vector"]
    assert one.trusted
    assert many.trusted


@pytest.mark.parametrize("threads", [1, 2])
def test_a_row_of_a_batch_is_a_single_environment_bit_for_bit(short, threads):
    seeds = [7, 2**31 - 1, 2**62]
    kwargs = {"num_bots": 8, "rules_file": short}
    vec = TerritoryVectorEnv(3, threads=threads, **kwargs)
    envs = [TerritoryEnv(**kwargs) for _ in seeds]
    obs, infos = vec.reset(seed=seeds)
    for row, env in enumerate(envs):
        assert_same(take_row(obs, row), env.reset(seed=seeds[row])[0])
    rng = np.random.default_rng(1)
    for step in range(1, 26):
        actions = draw_legal(infos["action_mask"], rng)
        obs, rewards, terminated, truncated, infos = vec.step(actions)
        assert terminated.all() == (step % 12 == 0)
        assert not truncated.any()
        for row, env in enumerate(envs):
            one, reward, over, _, info = env.step(actions[row])
            assert (reward, over) == (rewards[row], terminated[row])
            batch = infos["final_info"] if over else infos
            assert info["outcome"] == batch["outcome"][row]
            assert info["reward_terms"] == take_row(batch["reward_terms"], row)
            assert sum(info["reward_terms"].values()) == pytest.approx(reward)
            assert np.array_equal(info["action_mask"], batch["action_mask"][row])
            if over:
                assert_same(one, take_row(infos["final_obs"], row))
                assert info["episode_metrics"] == take_row(batch["episode_metrics"], row)
                assert 1 <= info["episode_metrics"]["rank"] <= 9
                one, first = env.reset()
                assert np.array_equal(first["action_mask"], infos["action_mask"][row])
            assert_same(one, take_row(obs, row))
    vec.close()


def test_the_batched_vector_of_the_product_counts_episodes_terms_and_outcomes(short):
    spec = probe_vector(make_vector_factory(EnvRequest(TERRITORY_ID)), TERRITORY_ID)
    with BatchedVec(TerritoryVectorEnv(4, rules_file=short), spec, lambda env_id, episode: 5 + env_id) as vec:
        mask, rng = vec.reset().mask, np.random.default_rng(0)
        for _ in range(12):
            batch = vec.step(draw_legal(mask, rng))
            mask = batch.mask
    assert len(batch.episodes) == 4
    for episode in batch.episodes:
        assert episode.outcome == "timeout"
        terms = [value for name, value in episode.metrics.items() if name.startswith("reward_terms/")]
        assert sum(terms) == pytest.approx(episode.ret)
        assert episode.metrics["attacks"] > 0


def test_a_batch_goes_on_exactly_from_its_saved_state(short):
    rng = np.random.default_rng(3)
    one, other = (TerritoryVectorEnv(3, rules_file=short) for _ in range(2))
    _, infos = one.reset(seed=1)
    for _ in range(9):
        _, _, _, _, infos = one.step(draw_legal(infos["action_mask"], rng))
    other.reset(seed=99)
    other.set_state(copy_plain(one.get_state()))
    for _ in range(6):
        actions = draw_legal(infos["action_mask"], rng)
        left, right = one.step(actions), other.step(actions)
        infos = left[4]
        assert_same(left[0], right[0])
        assert all(np.array_equal(a, b) for a, b in zip(left[1:4], right[1:4], strict=True))
        assert np.array_equal(infos["action_mask"], right[4]["action_mask"])


def test_a_single_environment_goes_on_exactly_is_picklable_and_refuses_a_foreign_state():
    one, other = TerritoryEnv(), TerritoryEnv()
    one.reset(seed=1)
    for action in (3, 9):
        one.step(action)
    other.set_state(copy_plain(one.get_state()))
    copies = [one, other, pickle.loads(pickle.dumps(one)), copy.deepcopy(one)]
    results = [env.step(12) for env in copies]
    for result in results:
        assert_same(result[0], results[0][0])
        assert result[1:4] == results[0][1:4]
    for foreign in (TerritoryEnv(num_bots=6), TerritoryVectorEnv(2)):
        foreign.reset(seed=0)
        with pytest.raises(UsageError, match="other sizes or rules, or of another number of environments"):
            other.set_state({"running": True, "actions": []} | foreign.get_state())


def test_wrong_calls_are_explained(short):
    env = TerritoryEnv(rules_file=short)
    with pytest.raises(UsageError, match=r"step\(\) before reset\(\)"):
        env.step(0)
    env.reset(seed=0)
    with pytest.raises(
        UsageError, match=r"action 13 does not exist; the mission takes 0 \(wait\) and 1 to 12"
    ):
        env.step(13)
    with pytest.raises(UsageError, match="takes one whole number from 0 to 12 for each environment"):
        env.step(1.5)
    for _ in range(12):
        env.step(0)
    with pytest.raises(UsageError, match="after the end of the episode; reset first"):
        env.step(0)
    with pytest.raises(UsageError, match=r"render\(\) without a render mode"):
        env.render()
    with pytest.raises(UsageError, match="render_mode='human' is unknown; use rgb_array or none"):
        TerritoryEnv(render_mode="human")
    with pytest.raises(UsageError, match="the batched mission draws nothing"):
        TerritoryVectorEnv(2, render_mode="rgb_array")
    with pytest.raises(UsageError, match="threads=0; at least one is needed"):
        TerritoryVectorEnv(2, threads=0)


def test_every_call_gives_fresh_arrays():
    vec = TerritoryVectorEnv(2)
    obs, infos = vec.reset(seed=0)
    kept = [*obs.values(), infos["action_mask"]]
    copies = [array.copy() for array in kept]
    for action in (3, 6, 9):
        obs, rewards, terminated, _, infos = vec.step(np.full(2, action))
        arrays = [*obs.values(), rewards, terminated, infos["action_mask"], *infos["reward_terms"].values()]
        kept += arrays
        copies += [array.copy() for array in arrays]
    assert all(np.array_equal(array, copy) for array, copy in zip(kept, copies, strict=True))


def test_the_scripted_policies_grow_and_play_alike_in_both_forms():
    vec, env = TerritoryVectorEnv(2), TerritoryEnv()
    for name, play in vec.baselines.items():
        obs, infos = vec.reset(seed=4)
        one, info = env.reset(seed=4)
        first = obs["numbers"][:, 0].copy()
        for _ in range(20):
            actions = play(obs, infos["action_mask"])
            assert np.array_equal(play((obs["map"], obs["numbers"]), infos["action_mask"]), actions)
            assert env.baselines[name](one, info) == actions[0]
            obs, *_, infos = vec.step(actions)
            one, *_, info = env.step(actions[0])
        assert (obs["numbers"][:, 0] > 2 * first).all()


def test_spaces_are_the_same_for_every_size_and_the_vector_form_is_registered():
    vec = gym.make_vec(
        TERRITORY_ID, num_envs=2, vectorization_mode="vector_entry_point", size=256, num_bots=50
    )
    assert isinstance(vec, TerritoryVectorEnv)
    assert vec.metadata["autoreset_mode"] == AutoresetMode.SAME_STEP
    assert vec.single_observation_space == TerritoryEnv().observation_space
    obs, _ = vec.reset(seed=0)
    assert obs in vec.observation_space
    vec.close()
