"""The two forms: Gymnasium's contract, equal rows and single cities, the hard mask, saving and going on."""

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
from mission_gym_missions import PLACEMENT_ID
from mission_gym_missions.placement.env import PlacementEnv
from mission_gym_missions.placement.simulator import OUTCOMES
from mission_gym_missions.placement.vector_env import PlacementVectorEnv


def draw_legal(mask, rng):
    return (rng.random(mask.shape) * mask).argmax(axis=1)


@pytest.mark.parametrize("kwargs", [{}, {"instance": "fixed"}, {"num_sites": 3, "num_stations": 3}])
def test_both_checkers_are_content(kwargs):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env = gym.make(PLACEMENT_ID, render_mode="rgb_array", **kwargs)
        check_env(env.unwrapped)
        check_env_sb3(env.unwrapped)
        env.close()


def test_the_rest_of_the_product_reads_both_forms_alike():
    request = EnvRequest(PLACEMENT_ID)
    one = probe(make_factory(request), PLACEMENT_ID)
    many = probe_vector(make_vector_factory(request), PLACEMENT_ID)
    assert one.signature == many.signature
    assert one.outcomes == many.outcomes == OUTCOMES
    assert one.main_outcome == "covered"
    assert one.mask_source == many.mask_source == "info"
    assert one.trusted
    assert many.trusted


@pytest.mark.parametrize("num_rows", [1, 3, 8])
def test_a_row_of_a_batch_is_a_single_environment_bit_for_bit(num_rows):
    seeds = [7, 3, 2**31 - 1, 12, 0, 5, 2**62, 1][:num_rows]
    vec, envs = PlacementVectorEnv(num_rows), [PlacementEnv() for _ in seeds]
    obs, infos = vec.reset(seed=seeds)
    for row, env in enumerate(envs):
        assert np.array_equal(obs[row], env.reset(seed=seeds[row])[0])
    rng = np.random.default_rng(1)
    mask = infos["action_mask"]
    for step in range(1, 13):
        actions = draw_legal(mask, rng)
        obs, rewards, terminated, truncated, infos = vec.step(actions)
        mask = infos["action_mask"]
        assert terminated.all() == (step % 4 == 0)
        assert not truncated.any()
        for row, env in enumerate(envs):
            one, reward, over, _, info = env.step(actions[row])
            assert (reward, over) == (rewards[row], terminated[row])
            batch = infos["final_info"] if over else infos
            assert info["outcome"] == batch["outcome"][row]
            terms = {name: value[row] for name, value in batch["reward_terms"].items() if name[0] != "_"}
            assert info["reward_terms"] == terms
            assert sum(terms.values()) == reward
            assert np.array_equal(info["action_mask"], batch["action_mask"][row])
            if over:
                assert np.array_equal(one, infos["final_obs"][row])
                metrics = batch["episode_metrics"]
                assert info["episode_metrics"] == {
                    name: values[row] for name, values in metrics.items() if name[0] != "_"
                }
                assert (info["outcome"] == "covered") == (info["episode_metrics"]["coverage"] >= 0.85)
                one, first = env.reset()
                assert np.array_equal(first["action_mask"], mask[row])
            assert np.array_equal(one, obs[row])


def test_the_batched_vector_of_the_product_counts_episodes_terms_and_outcomes():
    spec = probe_vector(make_vector_factory(EnvRequest(PLACEMENT_ID)), PLACEMENT_ID)
    with BatchedVec(PlacementVectorEnv(8), spec, lambda env_id, episode: 5 + env_id) as vec:
        mask = vec.reset().mask
        rng = np.random.default_rng(0)
        for _ in range(4):
            batch = vec.step(draw_legal(mask, rng))
            mask = batch.mask
    assert len(batch.episodes) == 8
    for episode in batch.episodes:
        assert episode.outcome in OUTCOMES
        assert episode.terminated
        terms = [episode.metrics[f"reward_terms/{name}"] for name in ("coverage", "ridership", "waiting")]
        assert sum(terms) == pytest.approx(episode.ret)
        metrics = episode.metrics
        worth = metrics["coverage"] + 1.5 * metrics["ridership"] - 0.25 * metrics["waiting_min"]
        assert worth == pytest.approx(episode.ret)


def test_instances_differ_by_seed_and_episode_unless_they_are_fixed():
    vec = PlacementVectorEnv(3)
    spread, _ = vec.reset(seed=5)
    listed, _ = vec.reset(seed=[5, 6, 7])
    assert np.array_equal(spread, listed)
    following, _ = vec.reset()
    assert len(np.unique([*listed, *following], axis=0)) == 6
    unseeded, _ = PlacementVectorEnv(2).reset()
    assert not np.array_equal(unseeded[0], unseeded[1])
    fixed = PlacementVectorEnv(3, instance="fixed")
    first, _ = fixed.reset(seed=5)
    assert len(np.unique([*first, *fixed.reset()[0], *fixed.reset(seed=1)[0]], axis=0)) == 1


