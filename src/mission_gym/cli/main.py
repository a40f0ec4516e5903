"""`mission-gym`: finds the command, loads only its module, and turns errors into exit codes.

0 done; 1 bug (traceback); 2 usage, config, environment contract or run state; 3 environment, worker,
disk or non-finite failure; 130 interrupted.
"""

from __future__ import annotations

import errno
import importlib
import os
import sys
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from mission_gym import __version__
from mission_gym.errors import MissionGymError, TrustError, nearest
from mission_gym.report.screen.streams import patient_streams, say, strip_control
from mission_gym.store import END_FILE, keep_job_lock


class _Command(NamedTuple):
    module: (
        str  # of this package; its function has the name of the command, or `function`, and may return a code
    )
    text: str
    function: str = ""


COMMANDS = {
    "demo": _Command("eval", "train the capture mission until it wins, then evaluate, record and report it"),
    "train": _Command("train", "train a policy: mission-gym train [ENV]"),
    "resume": _Command("train", "continue a run exactly where it stopped"),
    "branch": _Command("train", "start a child run from a checkpoint, with changes"),
    "eval": _Command("eval", "evaluate a run's policy on held-out episodes", "evaluate"),
    "baselines": _Command("eval", "evaluate random, no-op and scripted policies on the same episodes"),
    "check": _Command("env", "check an environment: problems, reasons and fixes"),
    "doctor": _Command("doctor", "check this machine: problems, reasons and fixes"),
    "tune": _Command("env", "measure an environment on this machine: the plan and the scaling table"),
    "wrappers": _Command("env", "list the wrappers that have a short name"),
    "bridge": _Command("env", "copy a client library for a game in another process"),
    "record": _Command("eval", "record a video of a run's policy"),
    "play": _Command("eval", "play an environment with the keyboard, in a window"),
    "jobs": _Command(
        "jobs", "train many runs, packed: run, check, add, status, logs, stop, resume, wait, example"
    ),
    "sweep": _Command("sweep", "search for settings and retest the best: sweep ENV, sweep show NAME"),
    "runs": _Command("runs", "inspect stored runs: list, show, compare, lineage, timeline, clean"),
    "report": _Command("runs", "write one self-contained HTML file about runs and groups"),
    "watch": _Command("watch", "show all runs live in a browser"),
    "config": _Command("runs", "print every value of a run with its source"),
    "bench": _Command("env", "measure performance on this machine, compared with other trainers"),
}
_HELP_HEAD = """usage: mission-gym COMMAND [...]

Train an agent on any Gymnasium environment, as fast as your machine allows."""
_HELP_FOOT = """mission-gym COMMAND --help lists the flags of a command; --version prints the version.
RUN is a run's name, a unique prefix of it, its path, or `latest`. RUN@STEP, RUN@best and
RUN@last select a checkpoint."""

_CLOSED = (errno.EPIPE, errno.EIO)  # the pipe or terminal of stdout was closed


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; a bug raises its exception."""
    keep_job_lock()
    with patient_streams() as out:
        code = _run(list(sys.argv[1:] if argv is None else argv))
        out.flush()
        if END_FILE in os.environ:
            from mission_gym.store.groups import announce_end

            announce_end(code)
        if out.failure is not None and out.failure.errno not in _CLOSED:
            return _fail(f"the result is lost: {out.failure.strerror} [stdout]", code or 3)
    return code


def _run(args: list[str]) -> int:
    if "--version" in args:
        print(f"mission-gym {__version__}")
        return 0
    if not args or args[0] in ("-h", "--help"):
        print(_make_help(), file=sys.stdout if args else sys.stderr)
        return 0 if args else 2
    name = args[0]
    if name not in COMMANDS:
        known = ", ".join(COMMANDS)
        return _fail(f"{name!r} is not a command{nearest(name, COMMANDS)}; the commands are {known}", 2)
    is_doctor = name == "doctor"  # checks the user's variables, and packages before they are loaded
    if not is_doctor:
        from mission_gym.procs.machine import set_thread_caps

        set_thread_caps()
    command = COMMANDS[name]
    try:
        os.getcwd()  # without a current folder, some libraries end the process
    except OSError:
        return _fail("the current folder was removed; change to an existing folder", 2)
    try:
        module = importlib.import_module(f"mission_gym.cli.{command.module}")
        run = partial(getattr(module, command.function or name), args[1:])
        if not is_doctor:
            from mission_gym.store.trusted import retry_if_allowed

            run = partial(retry_if_allowed, run, _ask)
        code: int | None = run()
    except SystemExit as stop:  # tyro printed its help, or a flag lacks its value
        return stop.code if isinstance(stop.code, int) else 2
    except KeyboardInterrupt:
        return _fail("interrupted", 130)
    except MissionGymError as error:
        return _fail(str(error), error.exit_code)
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE):
            raise
        return _fail(f"{error.strerror}: raise the limit of open files with `ulimit -n 4096`", 3)
    except Exception:  # border: our code with unsupported versions of other packages
        from mission_gym.check.packages import explain_too_old

        if not (problem := explain_too_old()):
            raise
        return _fail(problem, 2)
    return code or 0


def _ask(error: TrustError) -> bool:
    """Ask the user whether code that a run or a config file names may run."""
    from mission_gym.cli.flags import is_trusting

    if is_trusting() or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return is_trusting()
    question = f"mission-gym: {error.what}. Run it, now and in the future? [y/N] "
    print(strip_control(question), end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _fail(message: str, code: int) -> int:
    say(f"mission-gym: {message}")
    return code


def _make_help() -> str:
    lines = "\n".join(f"  {name:<9}  {command.text}" for name, command in COMMANDS.items())
    return f"{_HELP_HEAD}\n\n{lines}\n\n{_HELP_FOOT}"
