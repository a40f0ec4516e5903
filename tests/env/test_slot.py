"""One environment: what it counts, what it refuses, and how it comes back."""

from itertools import pairwise

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from mission_gym.env import slot as slot_module
from mission_gym.env.factory import EnvRequest, make_factory
from mission_gym.env.probe import probe
from mission_gym.env.slot import EnvSlot, action_rows
from mission_gym.errors import EnvContractError, EnvFailure, UsageError
from toys import Constant, DictMask, Faulty, Identity, Pointer, Stateful, Toy, Unseeded


def make_slot(factory, env_id=3):
    return EnvSlot(factory, probe(factory, "toy"), env_id, lambda episode: 100 + episode)


def legal_action(slot, rng):
    """An action of the environment's own form, drawn under the mask."""
    action = slot._spec.action
    if action.kind == "box":
        return rng.uniform(action.low, action.high).astype(action.dtype).reshape(action.shape)
    starts = np.cumsum((0, *action.nvec))
    mask = np.ones(starts[-1], bool) if slot.mask is None else slot.mask
    parts = [rng.choice(np.flatnonzero(mask[a:b])) for a, b in pairwise(starts)]
    return action_rows(slot._spec, np.array(parts).reshape(1, *action.shape))[0]


def play(slot, num_steps, rng):
    """Play on, with resets; return every number seen."""
    trace = []
    for _ in range(num_steps):
        reward, terminated, truncated = slot.step(legal_action(slot, rng))
        trace.append((reward, terminated, truncated, [np.array(leaf).tolist() for leaf in slot.obs]))
        if slot.ended:
            trace.append(slot.finish(terminated))
            slot.reset(slot.episode + 1)
    return trace


def test_an_episode_with_terms_metrics_and_outcome():
    slot = make_slot(DictMask)
    slot.reset(5)
    for _ in range(10):
        _, terminated, truncated = slot.step(np.array([slot.env.colour, 1 - slot.env.side]))
    assert (terminated, truncated, slot.ended) == (False, True, True)
    episode = slot.finish(terminated)
    assert episode[:8] == (
        3,
        5,
        105,
        5.0,
        10,
        "lost",
        False,
        {"right": 0.0, "reward_terms/colour": 5.0, "reward_terms/side": 0.0},
    )


def test_what_fits_by_value_is_accepted():
    class Loose(Constant):
        def observe(self):
            return [1.0]

        def step(self, action):
            obs, _, _, _, info = self.advance(0.0)
            return obs, np.array([2]), np.bool_(False), 0, info

    slot = make_slot(Loose)
    slot.reset(0)
    assert slot.step(0) == (2.0, False, False)
    assert slot.obs[0].shape == (1,)


@pytest.mark.parametrize(
    ("fail", "message"),
    [
        (
            "shape",
            r"environment 3, seed 100, episode 0, step 2: the observation has shape \(3,\) and dtype "
            r"float32, expected shape \(2,\)",
        ),
        ("space", r"step 2: the observation has shape \(4,\)"),
        ("no_action", r"step 2: the action mask array\(\[False, False\]\) has no legal action"),
    ],
)
def test_broken_contracts(fail, message):
    slot = make_slot(lambda: Faulty(fail, at=2))
    slot.reset(0)
    slot.step(0)
    with pytest.raises(EnvContractError, match=message):
        slot.step(0)


class Odd(Constant):
    """Returns whatever is put into `result`, by position."""

    def __init__(self, **changes):
        super().__init__()
        self.changes = changes

    def step(self, action):
        names = ("obs", "reward", "terminated", "truncated", "info")
        result = dict(zip(names, self.advance(1.0), strict=True))
        return tuple({**result, **self.changes}.values())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"reward": None}, "the reward is None, expected one number"),
        ({"reward": np.zeros(2)}, r"the reward is array\(\[0., 0.\]\)"),
        ({"terminated": "no"}, "terminated is 'no', expected True or False"),
        ({"truncated": 2}, "truncated is 2, expected True or False"),
        ({"info": {"reward_terms": 3}}, r'info\["reward_terms"\] is 3, expected a dict of numbers'),
        ({"info": {"reward_terms": {"x": None}}}, r"is \{'x': None\}, expected a dict of numbers"),
        ({"info": None}, "info must be a dict, got NoneType"),
        ({"obs": np.zeros(1, complex)}, "the observation has shape .* and dtype complex128"),
        ({"obs": [[1.0], [2.0, 3.0]]}, r"the observation has shape \(\)"),
        ({"sixth": 1}, r"step\(\) must return \(observation, reward, terminated, truncated, info\)"),
    ],
)
def test_odd_steps(changes, message):
    slot = make_slot(lambda: Odd(**changes))
    slot.reset(0)
    with pytest.raises(EnvContractError, match=message):
        slot.step(0)


