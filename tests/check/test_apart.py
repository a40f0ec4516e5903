"""An exam that the environment ends: by a crash in native code, an exit, or a step without an end."""

from __future__ import annotations

import ctypes
import os
import re
import threading

import pytest

from companion_toys import Attended
from mission_gym.check import apart
from mission_gym.cli.main import main
from mission_gym.env.factory import EnvRequest
from mission_gym.errors import WorkerDied
from mission_gym.procs import Companion
from toys import Identity
from waits import patience


class CrashesInStep(Identity):
    def step(self, action):
        print("about to read a null pointer", flush=True)
        ctypes.string_at(0)


class ExitsWhenBuilt(Identity):
    def __init__(self):
        os._exit(7)


class Hangs(Identity):
    def step(self, action):
        threading.Event().wait()


class WithoutItsCompanion(Attended):
    @staticmethod
    def companion_process(**kwargs):
        return Companion("companion_toys:fail")


def examine(env):
    return apart.check_apart(EnvRequest(f"{__name__}:{env.__name__}"))


@pytest.mark.parametrize(
    ("env", "what"),
    [
        (CrashesInStep, r"while random episodes were played, .* was killed by SIGSEGV; .*a null pointer"),
        (ExitsWhenBuilt, r"while it was built, the process that held the environment ended with code 7"),
    ],
)
def test_an_environment_that_ends_its_process_is_an_error(env, what):
    (finding,) = examine(env)
    assert (finding.level, finding.name) == ("error", "process")
    assert re.match(what, finding.what, re.DOTALL)


def test_a_hang_is_an_error_with_its_stack(monkeypatch):
    monkeypatch.setattr(apart, "SILENT_S", patience(10.0))
    (finding,) = examine(Hangs)
    assert (finding.level, finding.name) == ("error", "process")
    assert re.match(r"while random episodes were played, .* did not answer for", finding.what)
    assert re.search(r"test_apart\.py.* in step", finding.what)


def test_a_companion_that_fails_is_told_as_it_is():
    with pytest.raises(WorkerDied, match="the port is taken"):
        examine(WithoutItsCompanion)


def test_the_command_examines_apart(capsys):
    assert main(["check", f"{__name__}:ExitsWhenBuilt"]) == 2
    assert "ended with code 7" in " ".join(capsys.readouterr().out.split())
