"""What a game's side can do wrong: one clear message for each, and no process left."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import psutil
import pytest

import mission_gym as mg
from games import game, make_walk, processes
from mission_gym.bridge import BridgeEnv, BridgeError
from mission_gym.errors import EnvContractError, WorkerError
from timeouts import LONG_S

FAULTS = {
    "dies": r"was killed by SIGSEGV before it answered \[message 3, step\]; its last output:\nout of luck",
    "garbage": r"sent an answer that is not MessagePack: byte 0xc1; it starts with",
    "half": r"ended with code 3 after 14 bytes of its answer \[message 3, step\]",
    "list": r"answered with a list, not a map \[message 3, step\]",
    "short": r'"obs" leaf 0 has 4 bytes, expected 8 \(1 game x float32\[2\]\) \[message 3, step\]',
    "flags": r'"terminated" must be a byte 0 or 1 for each game, got \[3\]',
    "error": r"answered with an error: the engine is tired \[message 3, step\]",
    "large": r"sent an answer of 16777225 bytes, and its spaces allow 16777224 \[message 3, step\]",
    "hangs": r"sent no answer for 0.3 s \[message 3, step\]",
}
AT_ONCE = {
    "version": r"it speaks version 7 of the protocol; this Mission Gym speaks version 1 \[message 1, hello\]",
    "space": r"has the type 'discret' \(did you mean 'discrete'\?\); the types are box",
    "nil": r"sent an answer of 33554432 bytes, and its spaces allow 16777216 \[message 1, hello\]",
    "prints": r"sent something that is not a message; it starts with b'Hello, world!.*Only messages may",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_answer_is_named(fault: str) -> None:
    env = BridgeEnv(game("faulty_game", fault), timeout_s=0.3 if fault == "hangs" else 60.0)
    env.reset()
    with pytest.raises(BridgeError, match=f"^bridge:.*the game's process {FAULTS[fault]}|{FAULTS[fault]}"):
        env.step(1)
    assert not processes()
    with pytest.raises(BridgeError, match=FAULTS[fault]):  # it stays so
        env.step(1)
    env.close()


def test_an_answer_too_many_is_never_taken_for_the_next() -> None:
    env = BridgeEnv(game("faulty_game", "more"))
    env.reset()
    steps = (env.step(1) for _ in range(1000))  # the second one may arrive late
    with pytest.raises(BridgeError, match=r"sent \d+ bytes more than one answer"):
        list(steps)
    assert not processes()


@pytest.mark.parametrize("fault", AT_ONCE)
def test_a_wrong_handshake_is_named(fault: str) -> None:
    with pytest.raises(BridgeError, match=AT_ONCE[fault]):
        BridgeEnv(game("faulty_game", fault))
    assert not processes()


def test_a_process_that_prints_a_gigabyte_is_drained(capfd: pytest.CaptureFixture[str]) -> None:
    env = BridgeEnv(game("faulty_game", "stderr"))
    env.reset()
    env.close()
    passed_on = capfd.readouterr().err
    assert 1 << 20 <= len(passed_on) < (1 << 20) + 100
    assert passed_on.endswith("[further output of the game is dropped]\n")


def test_a_vector_outlives_killed_processes() -> None:
    vector = mg.make_vec(make_walk, 4, backend="serial", max_restarts=3)
    try:
        vector.reset(seed=0)
        subreapers = set()
        for step in range(60):
            subreaper = vector.envs[0].unwrapped._engine.pid
            subreapers.add(subreaper)
            if step in (5, 6, 40):
                (process,) = psutil.Process(subreaper).children()
                process.kill()
                process.wait(LONG_S)
            shown, *_ = vector.step(np.ones(4, int))
            assert vector.observation_space.contains(shown)
        assert len(subreapers) == 4
        assert len(processes()) == 2  # a subreaper and its game
    finally:
        vector.close()
    assert not processes()


def test_spaces_that_change_are_refused(tmp_path: Path) -> None:
    size = tmp_path / "size"
    size.write_text("2")
    vector = mg.make_vec(
        f"bridge:{game('faulty_game', 'spaces', str(size))}", 1, backend="serial", max_restarts=1
    )
    vector.reset(seed=0)
    size.write_text("3")
    os.kill(psutil.Process(vector.envs[0].unwrapped._engine.pid).children()[0].pid, signal.SIGKILL)
    with pytest.raises((EnvContractError, WorkerError), match="all environments must be alike"):
        vector.step(np.ones(1, int))
    vector.close()
    assert not processes()
