"""Resumes a run in place, from its last good checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

from mission_gym.check.devices import computes_exactly, name_gpu
from mission_gym.config.layers import Resolved
from mission_gym.config.plain_yaml import read_stored, to_plain
from mission_gym.config.rules import apply_rules
from mission_gym.config.schema import Config
from mission_gym.errors import RunStateError
from mission_gym.plan.setups import device_exists
from mission_gym.procs.machine import compare_versions
from mission_gym.run.build import make_learner, one_blas_thread
from mission_gym.run.config import find_edits, read_config, write_config
from mission_gym.run.environment import open_run_environment, permit_contacts
from mission_gym.run.recorder import Listener
from mission_gym.run.session import Session
from mission_gym.run.settle import drop_wrong_kernel
from mission_gym.run.snapshot import checkpoint_errors, learned_steps
from mission_gym.run.stages import EnvSource
from mission_gym.run.start import open_session
from mission_gym.store.checkpoints import Checkpoint, list_checkpoints, load_last_good
from mission_gym.store.evals import read_evals
from mission_gym.store.files import read_json
from mission_gym.store.resolve import find_namesake
from mission_gym.store.rundir import RunDir
from mission_gym.vector.backends import load_backend

_OF_THE_START = ("run.timesteps", "run.run_name", "run.runs_dir")  # a resume may be given other values


@contextmanager
def resume_run(
    run: RunDir,
    listener: Listener,
    *,
    timesteps: int | None = None,
    ray_address: str | None = None,
    source: EnvSource = None,
) -> Iterator[Session]:
    """A run that continues exactly at its last good checkpoint. timesteps: a larger total. ray_address: of
    another cluster, as in the config."""
    with run.lock(), one_blas_thread():
        stored = read_config(run.config_yaml)
        if ray_address is not None:
            stored = _move(run, stored, ray_address)
        device = stored.settled.compute.device
        if not device_exists(device):
            raise RunStateError(
                f"run {run.name} learns on {device}, which is not available; resume it on a machine that has"
                f" it, or use `mission-gym branch {run.name} --device cpu`"
            )
        checkpoint, notes = load_last_good(run.checkpoints)
        read_evals(run, notes.append)
        with checkpoint_errors(checkpoint):
            resolved, more = _extend(run, stored, checkpoint, timesteps)
        is_moved = ray_address is not None
        permit_contacts(resolved.config, lambda path: is_moved and path == "vector.ray_address", [run.path])
        environment = open_run_environment(run, resolved.config, source)
        remedy = f"use `mission-gym branch {run.name} --kernel torch`"
        resolved, _, changed = drop_wrong_kernel(resolved, environment.spec, remedy)
        learner = make_learner(resolved.settled, environment.spec)
        session, refused = open_session(run, resolved, environment, learner, listener)
        with closing(session):
            with session.status.phase("restoring"), checkpoint_errors(checkpoint):
                restored = session.restore(checkpoint)
                exact = judge_exactness(
                    run, checkpoint, stored.config, restored=restored.exact, other_kernel=bool(changed)
                )
            if timesteps is not None or ray_address is not None or changed:
                write_config(run, session.resolved)
            session.recorder.emit(
                "resume",
                run=str(run.path),
                name=run.name,
                step=checkpoint.step,
                total=resolved.config.run.timesteps,
                main_outcome=session.spec.main_outcome,
                notes=[*notes, *more, *changed, *refused, *restored.notes, exact],
            )
            yield session


class Unfinished(NamedTuple):
    """An existing run to continue in place of a new one."""

    run: RunDir
    timesteps: int | None  # a larger total
    is_done: bool  # there is nothing to do
    note: str


def find_unfinished(given: Resolved) -> Unfinished | None:
    """The run of a config's name, if it has a checkpoint. It keeps its own values, but for a larger total."""
    name = given.config.run.run_name
    run = find_namesake(str(name), Path(given.config.run.runs_dir))
    if run is None or not list_checkpoints(run.checkpoints):
        return None
    stored = read_stored(run.config_yaml)
    paths = [path for path in stored if path in given.sources and given.explicit(path)]
    values = {path: to_plain(given.config.value(path)) for path in paths}
    differing = [
        f"{path}={value} (it has {stored[path].value})"
        for path, value in values.items()
        if path not in _OF_THE_START and value not in ("auto", stored[path].value)
    ]
    note = f"run {run.name} continues with its own values, without {', '.join(differing)}"
    total = values.get("run.timesteps", 0)
    timesteps = total if total > stored["run.timesteps"].value else None
    is_done = timesteps is None and run.read_status().get("state") == "done"
    return Unfinished(run, timesteps, is_done, note if differing else "")


