"""Stands here for a job on a cluster: `python -m mission_gym.ray.job_proxy ADDRESS NODE GPUS train ...`.

To its supervisor it is the job's process: it holds the job's lock, takes its stop requests, tells its run,
prints what the job prints and ends with its code. On the node an actor of its own (`outpost`) starts the
command line. Where the node sees the runs folder, and its locks, the run is written there; else in the node's
scratch folder, and comes home through Ray's object store (`mirror`).
"""

from __future__ import annotations

import os
import secrets
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from mission_gym.errors import MissionGymError, WorkerDied
from mission_gym.procs.machine import CORES
from mission_gym.ray.cluster import check_versions, open_cluster
from mission_gym.ray.mirror import Mirror, send_run
from mission_gym.ray.node_agent import Listing, News, Outpost, Surroundings
from mission_gym.store import END_FILE, GROUP, PID, lock
from mission_gym.store.files import disk_errors
from mission_gym.store.groups import announce_end, announce_run
from mission_gym.store.rundir import RunDir

_LOOK_S = 0.5  # between questions
_MIRROR_S = 2.0  # between looks at a run that is written elsewhere
_ASK_S = 1.0  # between looks at a question that is not answered: a stop request may come
_CLOSE_S = 10.0
_STOPPED = 130
_SHARED_VARIABLES = ("PYTHONPATH", "LD_LIBRARY_PATH", "XDG_CACHE_HOME", "XDG_STATE_HOME")


class Errand(NamedTuple):
    """A job, and where it goes."""

    address: str
    node: str
    num_gpus: int
    words: list[str]  # train ..., resume RUN ... or branch RUN@POINT ...

    @property
    def run(self) -> Path | None:
        """The run that it goes on with, or branches from."""
        name = {"resume": self.words[1], "branch": self.words[1].rpartition("@")[0]}.get(self.words[0])
        return None if name is None else Path(name)

    @property
    def resumes(self) -> bool:
        return self.words[0] == "resume"

    @property
    def runs_dir(self) -> Path:
        if self.run is not None:
            return self.run.parent
        flag = "--runs-dir="
        return Path(next(word for word in self.words if word.startswith(flag)).removeprefix(flag))

    def move(self, folder: str) -> list[str]:
        """The words for a runs folder elsewhere."""
        home = str(self.runs_dir)
        own = (f"--runs-dir={home}", self.words[1])
        return [word.replace(home, folder) if word in own else word for word in self.words]


class Stopped(Exception):
    """A stop was asked for before the job began."""


class Line:
    """The questions to an outpost, each asked until it is answered, or the node is known to be lost."""

    def __init__(self, ray: ModuleType, errand: Errand) -> None:
        from ray.exceptions import ActorUnavailableError, RayActorError
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        self._ray = ray
        self._lost, self._unavailable = RayActorError, ActorUnavailableError
        there = NodeAffinitySchedulingStrategy(errand.node, soft=True)
        actor = ray.remote(Outpost).options(
            num_cpus=int(os.environ[CORES]),
            num_gpus=errand.num_gpus,
            scheduling_strategy=there,
            max_restarts=0,
        )
        self._actor = actor.remote()

    def look(self, mark: Path, text: str, should_stop: Callable[[], bool]) -> Surroundings:
        """Wait until the node has what was declared; Stopped."""
        begun = self._actor.__ray_ready__.remote()
        while not self._ray.wait([begun], timeout=_ASK_S)[0]:
            if should_stop():
                raise Stopped
        found: Surroundings = self._ask("look", str(mark), text, os.getcwd())
        return found

    def start(self, words: Sequence[str], folder: str, variables: dict[str, str], num_gpus: int) -> None:
        self._ask("start", words, folder, variables, num_gpus)

    def news(self, position: int) -> News:
        told: News = self._ask("news", position)
        return told

    def stop(self) -> bool:
        is_told: bool = self._ask("stop")
        return is_told

    def list_files(self, folder: str) -> Listing:
        found: Listing = self._ask("list_files", folder)
        return found

    def read(self, path: str, start: int, size: int) -> bytes | None:
        data: bytes | None = self._ask("read", path, start, size)
        return data

    def write(self, path: str, start: int, data: bytes) -> None:
        self._ask("write", path, start, data)

    def close(self) -> None:
        with suppress(Exception):  # border: the node may be gone, and ends it then
            self._ray.get(self._actor.close.remote(), timeout=_CLOSE_S)

    def _ask(self, question: str, *args: Any) -> Any:
        while True:
            try:
                return self._ray.get(getattr(self._actor, question).remote(*args))
            except self._unavailable:  # the connection is lost; soon it is there again, or the node is gone
                time.sleep(_ASK_S)
            except self._lost as error:
                raise WorkerDied("its node left the cluster, or its process there was killed") from error


