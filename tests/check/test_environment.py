"""The environment doctor: each finding is triggered by a small environment with exactly that fault."""

import random
import re
import time

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from mission_gym.check import environment
from mission_gym.check.environment import check_environment
from mission_gym.check.findings import has_errors
from mission_gym.env.factory import EnvRequest
from toys import Toy

TOYS = "toys"


class Walk(Toy):
    """Nothing is wrong with it: a seeded walk with three actions."""

    length = 20

    def __init__(self):
        self.observation_space = spaces.Box(-100.0, 100.0, (2,), np.float32)
        self.action_space = spaces.Discrete(3)
        self.place = np.zeros(2)

    def begin(self):
        self.place = self.np_random.uniform(-50, 50, 2)

    def observe(self):
        return self.place.astype(np.float32)

    def step(self, action):
        self.place = self.place + self.np_random.normal(size=2) + int(action)
        return self.advance(float(self.place[0]))


class TupleOfFour(Walk):
    def step(self, action):
        return super().step(action)[:4]


class GraphSpace(Walk):
    def __init__(self):
        super().__init__()
        self.observation_space = spaces.Graph(spaces.Discrete(2), None)


class BadMaskMethod(Walk):
    def action_masks(self):
        raise RuntimeError("no mask yet")


class NanReward(Walk):
    def step(self, action):
        obs, _, *rest = super().step(action)
        return obs, float("nan"), *rest


class Outside(Walk):
    def __init__(self):
        super().__init__()
        self.observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)


class OutsideCategory(Walk):
    def __init__(self):
        super().__init__()
        self.observation_space = spaces.Discrete(3)

    def observe(self):
        return np.int64(3)


class DimImage(Walk):
    def __init__(self):
        super().__init__()
        self.observation_space = spaces.Box(0, 255, (16, 16), np.uint8)

    def observe(self):
        return (self.place[0] > np.arange(256).reshape(16, 16) - 128).astype(np.uint8)


class NarrowRange(Walk):
    def __init__(self):
        super().__init__()
        self.observation_space = spaces.Box(-1e5, 1e5, (2,), np.float32)


class DeadChannel(Walk):
    def __init__(self):
        super().__init__()
        self.observation_space = spaces.Dict({"pose": spaces.Box(-100.0, 100.0, (4,), np.float32)})

    def observe(self):
        return {"pose": np.array([0.5, *self.place, 7.0], np.float32)}


class NumpyGlobal(Walk):
    def begin(self):
        self.place = np.random.uniform(-50, 50, 2)


class RandomLater(Walk):
    """The start is seeded, the steps are not."""

    def step(self, action):
        self.place = self.place + random.random()
        return self.advance(float(self.place[0]))


class TrueNoise(Walk):
    """Random from a source that nobody can seed."""

    def begin(self):
        self.place = np.random.default_rng().uniform(-50, 50, 2)


class SharedState(Walk):
    """Seeds the generator that all instances share."""

    shared = np.random.default_rng(0)

    def begin(self):
        SharedState.shared = np.random.default_rng(int(self.np_random.integers(1000)))
        super().begin()

    def step(self, action):
        self.place = self.place + self.shared.normal(size=2) + int(action)
        return self.advance(float(self.place[0]))


class SameStart(Walk):
    def begin(self):
        self.place = np.zeros(2)


class Puzzle(SameStart):
    def step(self, action):
        self.place = self.place + int(action)
        return self.advance(float(self.place[0]))


class DeadAction(Walk):
    def step(self, action):
        return super().step(min(int(action), 1))


class DeadPart(Walk):
    def __init__(self):
        super().__init__()
        self.action_space = spaces.MultiDiscrete([2, 3])

    def step(self, action):
        return super().step(action[0])


class DeadDimension(Walk):
    def __init__(self):
        super().__init__()
        self.action_space = spaces.Box(0.0, 5.0, (2,), np.float32)

    def step(self, action):
        return super().step(round(float(action[0])))


