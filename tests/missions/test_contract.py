"""The contract of all missions: Gymnasium's rules, rows equal to single games, exact states, baselines."""

from __future__ import annotations

import copy
import importlib
import pickle
import warnings
from dataclasses import dataclass, field
from typing import Any

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
from mission_gym.procs import start_companion
from mission_gym.vector.batched import BatchedVec
from mission_gym_missions import CAPTURE_ID, EXPLORE_ID, PLACEMENT_ID, TERRITORY_ID
from mission_gym_missions.capture.env import CaptureEnv, CaptureVectorEnv
from mission_gym_missions.explore.env import ExploreEnv
from mission_gym_missions.explore.settings import make_companion, read_settings
from mission_gym_missions.placement.env import PlacementEnv, PlacementVectorEnv
from mission_gym_missions.territory.env import TerritoryEnv, TerritoryVectorEnv
from mission_gym_missions.territory.rules import SHIPPED

ROWS = 4


@dataclass
class Mission:
    """A mission as the contract sees it. steps: enough that every row ends at least one episode."""

    env_id: str
    single: Any
    batched: Any
    steps: int
    outcomes: tuple[str, ...]
    baselines: tuple[str, ...]
    modes: str = "rgb_array"
    exact_terms: bool = True  # reward terms sum to the reward without rounding
    changed: float = 0.01  # share of pixels that an episode changes at least
    variants: tuple[dict[str, Any], ...] = ({},)  # for the checkers
    foreign: dict[str, Any] = field(default_factory=dict)  # settings whose states do not fit
    kwargs: dict[str, Any] = field(default_factory=dict)


MISSIONS = {
    "capture": Mission(
        CAPTURE_ID, CaptureEnv, CaptureVectorEnv, 450,
        ("captured", "all_disabled", "stalled", "timeout"), ("noop", "random", "rush", "careful", "holder"),
        modes="rgb_array, human", variants=tuple({"level": level} for level in ("easy", "normal", "hard")),
    ),
    "placement": Mission(
        PLACEMENT_ID, PlacementEnv, PlacementVectorEnv, 13,
        ("covered", "uncovered"), ("greedy", "lookahead", "kmeans", "exact"),
        variants=({}, {"instance": "fixed"}, {"num_sites": 3, "num_stations": 3}), foreign={"num_sites": 21},
        changed=0.05,
    ),
    "territory": Mission(
        TERRITORY_ID, TerritoryEnv, TerritoryVectorEnv, 26,
        ("victory", "eliminated", "timeout"), ("expander", "conqueror"), foreign={"num_bots": 6},
        exact_terms=False,
    ),
    "explore": Mission(
        EXPLORE_ID, ExploreEnv, None, 60,
        ("found", "gave_up", "budget", "site_down"), ("random", "breadth_first", "greedy"),
    ),
}  # fmt: skip
BATCHED = [name for name, mission in MISSIONS.items() if mission.batched]
THREADED = ["capture", "territory"]


@pytest.fixture(scope="module")
def resources(tmp_path_factory):
    """Keyword arguments that missions need here: short games of territory, and a server for explore."""
    short = tmp_path_factory.mktemp("rules") / "short.yaml"
    short.write_text(SHIPPED.read_text().replace("max_steps: 240", "max_steps: 12"))
    fast = {"latency_ms": 0, "jitter_ms": 0}
    companion = start_companion(make_companion(read_settings(fast)))
    yield {"territory": {"rules_file": str(short)}, "explore": fast | companion.kwargs}
    del companion  # the server ends with its last holder


@pytest.fixture(params=MISSIONS)
def mission(request, resources, monkeypatch):
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")  # the checkers open windows too
    found = copy.copy(MISSIONS[request.param])
    found.kwargs = resources.get(request.param, {})
    return found


def for_missions(names):
    return pytest.mark.parametrize("mission", names, indirect=True)


def draw_legal(mask, space, rng):
    """A legal action per row of masks [..., M], other than explore's to stop."""
    legal = mask.copy()
    if isinstance(space, gym.spaces.MultiDiscrete):
        legal = legal.reshape(*mask.shape[:-1], space.nvec.size, -1)
    elif mask.ndim == 1 and legal[1:].any():
        legal[0] = 0
    return (rng.random(legal.shape) * legal).argmax(axis=-1)


def assert_same(one, other):
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for name in one:
            assert_same(one[name], other[name])
    else:
        assert np.array_equal(one, other)


def take_row(batch, row):
    if isinstance(batch, dict):
        return {name: take_row(values, row) for name, values in batch.items() if name[0] != "_"}
    return batch[row]


def list_arrays(obs):
    return list(obs.values()) if isinstance(obs, dict) else [obs]