class Casts(Toy):
    """Shows what it is given."""

    observation_space = spaces.Dict(
        {"real": spaces.Box(-9.0, 9.0, (2,), np.float32), "byte": spaces.Box(0, 255, (2,), np.uint8)}
    )
    action_space = spaces.Discrete(2)

    def __init__(self, shown):
        self.shown = {"real": np.zeros(2, np.float32), "byte": np.zeros(2, np.uint8)} | shown

    def observe(self):
        return self.shown

    def step(self, action):
        return self.advance(0.0)


@pytest.mark.parametrize(
    ("shown", "conversions"),
    [
        ({"real": np.array([0.1, 2.0])}, {"real": "float64"}),
        ({"real": np.array([1, 2])}, {"real": "int64"}),
        ({"real": np.array([True, False])}, {"real": "bool"}),
        ({"real": [0.1, 2]}, {}),
        ({"byte": np.array([0, 255])}, {"byte": "int64"}),
        ({"byte": [0, 255]}, {}),
    ],
)
def test_values_that_fit_are_converted_to_the_dtype_of_the_space(shown, conversions):
    slot = make_slot(lambda: Casts(shown))
    slot.reset(0)
    byte, real = slot.obs
    assert (byte.dtype, real.dtype) == (np.uint8, np.float32)
    expected = slot.env.shown
    np.testing.assert_array_equal(real, np.asarray(expected["real"], np.float32))
    np.testing.assert_array_equal(byte, expected["byte"])
    assert slot.conversions == conversions


@pytest.mark.parametrize(
    ("shown", "message"),
    [
        (
            {"byte": np.array([-1, 0])},
            r"'byte' has values from -1 to 0 in dtype int64, expected shape \(2,\)",
        ),
        ({"byte": np.array([0, 256])}, r"'byte' has values from 0 to 256 in dtype int64"),
        ({"byte": np.zeros(2)}, r"dtype float64, expected .* uint8 .*\.astype\(np\.uint8\), or declare"),
        ({"byte": [0.5, 1.0]}, r"dtype float64, expected .* uint8"),
        ({"real": np.array(["1", "2"])}, r"dtype <U1, expected shape \(2,\) and dtype float32 as in the"),
    ],
)
def test_values_that_do_not_fit_are_refused(shown, message):
    slot = make_slot(lambda: Casts(shown))
    with pytest.raises(EnvContractError, match=message):
        slot.reset(0)


def test_a_leaf_is_named_and_a_missing_key_too():
    class Bad(DictMask):
        broken = False

        def observe(self):
            obs = super().observe()
            if self.broken == "dtype":
                obs["camera"] = obs["camera"] / 255
            elif self.broken:
                del obs["body"]["pose"]
            return obs

    slot = make_slot(Bad)
    slot.reset(0)
    slot.env.broken = "dtype"
    with pytest.raises(EnvContractError, match=r"observation 'camera' has shape .* dtype float64, expected"):
        slot.reset(1)
    slot.env.broken = "key"
    with pytest.raises(EnvContractError, match=r"does not fit its space .KeyError: 'pose'"):
        slot.reset(1)


def test_masks_must_come_with_every_step_but_the_last():
    class Forgets(DictMask):
        def step(self, action):
            obs, reward, terminated, truncated, info = super().step(action)
            if self.steps in (self.forget_at, self.length):
                del info["action_mask"]
            return obs, reward, terminated, truncated, info

    slot = make_slot(Forgets)
    slot.env.forget_at = 0
    slot.reset(0)
    play(slot, 10, np.random.default_rng(0))
    slot.env.forget_at = 1
    with pytest.raises(
        EnvContractError, match=r"the action mask \(info\) is None, expected a flat array of 5"
    ):
        slot.step(legal_action(slot, np.random.default_rng(0)))


def test_mask_from_a_method_and_from_the_observation():
    class Method(Identity):
        def action_masks(self):
            return np.arange(4) == self.target

    class InObs(Identity):
        def __init__(self):
            super().__init__()
            keys = {"action_mask": spaces.MultiBinary(4), "x": spaces.Discrete(4)}
            self.observation_space = spaces.Dict(keys)

        def observe(self):
            return {"action_mask": (np.arange(4) == self.target).astype(np.int8), "x": self.target}

    for factory in (Method, InObs):
        slot = make_slot(factory)
        slot.reset(0)
        slot.step(0)
        assert np.flatnonzero(slot.mask) == slot.env.target
        assert len(slot.obs) == 1


def test_outcomes_are_checked():
    class Typo(DictMask):
        def step(self, action):
            result = super().step(action)
            if "outcome" in result[4]:
                result[4]["outcome"] = self.says
            return result

    for says, message in [
        ("woon", r"not declared in .* \(did you mean 'won'\?\)"),
        (1, "is 1, expected a name"),
    ]:
        slot = make_slot(Typo)
        slot.env.says = says
        slot.reset(0)
        with pytest.raises(EnvContractError, match=message):
            play(slot, 10, np.random.default_rng(0))


def test_metrics_must_be_a_dict():
    slot = make_slot(lambda: Odd(truncated=True, info={"episode_metrics": 3}))
    slot.reset(0)
    slot.step(0)
    with pytest.raises(EnvContractError, match=r'info\["episode_metrics"\] is 3, expected a dict'):
        slot.finish(False)