class WideDimension(Walk):
    """Clips its action to a twentieth of the bounds."""

    def __init__(self):
        super().__init__()
        self.action_space = spaces.Box(-20.0, 20.0, (2,), np.float32)

    def step(self, action):
        return super().step(round(float(np.clip(action[0], -1.0, 1.0)) + float(action[1])))


class HugeBounds(WideDimension):
    def __init__(self):
        super().__init__()
        self.action_space = spaces.Box(-np.float32([20.0, 1e5]), np.float32([20.0, np.inf]))


class BigBounds(Walk):
    def __init__(self):
        super().__init__()
        self.action_space = spaces.Box(-2e4, 2e4, (1,), np.float32)

    def step(self, action):
        return super().step(round(float(action[0])))


class ManyActions(Walk):
    def __init__(self):
        super().__init__()
        self.action_space = spaces.Discrete(40)


class LateRaise(Walk):
    """Raises only after the ten steps that are recorded and their replays."""

    length = 1
    num_steps = 0  # of all instances

    def step(self, action):
        LateRaise.num_steps += 1
        if self.num_steps > 30:
            raise ZeroDivisionError("that branch was never tried")
        return super().step(action)


class Endless(Walk):
    length = 10**9


class TimeAsDeath(Walk):
    def step(self, action):
        obs, reward, _, truncated, info = super().step(action)
        return obs, reward, truncated, False, info


class BothFlags(Walk):
    def step(self, action):
        obs, reward, _, truncated, info = super().step(action)
        return obs, reward, truncated, truncated, info


class FlatReward(Walk):
    def step(self, action):
        obs, _, *rest = super().step(action)
        return obs, 0.0, *rest


class HugeReward(Walk):
    def step(self, action):
        obs, reward, *rest = super().step(action)
        return obs, 1e6 * reward, *rest


class OpenMask(Walk):
    def info(self):
        return {"action_mask": np.ones(3, np.int8)}


class ShutMask(Walk):
    def info(self):
        return {"action_mask": np.array([1, 1, 0], np.int8)}


class NoOutcome(Walk):
    metadata = {"outcomes": ["won", "lost"], "main_outcome": "won"}


class Undeclared(Walk):
    def info(self):
        return {"outcome": "won"} if self.steps == self.length else {}


class WrongOutcome(NoOutcome):
    def info(self):
        return {"outcome": "wonn"} if self.steps == self.length else {}


class NoMainOutcome(Undeclared):
    metadata = {"outcomes": ["won"]}


class LastDigits(Walk):
    """As a simulator whose threads add up in another order each time."""

    def __init__(self):
        super().__init__()
        self.observation_space = spaces.Box(-100.0, 100.0, (2,), np.float64)

    def observe(self):
        return self.place * (1 + 1e-12 * random.random())


class ZeroIsNone(Walk):
    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed or None, options=options)


class ReusedArray(Walk):
    buffer = None

    def observe(self):
        if self.buffer is None:
            self.buffer = np.zeros(2, np.float32)
        self.buffer[:] = self.place
        return self.buffer


class Survivor(Walk):
    """Nothing is random that should not be, but the wind of an episode blows on in the next."""

    wind = 0.0

    def step(self, action):
        self.wind += 0.01
        self.place = self.place + self.wind
        return super().step(action)


class EndsAtWill(Walk):
    """Later seeds end when they like: what was recorded can't be played again."""

    def begin(self):
        super().begin()
        self.is_odd = bool(self.np_random_seed >= 3)

    def step(self, action):
        obs, reward, _, truncated, info = super().step(action)
        return obs, reward, self.is_odd and random.random() < 0.3, truncated, info


class Alone(Walk):
    """As emulators that allow one instance in a process."""

    num_open = 0

    def __init__(self):
        super().__init__()
        if Alone.num_open:
            raise RuntimeError("Cannot create multiple emulator instances per process")
        Alone.num_open += 1

    def close(self):
        Alone.num_open = 0


class SlowImport(Walk):
    """Takes longer to build for the first time than a check may last."""

    is_loaded = False

    def __init__(self):
        super().__init__()
        if not SlowImport.is_loaded:
            time.sleep(0.6)
        SlowImport.is_loaded = True