def test_both_checkers_accept_it_without_a_warning(mission):
    for kwargs in mission.variants:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            env = gym.make(mission.env_id, render_mode="rgb_array", **mission.kwargs | kwargs)
            assert type(env.unwrapped) is mission.single
            check_env(env.unwrapped)
            check_env_sb3(env.unwrapped)
            env.close()


def test_the_product_reads_outcomes_and_mask(mission):
    spec = probe(make_factory(EnvRequest(mission.env_id, mission.kwargs)), mission.env_id)
    assert spec.outcomes == mission.outcomes
    assert spec.main_outcome == mission.outcomes[0]
    assert spec.mask_source == "info"
    assert spec.trusted
    if mission.batched:
        many = probe_vector(make_vector_factory(EnvRequest(mission.env_id, mission.kwargs)), mission.env_id)
        assert many.signature == spec.signature
        assert many.outcomes == spec.outcomes
        assert many.mask_source == spec.mask_source
        assert many.trusted


@for_missions(BATCHED)
def test_the_batched_form_is_registered_with_same_step_reset(mission):
    vec = gym.make_vec(mission.env_id, num_envs=3, vectorization_mode="vector_entry_point", **mission.kwargs)
    assert type(vec) is mission.batched
    assert vec.metadata["autoreset_mode"] == AutoresetMode.SAME_STEP
    obs, _ = vec.reset(seed=0)
    assert obs in vec.observation_space
    vec.close()


@pytest.mark.parametrize(
    ("mission", "more"),
    [("capture", {}), ("placement", {}), ("territory", {"threads": 1}), ("territory", {"threads": 2})],
    indirect=["mission"],
)
def test_a_row_of_a_batch_is_a_single_environment_bit_for_bit(mission, more):
    seeds = [7, 3, 2**31 - 1, 2**62]
    vec = mission.batched(ROWS, **mission.kwargs, **more)
    envs = [mission.single(**mission.kwargs) for _ in seeds]
    obs, infos = vec.reset(seed=seeds)
    for row, env in enumerate(envs):
        first, info = env.reset(seed=seeds[row])
        assert_same(first, take_row(obs, row))
        assert_same(info["action_mask"], infos["action_mask"][row])
    rng, ended = np.random.default_rng(1), np.zeros(ROWS, int)
    for _ in range(mission.steps):
        actions = draw_legal(infos["action_mask"], vec.single_action_space, rng)
        obs, rewards, terminated, truncated, infos = vec.step(actions)
        assert not truncated.any()
        ended += terminated
        for row, env in enumerate(envs):
            one, reward, over, _, info = env.step(actions[row])
            assert (reward, over) == (rewards[row], terminated[row])
            batch = infos["final_info"] if over else infos
            assert info["outcome"] == batch["outcome"][row]
            assert info["reward_terms"] == take_row(batch["reward_terms"], row)
            total = sum(info["reward_terms"].values())
            assert total == (reward if mission.exact_terms else pytest.approx(reward))
            assert_same(info["action_mask"], batch["action_mask"][row])
            if over:
                assert infos["_final_obs"][row]
                assert_same(one, take_row(infos["final_obs"], row))
                assert info["episode_metrics"] == take_row(batch["episode_metrics"], row)
                one, first = env.reset()
                assert_same(first["action_mask"], infos["action_mask"][row])
            assert_same(one, take_row(obs, row))
    assert ended.all()
    vec.close()


@pytest.mark.parametrize(
    ("mission", "num_rows", "more"),
    [
        ("capture", 1, {"threads": 1}),
        ("capture", 5, {"threads": 2}),
        ("capture", 16, {"threads": 3}),
        ("capture", 16, {"threads": 16}),
        ("territory", 5, {"threads": 2}),
        ("placement", 1, {}),
        ("placement", 5, {}),
    ],
    indirect=["mission"],
)
def test_rows_do_not_depend_on_their_number_threads_or_neighbours(mission, num_rows, more):
    reference, other = (
        mission.batched(16, **mission.kwargs),
        mission.batched(num_rows, **mission.kwargs, **more),
    )
    last, rng = list(range(16))[-num_rows:], np.random.default_rng(2)
    _, infos = reference.reset(seed=list(range(16)))
    other.reset(seed=last)
    for _ in range(min(mission.steps, 150)):
        actions = draw_legal(infos["action_mask"], reference.single_action_space, rng)
        obs, rewards, *_, infos = reference.step(actions)
        other_obs, other_rewards, *_ = other.step(actions[last])
        assert_same(take_row(obs, last), other_obs)
        assert_same(rewards[last], other_rewards)
    reference.close()
    other.close()