def carry(errand: Errand) -> int:
    """Have a job done, and bring home what comes of it; its exit code."""
    asked_to_stop: list[int] = []

    def should_stop() -> bool:
        return bool(asked_to_stop)

    with ExitStack() as stack:
        line, there = _settle(stack, errand, asked_to_stop)
        check_versions(there.versions, there.host)
        variables = {name: os.environ[name] for name in (CORES, GROUP) if name in os.environ}
        variables[PID] = str(os.getpid())
        if there.is_shared:
            _tell(f"runs on {there.host}, which shares the runs folder: the run is written there")
            variables |= {name: os.environ[name] for name in _SHARED_VARIABLES if name in os.environ}
            line.start(errand.words, os.getcwd(), variables, errand.num_gpus)
            code = _stay(stack, line, should_stop)
        else:
            _tell(
                f"runs on {there.host}, which does not share the runs folder: the run is written in a scratch"
                " folder there, and comes home through the object store with each checkpoint and at the end"
            )
            runs_dir = os.path.join(there.scratch, "runs")
            sent = None
            if errand.run is not None:
                sent = os.path.join(runs_dir, errand.run.name)
                send_run(line, errand.run, sent)
            line.start(errand.move(runs_dir), there.folder, variables, errand.num_gpus)
            code = _stay(stack, line, should_stop, errand.runs_dir, sent if errand.resumes else None)
        if code < 0:
            raise WorkerDied(
                f"killed by {signal.Signals(-code).name} on {there.host}, which may have been out of memory"
            )
        return code


def _settle(stack: ExitStack, errand: Errand, asked_to_stop: list[int]) -> tuple[Line, Surroundings]:
    """An outpost on the node. One that does not see our files gets the user's folder, too."""
    for folder in ("", os.getcwd()):
        with ExitStack() as trial, _mark() as (mark, text):
            cluster = open_cluster(errand.address, folder=folder)
            trial.callback(cluster.close)
            # After Ray, which has put a handler of its own.
            signal.signal(signal.SIGTERM, lambda number, frame: asked_to_stop.append(number))
            line = Line(cluster.ray, errand)
            trial.callback(line.close)
            there = line.look(mark, text, lambda: bool(asked_to_stop))
            if there.is_shared or folder:
                stack.push(trial.pop_all())
                break
    return line, there


def _stay(
    stack: ExitStack,
    line: Line,
    should_stop: Callable[[], bool],
    home: Path | None = None,
    resumed: str | None = None,
) -> int:
    """Print what the job prints, hand on a stop request; its exit code. home: where its run is brought, if it
    is not written there. resumed: the run on the node, where it is one that was sent."""
    position, has_asked, next_look = 0, False, 0.0
    run: Path | None = None
    mirror: Mirror | None = None
    while True:
        news = line.news(position)
        position = news.position
        sys.stdout.buffer.write(news.output)
        sys.stdout.buffer.flush()
        place = news.run or resumed
        if place is not None and run is None:
            run = Path(place) if home is None else home / Path(place).name
            if home is not None:
                with disk_errors(run):
                    run.mkdir(exist_ok=True)
                stack.enter_context(RunDir(run).lock())
                mirror = Mirror(line, place, run)
                mirror.bring(whole=True)
            announce_run(run)
        has_ended = news.code is not None
        if mirror is not None and (has_ended or time.monotonic() >= next_look):
            mirror.bring(whole=has_ended)
            next_look = time.monotonic() + _MIRROR_S
        if news.code is not None:
            return news.code
        if should_stop() and not has_asked:
            has_asked = line.stop()
        time.sleep(_LOOK_S)


@contextmanager
def _mark() -> Iterator[tuple[Path, str]]:
    """A file by which another machine knows that it sees this group, with its locks; and what is in it."""
    text = secrets.token_hex(16)
    path = Path(os.environ[END_FILE])  # not written before the end
    try:
        with lock.hold(path, wait_s=0.0):
            with disk_errors(path):
                path.write_text(text)
            yield path, text
    finally:
        path.unlink(missing_ok=True)


def _tell(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main(args: Sequence[str]) -> int:
    """Run an errand; the exit code is the job's."""
    address, node, num_gpus, *words = args
    try:
        code = carry(Errand(address, node, int(num_gpus), words))
    except Stopped:
        code = _STOPPED
    except MissionGymError as error:
        _tell(f"mission-gym: {error}")
        code = error.exit_code
    announce_end(code)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