class Twins(Toy):
    """Of two numbers, with a mask over pairs, the second alone counts; one pair is never legal."""

    def __init__(self):
        self.observation_space = gym.spaces.Box(-100.0, 100.0, (1,), np.float32)
        self.action_space = gym.spaces.MultiDiscrete([2, 2], start=[0, 7])
        self.place = 0.0

    def begin(self):
        self.place = float(self.np_random.normal())

    def observe(self):
        return np.array([self.place], np.float32)

    def info(self):
        return {"action_mask": np.array([[1, 1], [1, 0]])}

    def step(self, action):
        self.place += float(action[1] - 7) - 0.5
        return self.advance(1.0)


class SlowStep(Walk):
    def step(self, action):
        time.sleep(0.05)
        return super().step(action)


def check(name, **options):
    module = "" if ":" in name or "-v" in name else f"{__name__}:"
    kwargs, wrap = options.pop("kwargs", {}), options.pop("wrap", ())
    options.setdefault("budget_s", 300.0)  # a busy machine must not change what is found
    return check_environment(EnvRequest(module + name, kwargs, wrap), **options)


def found(findings, level, name):
    return [finding for finding in findings if (finding.level, finding.name) == (level, name)]


def the_one(findings, level, name):
    (finding,) = found(findings, level, name)
    return finding


@pytest.mark.parametrize(
    "env_id",
    ["CartPole-v1", "Pendulum-v1", "Walk", f"{TOYS}:DictMask", "action_toys:Throw", "action_toys:Couples"],
)
def test_a_sound_environment_has_no_errors_and_no_warnings(env_id):
    findings = check(env_id)
    assert not [finding for finding in findings if finding.level in ("error", "warning")]
    assert not has_errors(findings)
    passed = {finding.name for finding in findings if finding.level == "ok"}
    assert passed >= {"contract", "observation", "channels", "endings", "reward", "seeding", "actions"}
    assert "backends" in passed


