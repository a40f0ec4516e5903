"""Checks that the environment ends: by a crash in native code, an exit, or a step that never returns."""

from __future__ import annotations

import ctypes
import os
import re
import threading

import pytest

from companion_toys import Attended
from mission_gym.check import environment
from mission_gym.cli.main import main
from mission_gym.env.factory import EnvRequest
from mission_gym.errors import WorkerDied
from mission_gym.procs import Companion
from timeouts import scale_timeout
from toys import Identity


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


def check(env):
    return environment.check_in_subprocess(EnvRequest(f"{__name__}:{env.__name__}"))


@pytest.mark.parametrize(
    ("env", "what"),
    [
        (CrashesInStep, r"while random episodes were played, .* was killed by SIGSEGV; .*a null pointer"),
        (ExitsWhenBuilt, r"while it was built, the environment's process ended with code 7"),
    ],
)
def test_an_environment_that_ends_its_process_is_an_error(env, what):
    (finding,) = check(env)
    assert (finding.level, finding.name) == ("error", "process")
    assert re.match(what, finding.what, re.DOTALL)


def test_a_hang_is_an_error_with_its_stack(monkeypatch):
    monkeypatch.setattr(environment, "SILENT_S", scale_timeout(5.0))
    (finding,) = check(Hangs)
    assert (finding.level, finding.name) == ("error", "process")
    assert re.match(r"while random episodes were played, .* did not answer for", finding.what)
    assert re.search(r"test_subprocess\.py.* in step", finding.what)


def test_the_error_of_a_failing_companion_is_raised():
    with pytest.raises(WorkerDied, match="the port is taken"):
        check(WithoutItsCompanion)


def test_the_command_checks_in_a_subprocess(capsys):
    assert main(["check", f"{__name__}:ExitsWhenBuilt"]) == 2
    assert "ended with code 7" in " ".join(capsys.readouterr().out.split())
