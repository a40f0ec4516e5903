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
from mission_gym.report.screen.streams import inert, patient_streams, say
from mission_gym.store import END_FILE


class _Command(NamedTuple):
    module: str  # in this room, with a function of the command's name, or of `function`, that may give a code
    text: str
    function: str = ""


COMMANDS = {
    "demo": _Command("demo", "train the capture mission until it wins, evaluate it, film it, report it"),
    "train": _Command("training", "train a policy: mission-gym train [ENV]"),
    "resume": _Command("training", "go on with a run, in place and exactly"),
    "branch": _Command("training", "a child run from a checkpoint, with changes"),
    "eval": _Command("evaluating", "play held-out episodes with a run's policy", "evaluate"),
    "baselines": _Command("evaluating", "random, no-op and scripted policies on the same episodes"),
    "check": _Command("evaluating", "the environment doctor: what is wrong, why, and the fix"),
    "doctor": _Command("doctor", "examine this machine: what is wrong, why, and the one fix"),
    "tune": _Command("tune", "measure an environment here: the plan, why, and the scaling table"),
    "wrappers": _Command("wrappers", "the wrappers that have a short name"),
    "bridge": _Command("bridging", "a client library for a game in another process, to copy"),
    "record": _Command("recording", "film the episodes that a run's policy plays"),
    "play": _Command("playing", "play an environment by hand, in a window"),
    "jobs": _Command("jobs", "many runs, packed: run, check, add, status, logs, stop, resume, wait, example"),
    "sweep": _Command("sweeping", "search for settings, and test the best again: sweep ENV, sweep show NAME"),
    "runs": _Command("runs", "list, show, compare, lineage, timeline, clean"),
    "report": _Command("reporting", "one self-contained HTML file about runs and groups"),
    "watch": _Command("watching", "the live dashboard of all runs, in a browser"),
    "config": _Command("runs", "every value of a run, with its source"),
    "bench": _Command("benchmarks", "reproduce performance figures on this machine, beside peers"),
}

# NumPy's BLAS threads cost more than they give on the small batches of acting; the learner sets torch's
# threads itself. The libraries read these when they load.
_THREAD_CAPS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_READER_LEFT = (errno.EPIPE, errno.EIO)  # a pipe or a terminal was closed


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; a bug comes out as the exception that it is."""
    with patient_streams() as out:
        code = _run(list(sys.argv[1:] if argv is None else argv))
        out.flush()
        if END_FILE in os.environ:
            from mission_gym.store.groups import announce_end

            announce_end(code)
        if out.failure is not None and out.failure.errno not in _READER_LEFT:
            return _say(f"the result is lost: {out.failure.strerror} [stdout]", code or 3)
    return code


def _run(args: list[str]) -> int:
    if "--version" in args:
        print(f"mission-gym {__version__}")
        return 0
    if not args or args[0] in ("-h", "--help"):
        print(_help(), file=sys.stdout if args else sys.stderr)
        return 0 if args else 2
    name = args[0]
    if name not in COMMANDS:
        known = ", ".join(COMMANDS)
        return _say(f"{name!r} is not a command{nearest(name, COMMANDS)}; the commands are {known}", 2)
    if name != "doctor":  # which tells what the user has set
        for variable in _THREAD_CAPS:
            os.environ.setdefault(variable, "1")
    command = COMMANDS[name]
    try:
        os.getcwd()  # libraries that are loaded below end the process without a folder
    except OSError:
        return _say("the current folder was removed; change to one that is there", 2)
    try:
        module = importlib.import_module(f"mission_gym.cli.{command.module}")
        run = partial(getattr(module, command.function or name), args[1:])
        if name != "doctor":  # which looks at NumPy before it is loaded, and runs no code that is named
            from mission_gym.store.trusted import retry_if_allowed

            run = partial(retry_if_allowed, run, partial(_ask, trusting="--trust" in args))
        code: int | None = run()
    except SystemExit as stop:  # tyro's: help was printed, or a flag lacks its value
        return stop.code if isinstance(stop.code, int) else 2
    except KeyboardInterrupt:
        return _say("interrupted", 130)
    except MissionGymError as error:
        return _say(str(error), error.exit_code)
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE):
            raise
        return _say(f"{error.strerror}: this process needs more; raise the limit with `ulimit -n 4096`", 3)
    except Exception:  # border: our code with versions of other packages that it was not written for
        from mission_gym.check.packages import explain_too_old

        told = explain_too_old()
        if not told:
            raise
        return _say(told, 2)
    return code or 0


def _ask(error: TrustError, *, trusting: bool) -> bool:
    """Whether the user lets code run that a run or a config file names."""
    if trusting or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return trusting
    question = f"mission-gym: {error.what}. Run it, now and from now on? [y/N] "
    print(inert(question), end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _say(message: str, code: int) -> int:
    say(f"mission-gym: {message}")
    return code


def _help() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {command.text}" for name, command in COMMANDS.items()]
    return "\n".join(
        [
            "usage: mission-gym COMMAND [...]",
            "",
            "Point it at any Gymnasium environment, and it trains as fast as your machine allows.",
            "",
            *lines,
            "",
            "mission-gym COMMAND --help lists the flags of a command; --version tells the version.",
            "RUN is a run's name, a unique beginning of it, its path, or `latest`; RUN@STEP, RUN@best and",
            "RUN@last name a checkpoint.",
        ]
    )