FAULTS = [
    ("Walk", "info", "speed", r"reset \d+ us \(p99 \d+ us\), step \d+ us .*observation of 8 bytes"),
    ("Walk", "info", "outcome", "declares no outcomes"),
    ("TupleOfFour", "error", "contract", r"step\(\) must return \(observation, reward, terminated"),
    ("GraphSpace", "error", "start", "observation space Graph is not supported"),
    ("BadMaskMethod", "error", "start", r"RuntimeError: no mask yet \(raised in .*test_environment.py, line"),
    ("NanReward", "error", "contract", "seed 0, episode 0, step 1: the reward is nan"),
    ("Outside", "warning", "observation", r"outside Box.* at seed 0, step 0: index \[1\] is .*, allowed -1"),
    (
        "OutsideCategory",
        "error",
        "contract",
        "seed 0, .*step 0: .* outside its space: it has 3, allowed are 0 to 2",
    ),
    ("DimImage", "warning", "observation", "the observation is an image but no pixel is above 1"),
    ("Survivor", "warning", "seeding", "in an instance that was used before: the observation after step 1"),
    ("Survivor", "info", "skipped", "dead actions: earlier episodes of an instance change later ones"),
    ("Survivor", "ok", "backends", "alone and side by side"),
    ("Alone", "warning", "backends", "a second instance .* raised RuntimeError: Cannot create multiple"),
    ("NarrowRange", "info", "observation", "entries 0, 1 used less than 1 % of the declared range"),
    ("DeadChannel", "warning", "channels", "entries 0, 3 of observation 'pose' never changed in 200 steps"),
    ("NumpyGlobal", "error", "seeding", "the first observation differs; .* the global numpy.random$"),
    ("RandomLater", "error", "seeding", "the observation after step 1 differs; .* the global random$"),
    ("TrueNoise", "error", "seeding", "the first observation differs$"),
    ("LastDigits", "warning", "seeding", "two episodes that differ by rounding: the first observation"),
    ("ZeroIsNone", "warning", "seeding", r"^seed 0 .* different episodes \(the first .*, and seed 1 did not"),
    (
        "SharedState",
        "error",
        "backends",
        "side by side play other episodes .*: the observation after step 1, seed 0",
    ),
    ("SameStart", "info", "seeding", "same first observation; fine if"),
    (
        "Puzzle",
        "warning",
        "seeding",
        "the same first observation and, for the same actions, the same episode",
    ),
    ("DeadAction", "warning", "actions", r"^actions 1, 2 had the same effect in all 50 tested situations"),
    ("DeadPart", "warning", "actions", r"^actions 0, 1, 2 of part 1 had the same effect"),
    ("DeadDimension", "warning", "actions", "^entry 1 of the action had no effect in all 50 tested"),
    (
        "WideDimension",
        "warning",
        "actions",
        "^entry 0 of the action had the same effect at 10% of its bounds",
    ),
    ("HugeBounds", "warning", "actions", "^the bounds of action entries 1 are infinite or above 1e6"),
    ("BigBounds", "warning", "actions", r"^the bounds of action entries 0 are above 10000"),
    ("ManyActions", "info", "skipped", "dead actions: more than 32 values"),
    ("Endless", "warning", "endings", "ran for 2000 steps without an end, and no time limit"),
    ("TimeAsDeath", "warning", "endings", "all 10 episodes ended as terminated after exactly 20 steps"),
    ("BothFlags", "warning", "endings", "both set at the end of 10 episodes"),
    ("FlatReward", "warning", "reward", "all 10 random episodes had the same return 0"),
    ("HugeReward", "warning", "reward", r"the largest reward of a step is .*e\+07"),
    ("OpenMask", "info", "mask", r"the action mask \(info\) never forbade an action"),
    ("OpenMask", "info", "skipped", "Gymnasium's own checker, which does not support action masks"),
    ("ShutMask", "info", "mask", r"entries 2 of the action mask \(info\) were never legal"),
    (
        "NoOutcome",
        "warning",
        "outcome",
        r'10 of 10 episodes ended without info\["outcome"\], first at seed 0',
    ),
    ("Undeclared", "warning", "outcome", "is won, but metadata declares no outcomes"),
    ("WrongOutcome", "error", "contract", r'info\["outcome"\]=\'wonn\' is not declared'),
    ("NoMainOutcome", "info", "outcome", "no outcome is named as the win"),
    ("ReusedArray", "warning", "gymnasium", "share an object"),
]


@pytest.mark.parametrize(("env", "level", "name", "text"), FAULTS, ids=[f"{f[0]}-{f[2]}" for f in FAULTS])
def test_each_fault_is_found_and_explained(env, level, name, text):
    findings = check(env, num_episodes=3 if env == "Endless" else 10)
    finding = the_one(findings, level, name)
    assert re.search(text, finding.what)
    if level in ("error", "warning"):
        assert finding.why
        assert finding.fix


FAULTY = [
    ("raise", "contract", r"step\(\) raised RuntimeError: the simulator fell over; .*toys.py, line"),
    ("reset", "start", r"reset\(\) raised RuntimeError: the map file is missing"),
    ("nan", "contract", r"seed 0, .* step 3: the observation has nan at index \[1\]"),
    ("shape", "contract", r"seed 0, .* step 3: the observation has shape \(3,\).*; 2 more episodes failed"),
    ("no_action", "contract", "has no legal action"),
    ("space", "contract", r"has shape \(4,\)"),
    ("constructor", "make", "raised RuntimeError: no licence for the simulator"),
]


@pytest.mark.parametrize(("fail", "name", "text"), FAULTY)
def test_what_breaks_while_playing_is_an_error_and_the_rest_is_still_checked(fail, name, text):
    findings = check(f"{TOYS}:Faulty", kwargs={"fail": fail})
    assert re.search(text, the_one(findings, "error", name).what)
    assert has_errors(findings)
    assert findings[0].level == "error"
    if name == "contract":
        assert found(findings, "info", "speed")
        assert found(findings, "ok", "backends")


