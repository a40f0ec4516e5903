"""Kills: SIGKILL at random moments, resumed each time, to the same bits as a run that nothing disturbed.

Moments are drawn from a seed: soon after the start, at a step, and inside the writing of a checkpoint.
"""

from __future__ import annotations

import itertools
import random
import time
from functools import partial
from typing import NamedTuple

from mission_gym.store.checkpoints import list_checkpoints
from mission_gym.store.rundir import RunDir
from mission_gym_bench.faults.lab import (
    SERIAL,
    WORKERS,
    Command,
    Fault,
    Lab,
    must,
    must_be_tidy,
    must_equal,
)

_HOLDS = "the resumed run ends with the same bits as a straight one; nothing is left behind"
_STARTS_S = 2.5  # within which a command is killed "soon after its start"
_WRITES_S = 0.01  # a checkpoint is written for about so long
_PPO = (
    "--n-envs",
    "4",
    "--timesteps",
    "3072",
    "--eval-freq",
    "1024",
    "--eval-episodes",
    "2",
    "--n-epochs",
    "4",
)
_DQN = (
    "--algo", "dqn", "--n-steps", "8", "--timesteps", "1024", "--learning-starts", "64",
    "--replay-size", "512", "--prioritized",
)  # fmt: skip


class _Form(NamedTuple):
    env_id: str
    flags: tuple[str, ...]


FORMS = {
    "ppo, serial": _Form("CartPole-v1", (*_PPO, *SERIAL)),
    "ppo, workers": _Form("toys:Stateful", (*_PPO, *WORKERS)),
    "ppo, overlap": _Form("CartPole-v1", (*_PPO, *WORKERS, "--overlap", "on")),
    "dqn, replay": _Form("CartPole-v1", (*_DQN, *SERIAL)),
}


def make_kills(num_full: int = 200, num_quick: int = 16, chain: int = 5) -> list[Fault]:
    """Chains of kills over the forms in turn; the first ones are quick."""
    faults = []
    names = list(FORMS)
    for number in range(num_full // chain):
        name = names[number % len(names)]
        inject = partial(_kill_chain, form=name, num_kills=chain, seed=number)
        is_quick = number < max(num_quick // chain, len(names))
        faults.append(
            Fault("kills", f"{name}, chain {number + 1}", _HOLDS, inject, quick=is_quick, tried=chain)
        )
    return faults


def _words(lab: Lab, form: str) -> tuple[str, ...]:
    env_id, flags = FORMS[form]
    return lab.train(env_id, *flags)


def _straight(lab: Lab, form: str) -> RunDir:
    def make() -> RunDir:
        lab.run(*_words(lab, form)).expect(0)
        return lab.only_run()

    path = lab.shelf.get(f"straight {form}", lambda: make().path)
    return RunDir(path)


def _kill_chain(lab: Lab, form: str, num_kills: int, seed: int) -> None:
    rng = random.Random(seed)
    straight = _straight(lab.inner("straight"), form)
    killed = 0
    for (
        number
    ) in itertools.count():  # a run that came to its end before all kills were made is followed by one
        part = lab.inner(f"part-{number}")
        run: RunDir | None = None
        while run is None or run.read_status()["state"] != "done":
            command = part.start(*(("resume", str(run.path)) if run else _words(part, form)))
            if killed < num_kills and _wait_for_moment(part, command, rng):
                command.kill()
                killed += 1
                run = _find_usable(part)
            else:
                command.wait().expect(0)
                run = part.only_run()
        must_equal(run, straight)
        must_be_tidy(run)
        if killed >= num_kills:
            break
    lab.must_leave_nothing()


def _find_usable(lab: Lab) -> RunDir | None:
    """The run that was killed; None, and out of the way, where it had not made a checkpoint yet."""
    for path in list(lab.runs_dir.iterdir()):
        if list_checkpoints(path / "checkpoints"):
            status = RunDir(path).read_status()
            must(status.get("state") in ("failed", "done"), f"after a kill the status is {status}")
            return RunDir(path)
        path.rename(lab.folder / f"early-{len(list(lab.folder.iterdir()))}")
    return None


def _wait_for_moment(lab: Lab, command: Command, rng: random.Random) -> bool:
    """Wait for a moment to kill; False if the command ended before it."""
    kind = rng.choice(("start", "step", "writing"))
    moment = rng.random()
    if kind == "start":
        deadline = time.monotonic() + moment * _STARTS_S
        return lab.wait_until(lambda: time.monotonic() > deadline, "a moment", command)
    if kind == "writing":
        if not lab.wait_until(lambda: any(lab.runs_dir.glob("*/checkpoints/.tmp-*")), "writing", command):
            return False
        time.sleep(moment * _WRITES_S)
        return command.running
    before = _last_step(lab)
    target = before + 64 * (1 + int(moment * 8))
    return lab.wait_until(lambda: _last_step(lab) >= target, f"step {target}", command) and command.running


def _last_step(lab: Lab) -> int:
    steps = (info.step for path in lab.runs_dir.iterdir() for info in list_checkpoints(path / "checkpoints"))
    return max(steps, default=0)