def test_an_illegal_action_is_refused_with_the_rule():
    env = PlacementEnv()
    with pytest.raises(UsageError, match=r"step\(\) before reset\(\)"):
        env.step(0)
    _, info = env.reset(seed=0)
    assert info["action_mask"].all()
    _, _, _, _, info = env.step(7)
    assert np.flatnonzero(info["action_mask"] == 0).tolist() == [7]
    before = env.get_state()
    with pytest.raises(
        UsageError, match=r"action 7 is illegal: the site has a station already, .* one where"
    ):
        env.step(7)
    with pytest.raises(UsageError, match="action 20 does not exist; the sites are 0 to 19"):
        env.step(20)
    with pytest.raises(UsageError, match="takes one whole number from 0 to 19 for each environment"):
        env.step(1.5)
    assert np.array_equal(env.get_state()["order"], before["order"])
    vec = PlacementVectorEnv(2)
    with pytest.raises(UsageError, match=r"step\(\) before reset\(\); reset first"):
        vec.step(np.zeros(2, np.int64))
    vec.reset(seed=0)
    vec.step(np.array([1, 2]))
    with pytest.raises(UsageError, match="action 2 is illegal"):
        vec.step(np.array([0, 2]))
    with pytest.raises(UsageError, match="actions of shape"):
        vec.step(np.zeros(3, np.int64))


def test_other_wrong_calls_are_explained():
    env = PlacementEnv()
    env.reset(seed=0)
    for _ in range(4):
        env.step(env.action_space.sample())
    with pytest.raises(UsageError, match="after the end of the episode; reset first"):
        env.step(0)
    with pytest.raises(UsageError, match=r"render\(\) without a render mode"):
        env.render()
    with pytest.raises(UsageError, match="render_mode='human' is unknown; use rgb_array or none"):
        PlacementEnv(render_mode="human")
    with pytest.raises(UsageError, match="the batched mission draws nothing"):
        PlacementVectorEnv(2, render_mode="rgb_array")
    with pytest.raises(UsageError, match="3 seeds for 2 rows; give one for each"):
        PlacementVectorEnv(2).reset(seed=[1, 2, 3])


def test_samples_of_the_action_space_are_legal():
    env = PlacementEnv(5, 5)
    for seed in range(20):
        env.reset(seed=seed)
        placed = []
        for _ in range(5):
            placed.append(int(env.action_space.sample()))
            env.step(placed[-1])
        assert sorted(placed) == [0, 1, 2, 3, 4]
    only = np.array([0, 0, 1, 0, 0], np.int8)
    assert env.action_space.sample(mask=only) == 2


@pytest.mark.parametrize("steps", [pytest.param(100_000, marks=pytest.mark.slow), 4_000])
def test_masked_play_never_breaks_a_rule(steps):
    vec = PlacementVectorEnv(500, num_sites=8, num_stations=7)
    _, infos = vec.reset(seed=0)
    rng = np.random.default_rng(0)
    for _ in range(steps // 500):
        _, _, _, _, infos = vec.step(draw_legal(infos["action_mask"], rng))


def test_a_batch_goes_on_exactly_from_its_saved_state():
    rng = np.random.default_rng(3)
    one, other = PlacementVectorEnv(6), PlacementVectorEnv(6)
    _, infos = one.reset(seed=1)
    for _ in range(6):
        _, _, _, _, infos = one.step(draw_legal(infos["action_mask"], rng))
    other.reset(seed=99)
    other.set_state(copy_plain(one.get_state()))
    for _ in range(6):
        actions = draw_legal(infos["action_mask"], rng)
        left, right = one.step(actions), other.step(actions)
        infos = left[4]
        assert all(np.array_equal(a, b) for a, b in zip(left[:4], right[:4], strict=True))
        assert np.array_equal(infos["action_mask"], right[4]["action_mask"])


def test_a_single_environment_goes_on_exactly_is_picklable_and_refuses_a_foreign_state():
    one, other = PlacementEnv(), PlacementEnv()
    one.reset(seed=1)
    for action in (3, 9):
        one.step(action)
    other.set_state(copy_plain(one.get_state()))
    copies = [one, other, pickle.loads(pickle.dumps(one)), copy.deepcopy(one)]
    results = [env.step(11) for env in copies]
    for env, result in zip(copies, results, strict=True):
        assert np.array_equal(result[0], results[0][0])
        assert result[1:4] == results[0][1:4]
        assert env.action_space.free.tolist() == results[0][4]["action_mask"].tolist()
    for foreign in (PlacementEnv(num_sites=21), PlacementVectorEnv(2)):
        foreign.reset(seed=0)
        with pytest.raises(UsageError, match="other sizes or rules, or of another number of environments"):
            other.set_state({"running": True} | foreign.get_state())


def test_every_call_gives_fresh_arrays():
    vec = PlacementVectorEnv(2)
    obs, infos = vec.reset(seed=0)
    kept = [obs, infos["action_mask"]]
    copies = [array.copy() for array in kept]
    for site in range(6):
        obs, rewards, terminated, _, infos = vec.step(np.full(2, site))
        for array in (obs, rewards, terminated, infos["action_mask"], *infos["reward_terms"].values()):
            kept.append(array)
            copies.append(array.copy())
    assert all(np.array_equal(array, copy) for array, copy in zip(kept, copies, strict=True))


def test_the_vector_form_is_registered_with_same_step_reset():
    vec = gym.make_vec(PLACEMENT_ID, num_envs=3, vectorization_mode="vector_entry_point", num_sites=9)
    assert isinstance(vec, PlacementVectorEnv)
    assert vec.metadata["autoreset_mode"] == AutoresetMode.SAME_STEP
    assert vec.action_space == gym.spaces.MultiDiscrete([9, 9, 9])
    vec.close()