@pytest.mark.parametrize("env", ["Survivor", "EndsAtWill", "Alone", "LastDigits", "ZeroIsNone"])
def test_what_only_the_check_does_is_no_error_of_the_environment(env):
    findings = check(env)
    assert not has_errors(findings)
    assert not [finding for finding in findings if "global" in finding.what]


def test_one_environment_for_each_worker_is_named():
    assert "as many --num-workers as --n-envs" in the_one(check("Alone"), "warning", "backends").fix


class JustOutside(Outside):
    def observe(self):
        return np.array([1.0 + 2e-7, -1.0], np.float32) * (1 if self.steps % 2 else 0.5)


class FarOutside(Outside):
    def observe(self):
        return np.array([1.0 + 2e-7, 3.0], np.float32)


def test_what_is_shown_is_farthest_outside():
    what = the_one(check("FarOutside"), "warning", "observation").what
    assert what.endswith("index [1] is 3.0, allowed -1.0 to 1.0")


def test_rounding_is_not_outside():
    assert not found(check("JustOutside"), "warning", "observation")


def test_the_advice_for_images_keeps_them_images():
    assert "float" not in the_one(check("DimImage"), "warning", "observation").fix


def test_the_clock_starts_when_the_environment_is_there():
    findings = check("SlowImport", budget_s=0.5, num_episodes=2)
    assert found(findings, "ok", "contract")


def test_a_few_steps_prove_nothing():
    findings = check("SlowStep", budget_s=0.1)
    assert not found(findings, "ok", "contract")
    assert not found(findings, "ok", "seeding")
    assert re.search(r"contract: only \d steps were played", the_one(findings, "info", "skipped").what)


def test_the_reason_for_leaving_out_is_the_true_one():
    text = the_one(check("TrueNoise"), "info", "skipped").what
    assert "dead actions: episodes can't be repeated" in text
    text = the_one(check("SlowStep", budget_s=0.1), "info", "skipped").what
    assert "can't be repeated" not in text


def make_vector(num_envs):
    return gym.make_vec("CartPole-v1", num_envs)


def test_a_vector_is_not_accused_of_being_one():
    (finding,) = check("make_vector")
    assert (finding.level, finding.name) == ("info", "make")
    assert "is already vectorised" in finding.what
    assert "--vector batched" in finding.fix


class Wide(Walk):
    """Shows more than its space has, from the first observation on."""

    def observe(self):
        return np.zeros(7, np.float32)


def test_what_never_began_is_told_without_times():
    findings = check("Wide")
    assert "has shape (7,)" in the_one(findings, "error", "contract").what
    assert the_one(findings, "info", "speed").what == "observation of 8 bytes"


def test_a_wrong_name_says_itself_what_to_do():
    (finding,) = check("MiniGrid-Empty-5x5-v0")
    assert finding.level == "error"
    assert "name it minigrid:MiniGrid-Empty-5x5-v0" in finding.what
    assert finding.fix == ""
    (finding,) = check(f"{TOYS}:Faulty", kwargs={"fail": "constructor"})
    assert finding.fix == "check --env-kwargs, then the constructor"


def make_with_arguments(size):
    return Walk()


def test_a_call_that_does_not_fit_is_not_located_in_our_code():
    (finding,) = check("make_with_arguments")
    assert finding.what.endswith("missing 1 required positional argument: 'size'")


class VectorReward(Walk):
    def step(self, action):
        obs, reward, *rest = super().step(action)
        return obs, np.array([reward, 0.0]), *rest


def test_what_a_wrapper_mends_is_not_accused_and_nothing_is_said_twice(monkeypatch):
    monkeypatch.setattr(gym.envs.registration, "registry", dict(gym.registry))
    monkeypatch.setattr(gym, "registry", gym.envs.registration.registry)
    gym.register("VectorReward-v0", VectorReward)
    gym.register("Outside-v0", Outside)
    assert not found(check("VectorReward-v0", wrap=("weigh:1,1",)), "warning", "gymnasium")
    assert "not within the observation space" in the_one(check("Outside-v0"), "warning", "gymnasium").what