@for_missions(BATCHED)
def test_the_products_vector_counts_episodes_terms_and_outcomes(mission):
    spec = probe_vector(make_vector_factory(EnvRequest(mission.env_id, mission.kwargs)), mission.env_id)
    inner, rng, episodes = mission.batched(8, **mission.kwargs), np.random.default_rng(0), []
    with BatchedVec(inner, spec, lambda env_id, episode: 5 + env_id) as vec:
        mask = vec.reset().mask
        while len(episodes) < 8:
            batch = vec.step(draw_legal(mask, inner.single_action_space, rng))
            mask = batch.mask
            episodes += batch.episodes
    for episode in episodes:
        assert episode.outcome in mission.outcomes
        assert episode.terminated
        terms = [value for name, value in episode.metrics.items() if name.startswith("reward_terms/")]
        assert sum(terms) == pytest.approx(episode.ret)


@for_missions(BATCHED)
def test_one_seed_is_spread_over_the_rows_and_episodes_differ(mission):
    vec = mission.batched(3, **mission.kwargs)
    spread, _ = vec.reset(seed=5)
    listed, _ = vec.reset(seed=[5, 6, 7])
    assert_same(spread, listed)
    following, _ = vec.reset()
    rows = [take_row(obs, row) for obs in (listed, following) for row in range(3)]
    assert len({b"".join(array.tobytes() for array in list_arrays(row)) for row in rows}) == 6
    fresh = mission.batched(3, **mission.kwargs)
    fresh.reset(seed=[5, 6, 7])
    assert_same(fresh.reset()[0], following)
    first, _ = mission.batched(2, **mission.kwargs).reset()
    assert any(not np.array_equal(array[0], array[1]) for array in list_arrays(first))