def _move(run: RunDir, resolved: Resolved, ray_address: str) -> Resolved:
    """The config with another cluster; RunStateError if the run does not use one."""
    if not load_backend(resolved.settled.vector.vector).needs_cluster:
        raise RunStateError(
            f"run {run.name} is not on a Ray cluster (vector={resolved.settled.vector.vector}); remove the"
            f" address, or use `mission-gym branch {run.name} --ray-address {ray_address}` [--ray-address]"
        )
    value = None if ray_address == "none" else ray_address
    return resolved.with_values({"vector.ray_address": value}, "flag --ray-address")


def _extend(
    run: RunDir, resolved: Resolved, checkpoint: Checkpoint, timesteps: int | None
) -> tuple[Resolved, list[str]]:
    """The config with a new total, if one is given; RunStateError if there is nothing to do."""
    step = checkpoint.step
    try:
        status = run.read_status()
    except RunStateError:  # a damaged one is replaced
        status = {}
    if timesteps is None:
        if status.get("state") == "done":
            raise RunStateError(
                f"run {run.name} is finished ({status.get('cause', 'done')}, {step} steps);"
                f" `mission-gym resume {run.name} --timesteps N` extends it"
            )
        return resolved, []
    if timesteps <= step:
        raise RunStateError(
            f"timesteps={timesteps} is not above the {step} steps of run {run.name} [--timesteps]"
        )
    extended = resolved.with_values({"run.timesteps": timesteps}, "flag --timesteps")
    extended, notes = apply_rules(extended, learned_steps(checkpoint))
    if scheduled := extended.config.algorithm.scheduled_names():
        notes.append(f"schedules of {', '.join(scheduled)} now end at step {extended.config.run.timesteps}")
    return extended, notes


def judge_exactness(
    run: RunDir, checkpoint: Checkpoint, config: Config, *, restored: bool, other_kernel: bool
) -> str:
    """Whether a resume with this config is exact, and if not why. restored: all state was restored."""
    causes = [f"{path} {then} -> {now}" for path, (then, now) in find_edits(checkpoint, config).items()]
    if other_kernel:
        causes.append("another kernel learns")
    if config.vector.blocks == "first_ready":
        causes.append("first-ready blocks depend on timing, and unfinished segments are dropped")
    device = str(config.compute.device)
    if not computes_exactly(device):
        causes.append(f"sums on {device} have no fixed order without torch's deterministic algorithms")
    unknown: list[str] | None = None
    try:
        stored = dict(read_json(run.plan_json)).get("versions", {})
        changed, unknown = compare_versions(stored, name_gpu(device))
        causes = [*changed, *causes]
    except (RunStateError, AttributeError, TypeError, ValueError):
        pass
    if causes:
        return f"the resume is statistical, not exact: {', '.join(causes)}"
    if not restored:
        return "the resume is not exact: not all state could be restored"
    if unknown is None:
        return "the resume may not be exact: plan.json is missing or damaged"
    if unknown:
        return (
            f"the resume is exact if {' and '.join(unknown)} did not change: their versions were not stored"
        )
    return "the resume is exact"
