"""Environments of coroutines, seen as plain ones: recognised, built, stepped, closed."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from coroutine_toys import AsyncHazard, Awaited, Both
from mission_gym.check.environment import check_environment
from mission_gym.check.findings import has_errors
from mission_gym.env import event_loop
from mission_gym.env.coroutines import CoroutineEnv, has_coroutines
from mission_gym.env.factory import EnvRequest, as_coroutines, make_factory
from mission_gym.env.probe import probe
from mission_gym.errors import EnvContractError, UsageError


def build(name: str, **kwargs: Any) -> Any:
    return make_factory(EnvRequest(name, kwargs))()


@pytest.fixture
def registered() -> Iterator[None]:
    gym.register("test/Awaited-v0", entry_point=Awaited, max_episode_steps=3, kwargs={"plain": "CartPole-v1"})
    gym.register("test/Made-v0", entry_point=partial(Awaited, "CartPole-v1"))
    gym.register("test/Both-v0", entry_point="coroutine_toys:Both", max_episode_steps=5)
    yield
    for name in ("Awaited", "Made", "Both"):
        del gym.registry[f"test/{name}-v0"]


def test_one_named_by_its_class_plays_as_its_plain_form() -> None:
    env, plain = build("coroutine_toys:Awaited", plain="CartPole-v1"), gym.make("CartPole-v1")
    np.testing.assert_array_equal(env.reset(seed=3)[0], plain.reset(seed=3)[0])
    for _ in range(5):
        mine, theirs = env.step(1), plain.step(1)
        np.testing.assert_array_equal(mine[0], theirs[0])
        assert mine[1:] == theirs[1:]
    inner = env.coroutines
    env.close()
    assert inner.is_closed
    assert len(inner.tasks) == 1  # all of its coroutines ran in one task


@pytest.mark.usefixtures("registered")
def test_registered_ids_keep_their_wrappers() -> None:
    env = build("test/Awaited-v0")
    assert isinstance(env, gym.wrappers.TimeLimit)
    env.reset(seed=0)
    assert [env.step(0)[3] for _ in range(3)] == [False, False, True]
    assert env.spec.entry_point is Awaited
    env.close()
    made = build("test/Made-v0")
    assert has_coroutines(made)
    made.close()


@pytest.mark.usefixtures("registered")
def test_an_environment_with_both_forms_is_plain_unless_coroutines_are_wanted() -> None:
    for name in ("coroutine_toys:Both", "test/Both-v0"):
        factory = make_factory(EnvRequest(name))
        assert probe(factory, name).coroutines == "offered"
        plain, wanted = factory(), as_coroutines(factory)()
        assert (plain.reset(seed=0)[0], wanted.reset(seed=0)[0]) == (0, 1)
        assert not has_coroutines(plain)
        assert probe(as_coroutines(factory), name).coroutines == "only"
        wanted.close()
    assert isinstance(as_coroutines(make_factory(EnvRequest("test/Both-v0")))(), gym.wrappers.TimeLimit)


def test_a_plain_one_is_refused_with_the_reason() -> None:
    plain = r"CartPoleEnv is a plain environment: its step\(\) is not a coroutine.*use --vector threads"
    with pytest.raises(UsageError, match=plain):
        as_coroutines(make_factory(EnvRequest("CartPole-v1")))()


class Half(Awaited):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return self.plain.reset(seed=seed, options=options)


class NoCoroutineForm(Both):
    def coroutine_form(self) -> Any:
        return Both()


class Spaceless:
    async def reset(self, *, seed: int | None = None, options: Any = None) -> Any: ...

    async def step(self, action: Any) -> Any: ...


def test_what_is_half_a_coroutine_is_refused() -> None:
    with pytest.raises(EnvContractError, match=r"Half.step\(\) is a coroutine and reset\(\) is not"):
        make_factory(partial(Half, "CartPole-v1"))()
    with pytest.raises(
        EnvContractError, match=r"coroutine_form\(\) returned a Both whose reset\(\) and step\(\) are not"
    ):
        as_coroutines(make_factory(NoCoroutineForm))()
    with pytest.raises(EnvContractError, match="Spaceless instance> must have an observation_space"):
        probe(make_factory(Spaceless), "mine")


class Telling(Awaited):
    """Has more than the protocol asks for, some of it as coroutines."""

    level = 1

    async def get_state(self) -> Any:
        await self.wait()
        return {"level": self.level}

    def set_state(self, state: Any) -> None:
        self.level = state["level"]


def test_attributes_are_the_environments_own() -> None:
    env = make_factory(partial(Telling, "CartPole-v1"))()
    env.reset(seed=7)
    assert env.get_wrapper_attr("get_state")() == {"level": 1}
    env.set_wrapper_attr("level", 5)
    assert env.unwrapped.get_state() == {"level": 5}
    assert not env.set_wrapper_attr("missing", 1, force=False)
    assert env.np_random_seed == 7
    assert env.np_random is env.coroutines.plain.unwrapped.np_random
    assert str(env) == "<Telling instance>"
    env.close()


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("raise", "the site fell over"),
        ("cancelled", "it was cancelled"),
        ("exit", "it raised SystemExit"),
        ("odd", "it raised Odd"),
    ],
)
def test_what_a_coroutine_raises_is_an_ordinary_exception(kind: str, text: str) -> None:
    env = make_factory(partial(AsyncHazard, kind, at=1))()
    env.reset(seed=0)
    with pytest.raises(Exception, match=text):
        env.step(0)
    assert env.reset(seed=0)[1] == {}
    env.close()


@pytest.mark.parametrize("kind", ["stop", "child exits", "cancel all"])
def test_the_loop_goes_on_whatever_an_environment_does_to_it(kind: str) -> None:
    env = make_factory(partial(AsyncHazard, kind, at=1))()
    env.reset(seed=0)
    try:
        env.step(0)
    except event_loop.CancelledCall:
        assert kind == "cancel all"
    assert env.step(1)[0].tolist() == [2, 1]
    env.close()


class Wrapping(gym.Wrapper[Any, Any, Any, Any]):
    def step(self, action: Any) -> Any:
        self.env.step(action)
        return self.env.step(action)


class AsyncWrapping:
    """A wrapper that is an environment of coroutines itself."""

    def __init__(self, env: Any) -> None:
        self.env = env
        self.observation_space, self.action_space = env.observation_space, env.action_space

    async def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return await self.env.reset(seed=seed, options=options)

    async def step(self, action: Any) -> Any:
        await self.env.step(action)
        return await self.env.step(action)


@pytest.mark.parametrize("wrapper", ["Wrapping", "AsyncWrapping"])
def test_wrappers_of_both_kinds(wrapper: str) -> None:
    name = "coroutine_toys:AsyncHazard"
    env = make_factory(EnvRequest(name, wrap=(f"test_coroutines:{wrapper}",)))()
    env.reset(seed=0)
    assert env.step(1)[0].tolist() == [2, 1]
    assert has_coroutines(env)
    env.close()


class AsyncAgents:
    """Two agents that see how often all have acted."""

    possible_agents = ("a_0", "a_1")

    def observation_space(self, agent: str) -> Any:
        return spaces.Box(0.0, 100.0, (1,), np.float32)

    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(2)

    async def reset(self, seed: int | None = None, options: Any = None) -> Any:
        await asyncio.sleep(0)
        self.agents, self.steps = list(self.possible_agents), 0
        return self.tell(0.0), {agent: {} for agent in self.agents}

    async def step(self, actions: dict[str, Any]) -> Any:
        await asyncio.sleep(0)
        self.steps += 1
        ends = dict.fromkeys(self.agents, self.steps >= 3)
        told = (
            self.tell(self.steps),
            dict.fromkeys(self.agents, 1.0),
            ends,
            dict.fromkeys(self.agents, False),
        )
        infos: dict[str, Any] = {agent: {} for agent in self.agents}
        self.agents = [] if self.steps >= 3 else self.agents
        return *told, infos

    def tell(self, number: float) -> dict[str, Any]:
        return {agent: np.full(1, number, np.float32) for agent in self.possible_agents}


def test_several_agents_may_be_awaited_too() -> None:
    env = make_factory(AsyncAgents)()
    assert has_coroutines(env)
    assert probe(make_factory(AsyncAgents), "agents").coroutines == "only"
    env.reset(seed=0)
    assert env.step(np.zeros(2, np.int64))[0]["a_1"].tolist() == [1.0]
    env.close()


def test_the_doctor_finds_no_fault() -> None:
    findings = check_environment(
        EnvRequest("coroutine_toys:Awaited", {"plain": "CartPole-v1"}), num_episodes=3
    )
    assert not has_errors(findings), [each.what for each in findings if each.level == "error"]


def test_the_doctor_names_what_blocks_the_event_loop() -> None:
    findings = check_environment(EnvRequest("coroutine_toys:Napping"), num_episodes=1, budget_s=5.0)
    (told,) = [each for each in findings if "blocked the event loop" in each.what]
    assert told.level == "warning"
    assert "use --vector threads" in told.fix


def test_plain_environments_need_no_event_loop() -> None:
    code = "import sys; from mission_gym.env.factory import *; make_factory(EnvRequest('CartPole-v1'))(); "
    code += "assert 'mission_gym.env.event_loop' not in sys.modules and 'greenlet' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_one_loop_for_all_of_a_process() -> None:
    first, second = (CoroutineEnv(AsyncHazard()) for _ in range(2))
    before = threading.active_count()
    for env in (first, second):
        env.reset(seed=0)
        env.close()
    assert threading.active_count() <= before + 1