@pytest.mark.parametrize(
    ("mission", "more"),
    [("capture", {}), ("capture", {"threads": 2}), ("placement", {}), ("territory", {"threads": 2})],
    indirect=["mission"],
)
def test_a_batch_continues_exactly_from_its_saved_state(mission, more):
    one, other = mission.batched(6, **mission.kwargs), mission.batched(6, **mission.kwargs, **more)
    rng = np.random.default_rng(3)
    _, infos = one.reset(seed=1)
    for _ in range(mission.steps // 3):
        *_, infos = one.step(draw_legal(infos["action_mask"], one.single_action_space, rng))
    other.reset(seed=99)
    other.set_state(copy_plain(one.get_state()))
    for _ in range(mission.steps // 3):
        actions = draw_legal(infos["action_mask"], one.single_action_space, rng)
        left, right = one.step(actions), other.step(actions)
        infos = left[4]
        for mine, theirs in zip(left[:4], right[:4], strict=True):
            assert_same(mine, theirs)
        assert_same(infos["action_mask"], right[4]["action_mask"])
    one.close()
    other.close()


def test_a_single_environment_continues_exactly_from_its_saved_state(mission):
    one, other = mission.single(**mission.kwargs), mission.single(**mission.kwargs)
    rng = np.random.default_rng(4)
    _, info = one.reset(seed=2)
    steps = min(mission.steps // 4, 30)
    for _ in range(steps):
        *_, info = one.step(draw_legal(info["action_mask"], one.action_space, rng))
    other.reset(seed=9)
    other.set_state(copy_plain(one.get_state()))
    copies = [one, other]
    if mission.batched:
        copies += [pickle.loads(pickle.dumps(one)), copy.deepcopy(one)]
    for _ in range(steps):
        if info["outcome"] is not None:
            break
        action = draw_legal(info["action_mask"], one.action_space, rng)
        (obs, *values, info), *others = [env.step(action) for env in copies]
        for other_obs, *other_values, other_info in others:
            assert_same(obs, other_obs)
            assert values == other_values
            assert pickle.dumps(info["reward_terms"]) == pickle.dumps(other_info["reward_terms"])
            assert_same(info["action_mask"], other_info["action_mask"])
    one.close()
    other.close()


@for_missions(BATCHED)
def test_a_foreign_state_is_refused(mission):
    env = mission.single(**mission.kwargs)
    foreign = [mission.batched(2, **mission.kwargs)]
    if mission.foreign:
        foreign.append(mission.single(**mission.kwargs | mission.foreign))
    for other in foreign:
        other.reset(seed=0)
        with pytest.raises(UsageError, match=r"belongs to other settings, .* or another number of environm"):
            env.set_state({"running": True, "actions": [], "terms": {}} | other.get_state())


@for_missions(BATCHED)
def test_every_call_gives_fresh_arrays(mission):
    vec, rng = mission.batched(2, **mission.kwargs), np.random.default_rng(0)
    obs, infos = vec.reset(seed=0)
    kept = [*list_arrays(obs), infos["action_mask"]]
    copies = [array.copy() for array in kept]
    for _ in range(6):
        actions = draw_legal(infos["action_mask"], vec.single_action_space, rng)
        obs, rewards, terminated, truncated, infos = vec.step(actions)
        terms = infos["reward_terms"].values()
        arrays = [*list_arrays(obs), rewards, terminated, truncated, infos["action_mask"], *terms]
        kept += arrays
        copies += [array.copy() for array in arrays]
    assert all(np.array_equal(array, copy) for array, copy in zip(kept, copies, strict=True))
    vec.close()


def test_baselines_are_legal_and_play_alike_in_both_forms(mission):
    env = mission.single(**mission.kwargs)
    assert tuple(env.baselines) == mission.baselines
    vec = mission.batched(3, **mission.kwargs) if mission.batched else None
    for name in mission.baselines:
        one, info = env.reset(seed=4)
        if vec:
            assert tuple(vec.baselines) == mission.baselines
            obs, infos = vec.reset(seed=4)
        for _ in range(min(mission.steps, 40)):
            action = env.baselines[name](one, info)
            assert env.action_space.contains(action)
            if vec:
                actions = vec.baselines[name](obs, infos["action_mask"])
                assert vec.action_space.contains(actions)
                if name != "random":
                    assert np.array_equal(action, actions[0])
                obs, *_, infos = vec.step(actions)
                action = actions[0]
            one, _, terminated, truncated, info = env.step(action)
            if terminated or truncated:
                one, info = env.reset()
    env.close()


def test_an_image_needs_no_display_and_shows_what_happens(mission, monkeypatch):
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"):
        monkeypatch.delenv(name, raising=False)
    env = mission.single(render_mode="rgb_array", **mission.kwargs)
    obs, info = env.reset(seed=0)
    first = env.render()
    assert (first.shape, first.dtype) == ((720, 1020, 3), np.uint8)
    assert np.array_equal(first, env.render())
    for _ in range(30):
        obs, _, terminated, truncated, info = env.step(env.baselines[mission.baselines[-1]](obs, info))
        if terminated or truncated:
            break
    later = env.render()
    assert (first != later).any(axis=2).mean() > mission.changed
    assert len(np.unique(later.reshape(-1, 3), axis=0)) > 100
    env.close()


def test_wrong_calls_are_explained(mission):
    env = mission.single(**mission.kwargs)
    action = env.action_space.sample()
    with pytest.raises(UsageError, match=r"step\(\) before reset\(\)"):
        env.step(action)
    _, info = env.reset(seed=0)
    with pytest.raises(UsageError, match=r"render\(\) without a render mode"):
        env.render()
    with pytest.raises(UsageError, match=f"render_mode='ansi' is unknown; use {mission.modes} or none"):
        mission.single(render_mode="ansi", **mission.kwargs)
    rng, over = np.random.default_rng(0), False
    while not over:
        action = draw_legal(info["action_mask"], env.action_space, rng)
        _, _, terminated, truncated, info = env.step(action)
        over = terminated or truncated
    assert info["outcome"] in mission.outcomes
    with pytest.raises(UsageError, match="after the end of the episode; reset first"):
        env.step(action)
    env.close()


@for_missions(BATCHED)
def test_wrong_calls_of_a_batch_are_explained(mission):
    vec = mission.batched(2, **mission.kwargs)
    with pytest.raises(UsageError, match=r"step\(\) before reset\(\); reset first"):
        vec.step(vec.action_space.sample())
    with pytest.raises(UsageError, match="3 seeds do not fit 2 rows; give one per row"):
        vec.reset(seed=[1, 2, 3])
    vec.reset(seed=0)
    with pytest.raises(
        UsageError, match=r"actions of shape .* do not fit; the mission takes integers from 0"
    ):
        vec.step(mission.batched(3, **mission.kwargs).action_space.sample())
    with pytest.raises(UsageError, match="render_mode='rgb_array' is not available in a batch"):
        mission.batched(2, render_mode="rgb_array", **mission.kwargs)
    vec.close()


@for_missions(THREADED)
def test_too_few_threads_are_refused(mission):
    with pytest.raises(UsageError, match="threads=0 is too low; use 1 or more"):
        mission.batched(2, threads=0, **mission.kwargs)


@for_missions(BATCHED)
def test_the_kernels_can_be_compiled_ahead(mission):
    module = importlib.import_module(f"{mission.single.__module__.rpartition('.')[0]}.simulator")
    module.compile_kernels()
    entry = getattr(module, "step_rows", None) or module.show_rows
    assert entry.stats.cache_path
    assert entry.nopython_signatures
    assert module.is_compiling() == bool(entry.stats.cache_misses)