def test_unknown_environment():
    (finding,) = check("CartPol-v1")
    assert finding.level == "error"
    assert "unknown environment 'CartPol-v1' (did you mean 'CartPole-v1'?)" in finding.what


def test_what_raises_only_when_every_action_is_tried_is_still_found(monkeypatch):
    monkeypatch.setattr(LateRaise, "num_steps", 0)
    findings = check("LateRaise")
    assert "ZeroDivisionError: that branch was never tried" in the_one(findings, "error", "actions").what
    assert found(findings, "ok", "contract")


def test_findings_are_sorted_with_errors_first():
    findings = check("NanReward")
    levels = [finding.level for finding in findings]
    assert levels == sorted(levels, key=["error", "warning", "info", "ok"].index)
    assert levels[0] == "error"


def test_what_there_was_no_time_for_is_named():
    findings = check("Walk", budget_s=0.0)
    text = the_one(findings, "info", "skipped").what
    assert "9 of 10 episodes, for time" in text
    assert "seeding, for time; actions, for time; backends, for time" in text
    assert "Gymnasium's own checker, for time" in text
    assert not found(findings, "ok", "actions")


def test_a_declared_nondeterministic_environment_is_no_error():
    gym.register("CheckNoise-v0", entry_point=TrueNoise, nondeterministic=True, max_episode_steps=20)
    try:
        findings = check("CheckNoise-v0")
    finally:
        del gym.registry["CheckNoise-v0"]
    assert "registered as nondeterministic" in the_one(findings, "info", "seeding").what
    assert not has_errors(findings)


class WalkVector(gym.vector.SyncVectorEnv):
    """The walk's own vector form, seeded row by row as Gymnasium does."""

    def __init__(self, num_envs, single=Walk, **kwargs):
        super().__init__([single] * num_envs)


class Drifting(Walk):
    """The same first observation, another walk."""

    def step(self, action):
        return super().step(int(action) + 1)


class Wider(Walk):
    def __init__(self):
        super().__init__()
        self.action_space = spaces.Discrete(4)


@pytest.mark.parametrize(
    ("single", "level", "text"),
    [
        (Walk, "ok", "plays the same episodes"),
        (Drifting, "warning", "its vector form differs from its single form: the observation after step 1"),
        (Wider, "warning", "its vector form has other spaces"),
        (NumpyGlobal, "info", "seeds its environments in another way"),
    ],
)
def test_a_registered_vector_form_is_compared(single, level, text):
    def make_vector(num_envs, **kwargs):
        return WalkVector(num_envs, single)

    gym.register("CheckWalk-v0", entry_point=Walk, vector_entry_point=make_vector, max_episode_steps=20)
    try:
        findings = check("CheckWalk-v0")
    finally:
        del gym.registry["CheckWalk-v0"]
    assert text in the_one(findings, level, "backends").what


def test_a_part_of_an_action_without_an_effect_is_named():
    told = [finding.what for finding in found(check("action_toys:Guarded"), "warning", "actions")]
    assert any("entry 0 of 'force' had no effect in all" in what for what in told)


def test_equal_combinations_of_joint_masks_are_named():
    finding = the_one(check("Twins"), "warning", "actions")
    assert "actions (0, 7), (1, 7) had the same effect" in finding.what


def test_two_instances_are_not_blamed_for_what_one_carries_over(monkeypatch):
    """On a slow machine seeding compares the first episode alone, which a new instance had played."""

    def hurry(exam, out_of_time):
        exam.doubt = ""
        return iter(())

    checks = [
        (name, hurry if name == "seeding" else check, *rest) for name, check, *rest in environment._CHECKS
    ]
    monkeypatch.setattr(environment, "_CHECKS", checks)
    findings = check("Survivor")
    assert not has_errors(findings)
    assert (
        "gave another episode in an instance that was used before"
        in the_one(findings, "warning", "seeding").what
    )
    assert the_one(check("SharedState"), "error", "backends")
