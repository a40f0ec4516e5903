"""Stands for a job on a cluster: `python -m mission_gym.ray.job_proxy ADDRESS NODE GPUS train ...`.

To its supervisor this is the job's process: it holds the job's lock, receives its stop requests, announces
its run, prints its output and ends with its exit code. A NodeAgent on the node starts the command. If the
node sees the runs folder and its locks, the run is written there. Otherwise it is written to the node's
scratch folder, and a RunMirror copies it here through Ray's object store.
"""

from __future__ import annotations

import os
import secrets
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, cast

from mission_gym.errors import MissionGymError, WorkerDied
from mission_gym.procs.machine import CORES
from mission_gym.ray.cluster import check_versions, open_cluster
from mission_gym.ray.node_agent import Listing, NodeAgent, NodeInfo
from mission_gym.store import END_FILE, GROUP, PID, keep_job_lock, lock
from mission_gym.store.checkpoints import delete_checkpoint, recover, step_of
from mission_gym.store.files import TEMPORARY, disk_errors
from mission_gym.store.groups import announce_end, announce_run
from mission_gym.store.rundir import RunDir

_POLL_S = 0.5  # between two requests for progress
_MIRROR_S = 2.0  # between two copies of a run that is written elsewhere
_RETRY_S = 1.0  # between two attempts at a call that is not answered
_CLOSE_S = 10.0
_STOPPED = 130
_CHUNK_BYTES = 8 << 20
_STATUS = "status.json"
_SHARED_VARIABLES = ("PYTHONPATH", "LD_LIBRARY_PATH", "XDG_CACHE_HOME", "XDG_STATE_HOME")


class RemoteJob(NamedTuple):
    """A job, and the node on which it runs."""

    address: str
    node: str
    num_gpus: int
    words: list[str]  # train ..., resume RUN ... or branch RUN@POINT ...

    @property
    def run(self) -> Path | None:
        """The run that it resumes or branches from."""
        name = {"resume": self.words[1], "branch": self.words[1].rpartition("@")[0]}.get(self.words[0])
        return None if name is None else Path(name)

    @property
    def runs_dir(self) -> Path:
        if self.run is not None:
            return self.run.parent
        flag = "--runs-dir="
        return Path(next(word for word in self.words if word.startswith(flag)).removeprefix(flag))

    def move(self, folder: str) -> list[str]:
        """The command with another runs folder."""
        home = str(self.runs_dir)
        own = (f"--runs-dir={home}", self.words[1])
        return [word.replace(home, folder) if word in own else word for word in self.words]


class StopRequested(Exception):
    """A stop was requested before the job began."""


class ActorClient:
    """Has the methods of a NodeAgent. Each call is repeated until it is answered; WorkerDied if the node is
    lost."""

    def __init__(self, ray: ModuleType, job: RemoteJob) -> None:
        from ray.exceptions import ActorUnavailableError, RayActorError
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        self._ray = ray
        self._lost, self._unavailable = RayActorError, ActorUnavailableError
        self._actor = (
            ray.remote(NodeAgent)
            .options(
                num_cpus=int(os.environ[CORES]),
                num_gpus=job.num_gpus,
                scheduling_strategy=NodeAffinitySchedulingStrategy(job.node, soft=True),
                max_restarts=0,
            )
            .remote()
        )

    def wait_started(self, should_stop: Callable[[], bool]) -> None:
        """Wait until the node has the resources of the job; StopRequested."""
        begun = self._actor.__ray_ready__.remote()
        while not self._ray.wait([begun], timeout=_RETRY_S)[0]:
            if should_stop():
                raise StopRequested

    def close(self) -> None:
        with suppress(Exception):  # border: the node may be gone, and the agent with it
            self._ray.get(self._actor.close.remote(), timeout=_CLOSE_S)

    def __getattr__(self, name: str) -> Any:
        return partial(self._call, name)

    def _call(self, name: str, *args: Any) -> Any:
        while True:
            try:
                return self._ray.get(getattr(self._actor, name).remote(*args))
            except self._unavailable:  # the connection is lost: it comes back, or the node is gone
                time.sleep(_RETRY_S)
            except self._lost as error:
                raise WorkerDied("its node left the cluster, or its process there was killed") from error


