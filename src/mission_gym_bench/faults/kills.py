"""Kills: SIGKILL at random moments, resumed each time, to the same bits as an undisturbed run.

Moments are drawn from a seed: soon after the start, at a step, and while a checkpoint is written.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from mission_gym.store.checkpoints import list_checkpoints
from mission_gym.store.rundir import RunDir
from mission_gym_bench.faults.harness import (
    SERIAL,
    WORKERS,
    Command,
    FaultCase,
    Harness,
    must,
    must_be_tidy,
    must_equal,
)

_HOLDS = "the resumed run ends with the same bits as a straight one; nothing is left behind"
_STARTS_S = 2.5  # within which a command is killed "soon after its start"
_WRITES_S = 0.01  # the approximate time to write a checkpoint
_PPO = (
    "--n-envs", "4", "--timesteps", "3072", "--eval-freq", "1024", "--eval-episodes", "2", "--n-epochs", "4",
)  # fmt: skip
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


def make_kills(num_full: int = 200, num_quick: int = 16, chain: int = 5) -> Iterator[FaultCase]:
    """Yield chains of kills over the forms in turn; the first ones are quick."""
    names = list(FORMS)
    for number in range(num_full // chain):
        name = names[number % len(names)]
        inject = partial(_kill_chain, form=name, num_kills=chain, seed=number)
        is_quick = number < max(num_quick // chain, len(names))
        yield FaultCase("kills", f"{name}, chain {number + 1}", _HOLDS, inject, is_quick, tried=chain)


def _words(harness: Harness, form: str) -> tuple[str, ...]:
    env_id, flags = FORMS[form]
    return harness.train(env_id, *flags)


def _straight(harness: Harness, form: str) -> RunDir:
    def make() -> RunDir:
        harness.run(*_words(harness, form)).expect(0)
        return harness.only_run()

    path = harness.run_cache.get(f"straight {form}", lambda: make().path)
    return RunDir(path)


def _kill_chain(harness: Harness, form: str, num_kills: int, seed: int) -> None:
    rng = random.Random(seed)
    straight = _straight(harness.inner("straight"), form)
    killed = 0
    for number in itertools.count():  # if a run ends before all kills, another one follows
        part = harness.inner(f"part-{number}")
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
    harness.must_leave_nothing()


def _find_usable(harness: Harness) -> RunDir | None:
    """Return the killed run; None, and move it away, if it has no checkpoint yet."""
    for path in list(harness.runs_dir.iterdir()):
        if list_checkpoints(path / "checkpoints"):
            status = RunDir(path).read_status()
            must(status.get("state") in ("failed", "done"), f"after a kill the status is {status}")
            return RunDir(path)
        path.rename(harness.folder / f"early-{len(list(harness.folder.iterdir()))}")
    return None


def _wait_for_moment(harness: Harness, command: Command, rng: random.Random) -> bool:
    """Wait for a moment to kill; False if the command ended before it."""
    kind = rng.choice(("start", "step", "writing"))
    moment = rng.random()
    if kind == "start":
        deadline = time.monotonic() + moment * _STARTS_S
        return harness.wait_until(lambda: time.monotonic() > deadline, "a moment", command)
    if kind == "writing":
        if not harness.wait_until(
            lambda: any(harness.runs_dir.glob("*/checkpoints/.tmp-*")), "writing", command
        ):
            return False
        time.sleep(moment * _WRITES_S)
        return command.running
    before = _last_step(harness)
    target = before + 64 * (1 + int(moment * 8))
    return (
        harness.wait_until(lambda: _last_step(harness) >= target, f"step {target}", command)
        and command.running
    )


def _last_step(harness: Harness) -> int:
    steps = (
        info.step for path in harness.runs_dir.iterdir() for info in list_checkpoints(path / "checkpoints")
    )
    return max(steps, default=0)
