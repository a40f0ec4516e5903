"""The functions of the Python API: resume, branch, resume_or_start, their errors and their texts."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import mission_gym as mg
from mission_gym.errors import RunStateError, UsageError
from mission_gym.report.terminal import list_next_commands
from mission_gym.store.checkpoints import list_checkpoints
from mission_gym.store.rundir import RunDir
from runs import PPO, assert_equal_runs

ENV = "CartPole-v1"
QUICK: dict[str, Any] = PPO | {"eval_freq": 0, "progress": False}
QUICK.pop("eval_episodes")


def make_class() -> type[gym.Env[Any, Any]]:
    class Coin(gym.Env[Any, Any]):
        observation_space = gym.spaces.Dict({"side": gym.spaces.Discrete(2), "noise": gym.spaces.Box(0, 1)})
        action_space = gym.spaces.Discrete(2)

        def _look(self) -> dict[str, Any]:
            self.side = int(self.np_random.integers(2))
            return {"side": self.side, "noise": self.np_random.random(1).astype(np.float32)}

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            super().reset(seed=seed)
            return self._look(), {}

        def step(self, action: Any) -> Any:
            reward = float(action == self.side)
            return self._look(), reward, True, False, {}

    return Coin


@pytest.fixture(scope="module")
def coin(tmp_path_factory: pytest.TempPathFactory) -> tuple[type[gym.Env[Any, Any]], mg.Run]:
    """A class that no module has, and a run of it that is done."""
    kind = make_class()
    return kind, mg.train(kind, runs_dir=str(tmp_path_factory.mktemp("coin")), **QUICK)


def test_an_interrupted_run_resumes_by_its_name_to_the_same_bits(tmp_path: Path) -> None:
    straight = mg.train(ENV, runs_dir=str(tmp_path / "straight"), **QUICK)
    for update in mg.iterate(ENV, runs_dir=str(tmp_path), run_name="cut", **QUICK):
        if update.step == 128:
            break
    assert update.run.status()["state"] == "stopped"
    run = mg.resume("cut", runs_dir=str(tmp_path), progress=False)
    assert run.status()["state"] == "done"
    assert_equal_runs(RunDir(run.path), RunDir(straight.path))
    with pytest.raises(RunStateError, match="is finished"):
        mg.resume(run, progress=False)
    assert mg.resume(run, timesteps="448", progress=False).status()["step"] == 448


def test_resume_refuses_a_checkpoint(tmp_path: Path) -> None:
    run = mg.train(ENV, runs_dir=str(tmp_path), run_name="r", **QUICK)
    with pytest.raises(UsageError, match=r"a run continues from its last one; use mg.branch"):
        mg.resume(f"{run.path}@64", progress=False)


def test_the_run_of_a_class_is_resumed_and_branched_with_the_class(coin: Any) -> None:
    kind, run = coin
    with pytest.raises(UsageError, match=r"pass it as env= to mg.resume, mg.branch or mg.load"):
        mg.resume(run, timesteps=448, progress=False)
    with pytest.raises(UsageError, match=r"pass it as env= to mg.resume"):
        mg.branch(run, timesteps=448, progress=False)
    child = mg.branch(f"{run.path}@last", env=kind, timesteps=448, learning_rate=1e-4, progress=False)
    assert child.path != run.path
    assert child.status()["step"] == 448
    assert mg.resume(run, env=kind, timesteps=448, progress=False).path == run.path


def test_the_next_commands_of_a_class_are_those_of_python(coin: Any) -> None:
    _, run = coin
    status = run.status()
    end = {"state": "done", "step": status["step"], "goal": None}
    texts = [command for command, _ in list_next_commands(RunDir(run.path), status, end)]
    assert f"mg.resume('{run.path}', env=Coin, timesteps={2 * status['step']})" in texts
    assert not [text for text in texts if text.startswith("mission-gym")]


def test_resume_or_start_continues_its_run_once(tmp_path: Path) -> None:
    where = {"runs_dir": str(tmp_path), "resume_or_start": "night"}
    for update in mg.iterate(ENV, **where, **QUICK):
        if update.step == 128:
            break
    steps = [update.step for update in mg.iterate(ENV, **where, **QUICK)]
    assert steps == [192, 256, 320, 384]
    run = mg.train(ENV, **where, **QUICK)  # done: returned as it is
    assert run.path == update.run.path
    assert list(mg.iterate(ENV, **where, **QUICK)) == []
    with pytest.warns(
        UserWarning, match=r"continues with its own values, without ppo.gamma=0.9 \(it has 0.9"
    ):
        more = mg.train(ENV, **where, **QUICK | {"timesteps": 448, "gamma": 0.9})
    assert (more.path, more.status()["step"]) == (run.path, 448)
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("flags", [{"seeds": 2}, {"run_name": "other"}])
def test_resume_or_start_names_one_run(flags: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"resume_or_start .*; remove one"):
        mg.train(ENV, resume_or_start="night", runs_dir=str(tmp_path), **flags)


def test_train_raises_the_interrupt_after_saving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mission_gym.run.session import Session

    record = Session._record

    def interrupt(session: Session) -> None:
        record(session)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Session, "_record", interrupt)
    with pytest.raises(KeyboardInterrupt):
        mg.train(ENV, runs_dir=str(tmp_path), **QUICK)
    (path,) = tmp_path.iterdir()
    run = RunDir(path)
    assert (run.read_status()["state"], run.read_status()["cause"]) == ("stopped", "SIGINT")
    assert list_checkpoints(run.checkpoints)[-1].step == 64


def test_a_missing_key_is_named(coin: Any) -> None:
    kind, run = coin
    policy = mg.load(run.path, env=kind)
    with pytest.raises(UsageError, match="the observation has no key 'noise'; the policy was trained on"):
        policy.predict({"side": 1})
    with pytest.raises(UsageError, match="does not fit"):
        policy.predict(1)


def test_texts_of_the_objects(coin: Any) -> None:
    kind, run = coin
    assert repr(run).startswith(f"Run('{run.path}', state='done', step=")
    assert repr(mg.load(run.path, env=kind)).endswith("algo='ppo', env='<make_class.<locals>.Coin>')")


def test_completion_offers_the_api() -> None:
    assert dir(mg) == sorted(mg.__all__)


TYPED = """
import mission_gym as mg
from typing_extensions import assert_type

run = mg.train("CartPole-v1", timesteps="5k", n_envs=4, learning_rate=1e-3, seed=1)
assert_type(run, mg.Run)
assert_type(mg.train("CartPole-v1", seeds=3, cuda_mps="off"), mg.Group)
for update in mg.iterate("CartPole-v1", total_timesteps=100, algo="dqn"):
    update.log("a", 1.0)
mg.branch(run, env=lambda: None, timesteps=10)
"""
WRONG = (
    'mg.train("CartPole-v1", timestps="5k")',
    'mg.train("CartPole-v1", learning_rate="abc")',
    'mg.iterate("CartPole-v1", algo="pppo")',
    "mg.branch(run, gama=0.9)",
)


@pytest.mark.slow
def test_a_type_checker_knows_the_flags(tmp_path: Path) -> None:
    api = pytest.importorskip("mypy.api")
    file = tmp_path / "typed.py"
    file.write_text(TYPED + "\n".join(WRONG))
    out = api.run(
        ["--strict", "--config-file=", f"--cache-dir={tmp_path}", "--follow-imports=silent", str(file)]
    )[0]
    first = len(TYPED.splitlines()) + 1
    found = {int(line.split(":")[1]) for line in out.splitlines() if ": error:" in line}
    assert found == set(range(first, first + len(WRONG))), out