def run_job(job: RemoteJob) -> int:
    """Run a job on its node and copy its run here; returns its exit code."""
    stop_signals: list[int] = []

    def should_stop() -> bool:
        return bool(stop_signals)

    with ExitStack() as stack:
        agent, node = _start_agent(stack, job, stop_signals)
        check_versions(node.versions, node.host)
        variables = {name: os.environ[name] for name in (CORES, GROUP) if name in os.environ}
        variables[PID] = str(os.getpid())
        if node.is_shared:
            _print(f"runs on {node.host}, which shares the runs folder: the run is written there")
            variables |= {name: os.environ[name] for name in _SHARED_VARIABLES if name in os.environ}
            agent.start(job.words, os.getcwd(), variables, job.num_gpus)
            code = _follow(stack, agent, should_stop)
        else:
            _print(
                f"runs on {node.host}, which does not share the runs folder: the run is written to a scratch"
                " folder there and copied here with each checkpoint and at the end"
            )
            runs_dir = os.path.join(node.scratch, "runs")
            sent = None
            if job.run is not None:
                sent = os.path.join(runs_dir, job.run.name)
                send_run(agent, job.run, sent)
            agent.start(job.move(runs_dir), node.folder, variables, job.num_gpus)
            resumed = sent if job.words[0] == "resume" else None
            code = _follow(stack, agent, should_stop, job.runs_dir, resumed)
        if code < 0:
            raise WorkerDied(
                f"killed by {signal.Signals(-code).name} on {node.host}, which may have been out of memory"
            )
        return code


def _start_agent(stack: ExitStack, job: RemoteJob, stop_signals: list[int]) -> tuple[NodeAgent, NodeInfo]:
    """Start an agent on the node. If it does not see our files, start it again with the user's folder."""
    for folder in ("", os.getcwd()):
        with ExitStack() as trial, _mark() as (mark, text):
            cluster = open_cluster(job.address, folder=folder)
            trial.callback(cluster.close)
            if cluster.upload is not None:
                _print(cluster.upload.describe())
            # After Ray, which installs its own handler.
            signal.signal(signal.SIGTERM, lambda number, frame: stop_signals.append(number))
            client = ActorClient(cluster.ray, job)
            trial.callback(client.close)
            client.wait_started(lambda: bool(stop_signals))
            agent = cast("NodeAgent", client)
            node = agent.probe(str(mark), text, os.getcwd())
            if node.is_shared or folder:
                stack.push(trial.pop_all())
                break
    return agent, node


def _follow(
    stack: ExitStack,
    agent: NodeAgent,
    should_stop: Callable[[], bool],
    home: Path | None = None,
    resumed: str | None = None,
) -> int:
    """Print the job's output and pass on a stop request; returns its exit code.

    home: the runs folder here, if the run is written elsewhere. resumed: the run on the node that it resumes.
    """
    position, has_asked, next_copy = 0, False, 0.0
    run: Path | None = None
    mirror: RunMirror | None = None
    while True:
        news = agent.progress(position)
        position = news.position
        sys.stdout.buffer.write(news.output)
        sys.stdout.buffer.flush()
        there = news.run or resumed
        if there is not None and run is None:
            run = Path(there) if home is None else home / Path(there).name
            if home is not None:
                with disk_errors(run):
                    run.mkdir(exist_ok=True)
                stack.enter_context(RunDir(run).lock())
                mirror = RunMirror(agent, there, run)
                mirror.copy(everything=True)
            announce_run(run)
        has_ended = news.code is not None
        if mirror is not None and (has_ended or time.monotonic() >= next_copy):
            mirror.copy(everything=has_ended)
            next_copy = time.monotonic() + _MIRROR_S
        if news.code is not None:
            return news.code
        if should_stop() and not has_asked:
            has_asked = agent.stop()
        time.sleep(_POLL_S)


@contextmanager
def _mark() -> Iterator[tuple[Path, str]]:
    """A locked file and its text: a machine that can read both sees this group's folder and its locks."""
    text = secrets.token_hex(16)
    path = Path(os.environ[END_FILE])  # not written before the end
    try:
        with lock.hold(path, wait_s=0.0):
            with disk_errors(path):
                path.write_text(text)
            yield path, text
    finally:
        path.unlink(missing_ok=True)