def test_failures_name_seed_step_and_action():
    slot = make_slot(lambda: Faulty("raise", at=2))
    slot.reset(4)
    slot.step(1)
    message = (
        r"environment 3, seed 104, episode 4, step 1: step\(\) raised RuntimeError: the simulator fell over; "
    )
    with pytest.raises(EnvFailure, match=message + "the action was 1") as caught:
        slot.step(1)
    assert isinstance(caught.value.__cause__, RuntimeError)
    slot = EnvSlot(lambda: Faulty("reset"), probe(lambda: Faulty("raise"), "toy"), 0, lambda episode: 7)
    with pytest.raises(
        EnvFailure, match=r"seed 7, episode 0, step 0: reset\(\) raised RuntimeError: the map"
    ):
        slot.reset(0)


def test_stepping_out_of_order_and_other_spaces():
    slot = make_slot(Constant)
    with pytest.raises(UsageError, match="the episode is over; reset the environment"):
        slot.step(0)
    with pytest.raises(EnvContractError, match=r"environment 1 has spaces .* all environments must be alike"):
        EnvSlot(Pointer, probe(Constant, "toy"), 1, lambda episode: 0)


def test_a_kept_action_is_not_changed_by_the_environment():
    class Greedy(Pointer):
        def step(self, action):
            action *= 0
            return super().step(action)

    slot = make_slot(Greedy)
    slot.reset(0)
    slot.step(np.ones(2, np.float32))
    assert slot.state().actions.tolist() == [[1.0, 1.0]]


EXACT = [
    ("CartPole-v1", "replay"),
    ("Pendulum-v1", "replay"),
    ("LunarLander-v3", "replay"),
    (DictMask, "replay"),
    (Stateful, "state"),
    (lambda: gym.wrappers.TimeLimit(Stateful(), 17), "state"),
    (lambda: gym.wrappers.TransformReward(Stateful(), lambda r: 2 * r), "replay"),
]


@pytest.mark.parametrize(("env", "how"), EXACT)
@pytest.mark.parametrize("before", [0, 13, 60])
def test_restore_is_exact(env, how, before):
    factory = make_factory(EnvRequest(env) if isinstance(env, str) else env)
    straight, rng = make_slot(factory), np.random.default_rng(1)
    straight.reset(0)
    play(straight, before, rng)
    state = straight.state()
    resumed = make_slot(factory)
    assert resumed.restore(state) == how
    for one, two in zip(resumed.obs, straight.obs, strict=True):
        np.testing.assert_array_equal(one, two)
    assert (resumed.mask is None) == (straight.mask is None)
    again = np.random.default_rng(2)
    assert play(resumed, 80, np.random.default_rng(2)) == play(straight, 80, again)


def test_an_environment_that_ignores_its_seed_starts_the_next_episode():
    slot, rng = make_slot(Unseeded), np.random.default_rng(0)
    slot.reset(0)
    play(slot, 5, rng)
    resumed = make_slot(Unseeded)
    assert resumed.restore(slot.state()) == (
        "boundary: the replay of 5 steps gave another observation; the environment ignores its seed"
    )
    assert (resumed.episode, resumed.steps, resumed.seed) == (1, 0, 101)


def test_reasons_for_a_boundary(monkeypatch):
    slot = make_slot(Constant)
    slot.reset(0)
    for _ in range(10):
        slot.step(0)
    assert slot.state().reason == "its episode was over"
    slot.reset(0, seed=None)
    assert slot.state().reason == "the episode has no seed"
    slot.reset(0)
    slot.step(0)
    slot._timed_s = 50.0 * slot._timed_steps
    assert make_slot(Constant).restore(slot.state()) == (
        "boundary: replaying 1 steps would take 50.0 s, over the 30.0 s allowed"
    )
    fell = make_slot(lambda: Faulty("raise", at=1))
    state = slot.state()
    state.step_s, state.obs = 0.0, (np.zeros(2, np.float32),)
    assert fell.restore(state).startswith("boundary: the replay failed (environment 3, seed 100, episode 0")
    monkeypatch.setattr(slot_module, "MAX_REPLAY_STEPS", 2)
    for _ in range(2):
        slot.step(0)
    assert slot.state().reason == "its actions were not kept (the limit is 2 steps)"


def test_a_state_that_is_not_plain_is_replayed_and_a_bad_one_starts_anew():
    class Opaque(Stateful):
        def get_state(self):
            return {"object": self}

    class Fussy(Stateful):
        def set_state(self, state):
            raise RuntimeError("another version")

    slot = make_slot(Opaque)
    slot.reset(0)
    assert slot.state().how == "replay"
    slot = make_slot(Fussy)
    slot.reset(0)
    assert slot.restore(slot.state()) == "boundary: set_state() raised RuntimeError: another version"
    plain = make_slot(Stateful)
    plain.reset(0)
    slot = EnvSlot(Unseeded, probe(Stateful, "toy"), 0, lambda episode: episode)
    assert slot.restore(plain.state()) == "boundary: the environment no longer has set_state()"