def send_run(agent: NodeAgent, home: Path, there: str) -> None:
    """Copy a run to a node, without locks and half-written files."""
    for path in sorted(home.rglob("*")):
        name = path.relative_to(home)
        if not path.is_file() or any(part.startswith(".") for part in name.parts):
            continue
        target = os.path.join(there, name)
        with path.open("rb") as file:
            agent.write(target, 0, file.read(_CHUNK_BYTES))
            while data := file.read(_CHUNK_BYTES):
                agent.write(target, file.tell() - len(data), data)


class RunMirror:
    """Copies a run from a node to `home`, which this process has locked.

    The status is copied every time, everything else with each new checkpoint and at the end. Checkpoints come
    first, and each is committed by one rename, so the copy can be resumed at any moment.
    """

    def __init__(self, agent: NodeAgent, there: str, home: Path) -> None:
        self._agent, self._there, self._home = agent, there, home
        self._copied: dict[str, Listing] = {}  # a checkpoint, or a single file, as it was when it was copied

    def copy(self, *, everything: bool) -> None:
        """Copy changed files. everything: also without a new checkpoint."""
        found: defaultdict[str, Listing] = defaultdict(dict)
        for path, stamp in self._agent.list_files(self._there).items():
            folder = os.path.dirname(path)
            found[folder if _is_checkpoint(folder) else path][path] = stamp
        everything = everything or any(_is_checkpoint(unit) and unit not in self._copied for unit in found)
        for unit in sorted(found, key=lambda unit: (unit == _STATUS, not _is_checkpoint(unit))):
            if (everything or unit == _STATUS) and self._copied.get(unit) != found[unit]:
                with disk_errors(self._home / unit):
                    copy = self._copy_checkpoint if _is_checkpoint(unit) else self._copy_file
                    if copy(unit, found[unit]):
                        self._copied[unit] = found[unit]
        if any(map(_is_checkpoint, found)):  # else the only one is being replaced
            for unit in [unit for unit in self._copied if unit not in found]:
                del self._copied[unit]
                if _is_checkpoint(unit):
                    delete_checkpoint(self._home / unit)

    def _copy_file(self, unit: str, files: Listing) -> bool:
        """Copy a single file; False if it is gone."""
        final = self._home / unit
        temporary = final.with_name(f"{TEMPORARY}{final.name}-{os.getpid()}")
        temporary.parent.mkdir(parents=True, exist_ok=True)
        try:
            if self._fetch(unit, temporary) is None:
                return False
            os.replace(temporary, final)
        finally:
            temporary.unlink(missing_ok=True)
        return True

    def _copy_checkpoint(self, unit: str, files: Listing) -> bool:
        """Copy a checkpoint; False if it was deleted or replaced meanwhile."""
        final = self._home / unit
        temporary = final.with_name(f"{TEMPORARY}{final.name}")
        recover(final.parent)
        temporary.mkdir(parents=True, exist_ok=True)
        for path, (size, _) in files.items():
            if self._fetch(path, temporary / Path(path).name) != size:
                recover(final.parent)
                return False
        if final.exists():
            final.rename(final.with_name(f".old-{final.name}"))
        temporary.rename(final)
        recover(final.parent)
        return True

    def _fetch(self, path: str, target: Path) -> int | None:
        """Copy a file and return its size; None if it is gone."""
        start = 0
        with target.open("wb") as file:
            while True:
                data = self._agent.read(os.path.join(self._there, path), start, _CHUNK_BYTES)
                if data is None:
                    return None
                file.write(data)
                start += len(data)
                if len(data) < _CHUNK_BYTES:
                    return start


def _is_checkpoint(unit: str) -> bool:
    return os.path.dirname(unit) == "checkpoints" and step_of(Path(unit)) is not None


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main(args: Sequence[str]) -> int:
    """Run a job; the exit code is the job's."""
    keep_job_lock()
    address, node, num_gpus, *words = args
    try:
        code = run_job(RemoteJob(address, node, int(num_gpus), words))
    except StopRequested:
        code = _STOPPED
    except MissionGymError as error:
        _print(f"mission-gym: {error}")
        code = error.exit_code
    announce_end(code)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
